"""The authority: it issues the server's and the workers' certificates as files of one folder, and revokes them."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyroscope._core.errors import CertificateError, ConfigError, StorageError
from gyroscope._core.files import write_atomically
from gyroscope._core.foreign_text import quoted, shortened
from gyroscope._core.optional import extra
from gyroscope.distributed.certificates.identity import (
    NAME,
    NUMBER,
    PURPOSE,
    URN,
    WorkerIdentity,
    identity_of,
    is_issued_by,
    parse_certificate,
    utc_now,
    validity,
)
from gyroscope.distributed.certificates.key_files import folder_option, init_command, read_file
from gyroscope.distributed.certificates.revocation import HEADER, REVOKED, RevocationList, parse_revoked
from gyroscope.distributed.certificates.signing import (
    load_authority,
    new_key,
    pair_of,
    parse_request,
    sign,
    write_pairs,
)

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, CertificateSigningRequest, GeneralName

AUTHORITY_DAYS, WORKER_DAYS = 1825, 365
"""For how many days an authority with its server's certificate, and a worker's, are valid unless told otherwise."""
_LONGEST_DAYS = 36_500
_OWN = ("ca", "server")
"""Names that no worker may have."""
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def create_authority(folder: str | os.PathLike[str], hosts: Sequence[str] = (), days: int = AUTHORITY_DAYS) -> None:
    """Create an authority and its server's certificate: ca.crt, ca.key, server.crt, server.key and revoked.txt.

    Args:
        folder: Where the files go; if it is missing it is created, and is its owner's only.
        hosts: Names and addresses at which workers reach the server. localhost, 127.0.0.1 and ::1 are always added.
        days: For how long both certificates are valid.

    Raises:
        CertificateError: The folder has an authority, or a part of one. Nothing is overwritten.
        ConfigError: A host or the number of days cannot be used.
        StorageError: The disk refuses a write.
    """
    with extra("lab", PURPOSE):
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID
    folder, until = Path(folder), _until(days)
    names: list[GeneralName] = []
    for host in dict.fromkeys(_host(host) for host in (*hosts, "localhost", "127.0.0.1", "::1")):
        names.append(x509.DNSName(host) if isinstance(host, str) else x509.IPAddress(host))
    with _changing(folder, create=True):
        existing = [path for name in _OWN for path in pair_of(folder, name) if os.path.lexists(path)]
        if existing:
            raise CertificateError(
                f"{existing[0]} is there already, and a new authority would shut out the workers of the old one: "
                "choose another --folder, or move the old files away"
            )
        ca_key, server_key = new_key(), new_key()
        ca = sign("Gyroscope authority", ca_key, until)
        server = sign("gyroscope server", server_key, until, (ca, ca_key), ExtendedKeyUsageOID.SERVER_AUTH, names)
        if not (folder / REVOKED).exists():
            write_atomically(folder / REVOKED, HEADER.encode())
        write_pairs(folder, {"ca": (ca_key, ca), "server": (server_key, server)})


def add_worker(
    folder: str | os.PathLike[str], name: str, number: int | None = None, days: int | None = None
) -> WorkerIdentity:
    """Create a worker's certificate and key: NAME.crt and NAME.key.

    A lost key is replaced under a new name: a number is free as soon as the certificate that has it is revoked or has
    expired. The folder's *.crt are the authority's record of that, so they stay there; a *.key may be moved away.

    Args:
        folder: The authority's folder.
        name: Letters, digits, `.`, `_` and `-`, at most 64. `worker-3` has the number 3.
        number: The worker's number, from 0; any other name needs it.
        days: For how long the certificate is valid; None means WORKER_DAYS, or until the authority expires.

    Raises:
        CertificateError: The name exists, a valid certificate has the number, or the authority's files cannot be used.
        ConfigError: The name, the number or the number of days cannot be used.
        StorageError: The disk refuses a write.
    """
    return _add(Path(folder), {name: _checked_number(_checked_name(name), number)}, days)[0]


def add_workers(folder: str | os.PathLike[str], names: Sequence[str], days: int | None = None) -> list[WorkerIdentity]:
    """Create certificates and keys of workers whose names say their numbers: all of them or, if one fails, none.

    A thousand take seconds: the folder is read once, not once for each of them. Args and Raises: see `add_worker`.
    """
    numbers = {name: _checked_number(_checked_name(name), None) for name in names}
    if len(numbers) < len(names):
        raise ConfigError(f"{shortened(_repeated(names))} is named twice: name each worker once")
    return _add(Path(folder), numbers, days)


def add_requested(
    folder: str | os.PathLike[str], name: str, request: bytes, number: int | None = None, days: int | None = None
) -> bytes:
    """Create the certificate, NAME.crt, of a worker that has made its key itself, and return it.

    Args:
        folder, name, number, days: As of `add_worker`.
        request: The worker's request, signed with its key, as PEM.

    Raises:
        CertificateError: As of `add_worker`, and where the request cannot be used.
    """
    subject = parse_request(request)
    _add(Path(folder), {name: _checked_number(_checked_name(name), number)}, days, {name: subject})
    return pair_of(Path(folder), name)[0].read_bytes()


def check_new_worker(folder: str | os.PathLike[str], name: str, number: int | None = None) -> int:
    """Return the number of a worker that can be added under this name.

    Raises:
        CertificateError, ConfigError: As of `add_worker`.
    """
    load_authority(Path(folder))
    number = _checked_number(_checked_name(name), number)
    _check_free(Path(folder), name, number, _taken(Path(folder)))
    return number


def check_days(folder: str | os.PathLike[str], days: int | None) -> None:
    """Raise a ConfigError unless a certificate can be valid for so long."""
    ca, _ = load_authority(Path(folder))
    _valid_until(Path(folder), ca, days, "a worker")


def _valid_until(folder: Path, ca: Certificate, days: int | None, name: str) -> datetime.datetime:
    """Return until when a new certificate is valid."""
    last = ca.not_valid_after_utc
    until = min(_until(WORKER_DAYS), last) if days is None else _until(days)
    if not utc_now() < until <= last:
        raise ConfigError(
            f"{name}'s certificate cannot be valid until {until:%Y-%m-%d}: the authority in {folder} "
            f"expires on {last:%Y-%m-%d}. Choose fewer --days, or make a new authority in another --folder"
        )
    return until


def _repeated(names: Sequence[str]) -> str:
    return next(name for place, name in enumerate(names) if name in names[:place])


def _add(
    folder: Path,
    numbers: Mapping[str, int],
    days: int | None,
    requests: Mapping[str, CertificateSigningRequest] | None = None,
) -> list[WorkerIdentity]:
    """Create the certificates of these workers, by name, and the keys of those that have not requested theirs."""
    with extra("lab", PURPOSE):
        from cryptography.x509 import UniformResourceIdentifier
        from cryptography.x509.oid import ExtendedKeyUsageOID
    ca, ca_key = load_authority(folder)
    until = _valid_until(folder, ca, days, next(iter(numbers)))
    with _changing(folder):
        taken, pairs = _taken(folder), {}
        for name, number in numbers.items():
            _check_free(folder, name, number, taken)
            key, uri = (requests or {}).get(name) or new_key(), UniformResourceIdentifier(f"{URN}{number}")
            pairs[name] = (key, sign(name, key, until, (ca, ca_key), ExtendedKeyUsageOID.CLIENT_AUTH, [uri]))
        write_pairs(folder, pairs)
    return [WorkerIdentity(name, numbers[name], pairs[name][1].serial_number) for name in numbers]


def _taken(folder: Path) -> dict[int | None, IssuedCertificate]:
    """Return the certificates that count, by number."""
    return {each.number: each for each in issued(folder) if each.state not in ("expired", "revoked")}


def _check_free(folder: Path, name: str, number: int, taken: Mapping[int | None, IssuedCertificate]) -> None:
    """Raise where a worker's name or number is another one's."""
    for path in pair_of(folder, name):
        if os.path.lexists(path):
            raise CertificateError(
                f"{path} is there already, and no key is overwritten: choose another name with --number "
                f"{number}, and revoke {name} before if its key is lost"
            )
    if other := taken.get(number):
        raise CertificateError(
            f"{other.name} has the number {number}, and is valid until {other.expiry:%Y-%m-%d}: choose another "
            f"number, or revoke it (gyroscope keys revoke {other.name}{folder_option(folder)})"
        )


def revoke(folder: str | os.PathLike[str], name: str) -> WorkerIdentity:
    """Add a worker's certificate to revoked.txt. To revoke it once more changes nothing.

    Args:
        folder: The folder that has the worker's certificate.
        name: The worker's name.

    Returns:
        Whose certificate it is.

    Raises:
        CertificateError: NAME.crt is missing, not a worker's, or another authority's, or revoked.txt has a line that
            cannot be read.
        ConfigError: No worker can have this name.
        StorageError: The disk refuses the write.
    """
    folder, path = Path(folder), Path(folder) / REVOKED
    remedy = f"gyroscope keys list{folder_option(folder)} shows the names; if it was moved, copy it back"
    certificate_path, _ = pair_of(folder, _checked_name(name))
    pem = read_file(certificate_path, remedy)
    who = identity_of(pem)
    if not is_issued_by(parse_certificate(pem, str(certificate_path)), _authority_certificate(folder)):
        raise CertificateError(
            f"{certificate_path} is another authority's, and to revoke it here would leave {who.name}'s in force: "
            "replace it with the one that this authority has issued"
        )
    with _changing(folder):
        content = path.read_bytes() if path.exists() else HEADER.encode()
        if who.serial not in parse_revoked(content, path):
            end = b"" if content.endswith(b"\n") or not content else b"\n"
            line = f"{who.serial:x} {who.name} {utc_now():%Y-%m-%d}\n"
            write_atomically(path, content + end + line.encode())
    return who


@dataclasses.dataclass(frozen=True)
class IssuedCertificate:
    """A certificate in an authority's folder."""

    name: str
    number: int | None
    """The worker's; None for the authority's certificate (`ca`) and the server's."""
    expiry: datetime.datetime
    state: str
    """`valid`, `expires in N days`, `expired` or `revoked`."""


