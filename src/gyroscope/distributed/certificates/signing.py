"""Keys and certificates, made and written: EC P-256, as `ssl` and OpenSSL in its strict mode accept them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gyroscope._core.errors import CertificateError
from gyroscope._core.files import write_atomically
from gyroscope._core.foreign_text import shortened
from gyroscope.distributed.certificates.identity import parse_certificate, utc_now
from gyroscope.distributed.certificates.key_files import init_command, read_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateSigningRequest, GeneralName, ObjectIdentifier

_EARLIER = datetime.timedelta(minutes=5)
"""A certificate is valid from before it is made: the clocks of two machines differ."""


def new_key() -> EllipticCurvePrivateKey:
    """Return a new private key."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def sign(
    name: str,
    key: EllipticCurvePrivateKey | CertificateSigningRequest,
    until: datetime.datetime,
    authority: tuple[Certificate, EllipticCurvePrivateKey] | None = None,
    usage: ObjectIdentifier | None = None,
    alternatives: Sequence[GeneralName] = (),
) -> Certificate:
    """Return a certificate.

    Args:
        name: The subject's common name.
        key: The subject's key, or a request that it has signed.
        until: When it expires.
        authority: The issuer's certificate and key; None for the certificate of a new authority, which signs itself.
        usage: What the subject may do: serverAuth or clientAuth. An authority only signs.
        alternatives: The subject's other names.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, issuer_key = (authority[0].subject, authority[1]) if authority else (subject, cast(Any, key))
    is_authority = authority is None
    key_usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(utc_now() - _EARLIER)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
        .add_extension(key_usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if alternatives:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def parse_request(pem: bytes) -> CertificateSigningRequest:
    """Parse a request for a certificate. Of what it asks for only the key counts.

    Raises:
        CertificateError: The bytes are no request that its own key has signed, or the key is of another kind.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

    try:
        request = x509.load_pem_x509_csr(pem)
        key, valid = request.public_key(), request.is_signature_valid
    except Exception as problem:  # ValueError mostly, and whatever else the parser has for strangers' bytes
        cause = shortened(problem) or type(problem).__name__
        raise CertificateError(f"a request for a certificate cannot be read ({cause})") from problem
    if not valid or not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise CertificateError("a request for a certificate is not signed with a key on the curve P-256")
    return request


def pair_of(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the paths of a certificate and of its key."""
    return folder / f"{name}.crt", folder / f"{name}.key"


def write_pairs(
    folder: Path,
    pairs: Mapping[str, tuple[EllipticCurvePrivateKey | CertificateSigningRequest, Certificate]],
) -> None:
    """Write keys, which only their owner may read, and certificates: all of them or, if one fails, none.

    Where there is a request in place of a key, somebody else has the key.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    written: list[Path] = []
    try:
        for name, (key, certificate) in pairs.items():
            certificate_path, key_path = pair_of(folder, name)
            files = [(certificate_path, certificate.public_bytes(Encoding.PEM), 0o666)]
            if isinstance(key, EllipticCurvePrivateKey):
                private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                files.insert(0, (key_path, private, 0o600))
            for path, content, mode in files:
                written.append(path)
                write_atomically(path, content, mode)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def load_authority(folder: Path) -> tuple[Certificate, EllipticCurvePrivateKey]:
    """Load ca.crt and ca.key.

    Raises:
        CertificateError: One of them is missing or cannot be read, or they do not belong together.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate_path, key_path = pair_of(folder, "ca")
    certificate = parse_certificate(
        read_file(certificate_path, f"{init_command(folder)} makes it"), str(certificate_path)
    )
    content = read_file(key_path, "only the machine on which `gyroscope keys init` ran can add workers")
    try:
        key = load_pem_private_key(content, None)
    except Exception as problem:  # no PEM, a password, or a kind of key that is not supported
        raise CertificateError(f"{key_path} is no unencrypted private key in PEM form: restore it") from problem
    if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise CertificateError(f"{key_path} does not belong to {certificate_path}: restore the one that `init` wrote")
    return certificate, key
