"""Who a certificate names, and until when it counts."""

from __future__ import annotations

import dataclasses
import datetime
import re
from typing import TYPE_CHECKING

from gyroscope._core.errors import CertificateError
from gyroscope._core.foreign_text import shortened
from gyroscope._core.optional import extra

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

PURPOSE = "working with certificates"
"""What `cryptography` is for, in the error where it is missing."""
WARNING_DAYS = 14
"""How many days before its end a certificate `expires in N days`."""

URN = "urn:gyroscope:worker:"
"""A worker's certificate has its number behind this, as a URI among its subject alternative names."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclasses.dataclass(frozen=True)
class WorkerIdentity:
    """Who a worker is, as its authority says."""

    name: str
    number: int
    """From 0: which of the run's workers it is."""
    serial: int
    """The serial number of the certificate, which `RevocationList.is_revoked` takes."""


def identity_of(pem: bytes) -> WorkerIdentity:
    """Read a worker's identity from its certificate.

    TLS checks who issued the certificate and whether it has expired, before it is handed over.

    Args:
        pem: The certificate as PEM.

    Raises:
        CertificateError: The bytes are no certificate, or one without a worker's name and number. No bytes raise
            anything else.
        MissingExtraError: `cryptography` is not installed.
    """
    certificate = parse_certificate(pem, "a worker's certificate")
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        names = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
        serial = certificate.serial_number
    except Exception as problem:  # the parser has many ways to refuse an extension
        cause = shortened(problem) or type(problem).__name__
        raise CertificateError(f"a certificate does not say which worker's it is ({cause}): {_REMEDY}") from problem
    name = names[0] if len(names) == 1 else None
    numbers = [uri[len(URN) :] for uri in uris if uri.startswith(URN)]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise CertificateError(f"a certificate has no worker's name but the common names {shortened(names)}: {_REMEDY}")
    if len(numbers) != 1 or not NUMBER.fullmatch(numbers[0]):
        raise CertificateError(f"{name}'s certificate has no number ({URN}3) but the URIs {shortened(uris)}: {_REMEDY}")
    return WorkerIdentity(name, int(numbers[0]), serial)


_REMEDY = "use one that `gyroscope keys add` has made"


def expiry(pem: bytes) -> datetime.datetime:
    """Return the moment, in UTC, from which on a certificate does not count any more.

    Raises:
        CertificateError: The bytes are no certificate.
    """
    return parse_certificate(pem, "a certificate").not_valid_after_utc


def validity(until: datetime.datetime, now: datetime.datetime | None = None) -> str:
    """Return `valid`, `expires in N days` where N is at most WARNING_DAYS, or `expired`.

    Args:
        until: The certificate's expiry.
        now: The moment that counts; None for this one.
    """
    left = until - (now or utc_now())
    days = -(-left // datetime.timedelta(days=1))  # rounded up: 0 is over
    if left <= datetime.timedelta(0):
        return "expired"
    return "valid" if days > WARNING_DAYS else f"expires in {days} day{'' if days == 1 else 's'}"


def utc_now() -> datetime.datetime:
    """Return the time in whole seconds, as certificates have it."""
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def parse_certificate(pem: bytes, what: str) -> Certificate:
    """Parse a certificate.

    Args:
        pem: Its text.
        what: What it is, for the error.

    Raises:
        CertificateError: The bytes are no certificate, or its dates cannot be read.
    """
    with extra("lab", PURPOSE):
        from cryptography import x509
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _ = certificate.not_valid_after_utc  # parsed when they are read
    except Exception as problem:  # ValueError mostly, and whatever else the parser has for strangers' bytes
        cause = shortened(problem) or type(problem).__name__
        raise CertificateError(
            f"{what} cannot be read as PEM ({cause}): replace it with what the authority wrote"
        ) from problem
    return certificate


def is_issued_by(certificate: Certificate, authority: Certificate) -> bool:
    """Return whether the authority has signed the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # a wrong issuer, a wrong signature, or a kind of key that cannot verify one
        return False
    return True