def issued(folder: str | os.PathLike[str]) -> list[IssuedCertificate]:
    """List the authority's and the server's certificate and the workers', ordered by number.

    Certificates of another authority are left out.

    Raises:
        CertificateError: ca.crt is missing, or a *.crt or revoked.txt cannot be read.
    """
    folder = Path(folder)
    ca = _authority_certificate(folder)
    revoked = RevocationList(folder / REVOKED)
    found = []
    for path in folder.glob("*.crt"):
        pem = read_file(path, "another process has removed it; try again")
        certificate = parse_certificate(pem, str(path))
        if not is_issued_by(certificate, ca):
            continue
        who = None
        with contextlib.suppress(CertificateError):
            who = identity_of(pem)
        until = certificate.not_valid_after_utc
        state = "revoked" if revoked.is_revoked(certificate.serial_number) else validity(until)
        found.append(IssuedCertificate(who.name if who else path.stem, who.number if who else None, until, state))
    return sorted(found, key=lambda each: (-1 if each.number is None else each.number, each.expiry, each.name))


# -- what the functions above are made of ------------------------------------------------------------------------------


def _authority_certificate(folder: Path) -> Certificate:
    path, _ = pair_of(folder, "ca")
    return parse_certificate(read_file(path, f"{init_command(folder)} makes it"), str(path))


def _checked_name(name: str) -> str:
    if not NAME.fullmatch(name) or name.lower() in _OWN:
        raise ConfigError(
            f"{quoted(name)} cannot be a worker's name: choose at most 64 letters, digits, '.', '_' and '-' that begin "
            "with a letter or a digit, but not ca or server; for example worker-3"
        )
    return name


def _checked_number(name: str, number: int | None) -> int:
    word, _, digits = name.rpartition("-")
    own = int(digits) if word == "worker" and NUMBER.fullmatch(digits) else None
    if number is None and own is None:
        raise ConfigError(f"the name {name} does not say which worker it is: add --number, or call it worker-3 or so")
    if own is not None and number not in (None, own):
        raise ConfigError(f"{name} has the number {own}, not {number}: leave out --number, or choose another name")
    number = own if number is None else number
    if not isinstance(number, int) or not NUMBER.fullmatch(str(number)):
        raise ConfigError(f"a worker's number must be a whole number from 0 to 999999999, got {shortened(number)}")
    return number


def _host(host: str) -> str | ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return a host as an address if it is one, otherwise as a name, checked."""
    address, labels = None, host.split(".")
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    if address and (address.is_unspecified or "%" in host):
        raise ConfigError(f"no worker can reach a server at {quoted(host)}: name one address of its machine")
    if address:
        return address
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or labels[-1].isdigit():
        raise ConfigError(
            f"{quoted(host)} is neither a host name nor an address: write it without a port, such as "
            "node1.example.org, 10.0.0.5 or fd00::5"
        )
    return host.lower()


def _until(days: int) -> datetime.datetime:
    if not isinstance(days, int) or not 1 <= days <= _LONGEST_DAYS:
        raise ConfigError(f"days must be a whole number from 1 to {_LONGEST_DAYS}, got {shortened(days)}")
    return utc_now() + datetime.timedelta(days=days)


@contextlib.contextmanager
def _changing(folder: Path, create: bool = False) -> Iterator[None]:
    """Let one process at a time change the folder, or of two that revoke at the same moment one would be forgotten."""
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError):  # a system without it relies on its user
                import fcntl

                lock = os.open(folder, os.O_RDONLY)
                stack.callback(os.close, lock)  # which releases it
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as problem:
        cause = problem.strerror or problem
        raise StorageError(
            f"cannot write to {folder} ({cause}): make room or get access, or choose another --folder"
        ) from problem
