"""The files that a server and a worker load before they speak TLS, checked so that an error names the file."""

from __future__ import annotations

import dataclasses
import datetime
import os
import shlex
import stat
from pathlib import Path

from gyroscope._core.errors import CertificateError
from gyroscope.distributed.certificates.identity import (
    WorkerIdentity,
    identity_of,
    is_issued_by,
    parse_certificate,
    validity,
)
from gyroscope.distributed.certificates.revocation import REVOKED


@dataclasses.dataclass(frozen=True)
class ServerKeys:
    """What the server needs: PEM bytes for TLS, and the file that says who is revoked."""

    authority: bytes
    """ca.crt: who may issue workers' certificates."""
    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    revoked: Path
    """For `RevocationList`. There may be no such file."""
    expiry: datetime.datetime
    """When the first of the two certificates expires."""
    warnings: tuple[str, ...] = ()
    """What the operator should hear: a key that others may read, a certificate that expires soon."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ServerKeys:
        """Load ca.crt, server.crt and server.key from a folder.

        Raises:
            CertificateError: A file is missing or cannot be read, or they do not belong together.
        """
        folder = Path(folder)
        remedy = f"{init_command(folder)} makes it"
        authority = read_file(folder / "ca.crt", remedy)
        certificate = read_file(folder / "server.crt", remedy)
        key = read_file(folder / "server.key", remedy)
        until, warnings = _check(folder, "server", authority, certificate, key)
        return cls(authority, certificate, key, folder / REVOKED, until, warnings)


@dataclasses.dataclass(frozen=True)
class WorkerKeys:
    """What a worker needs: PEM bytes for TLS, and who it is."""

    authority: bytes
    """ca.crt: who may issue the server's certificate."""
    certificate: bytes
    key: bytes = dataclasses.field(repr=False)
    identity: WorkerIdentity
    expiry: datetime.datetime
    """When the first of the two certificates expires."""
    warnings: tuple[str, ...] = ()
    """What the operator should hear: a key that others may read, a certificate that expires soon."""

    @classmethod
    def load(cls, folder: str | os.PathLike[str], name: str | None = None) -> WorkerKeys:
        """Load ca.crt, NAME.crt and NAME.key from a folder.

        Args:
            folder: The folder.
            name: The worker's name; None where the folder has one worker's key only.

        Raises:
            CertificateError: A file is missing or cannot be read, they do not belong together, or there are several
                workers' keys and no name.
        """
        folder = Path(folder)
        if name is None:
            names = sorted(path.stem for path in folder.glob("*.key") if path.stem not in ("ca", "server"))
            if not names:
                raise CertificateError(
                    f"{folder} has no worker's key: copy NAME.crt and NAME.key from where gyroscope keys add NAME ran"
                )
            if len(names) > 1:
                raise CertificateError(f"{folder} has {len(names)} workers' keys ({', '.join(names[:5])}): name one")
            (name,) = names
        source = f"copy it from the machine where `gyroscope keys add {shlex.quote(name)}` makes it"
        certificate, key = read_file(folder / f"{name}.crt", source), read_file(folder / f"{name}.key", source)
        authority = read_file(folder / "ca.crt", "copy it, too, from the folder that this certificate comes from")
        until, warnings = _check(folder, name, authority, certificate, key)
        return cls(authority, certificate, key, identity_of(certificate), until, warnings)


def _check(
    folder: Path, name: str, authority: bytes, certificate: bytes, key: bytes
) -> tuple[datetime.datetime, tuple[str, ...]]:
    """Return when the certificates expire, and warnings. TLS would report the same mistakes without naming a file."""
    paths = [folder / f"{name}.crt", folder / "ca.crt"]
    own, issuer = (parse_certificate(pem, str(path)) for pem, path in zip((certificate, authority), paths, strict=True))
    if not is_issued_by(own, issuer):
        raise CertificateError(f"{paths[0]} was not issued by the authority of {paths[1]}: copy both from one folder")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key_path = folder / f"{name}.key"
    try:
        matches = load_pem_private_key(key, None).public_key() == own.public_key()
    except Exception as problem:  # no PEM, a password, or a kind of key that is not supported
        raise CertificateError(f"{key_path} is no unencrypted private key in PEM form: copy it again") from problem
    if not matches:
        raise CertificateError(f"{key_path} does not belong to {paths[0]}: copy both from one folder")
    warnings = []
    if os.name == "posix" and (mode := stat.S_IMODE(key_path.stat().st_mode)) & 0o077:
        warnings.append(f"other users of this machine may read {key_path} (mode {mode:04o}): chmod 600 {key_path}")
    untils = [own.not_valid_after_utc, issuer.not_valid_after_utc]
    for path, until in zip(paths, untils, strict=True):
        if (state := validity(until)) != "valid":
            warnings.append(f"{path} {state} ({until:%Y-%m-%d %H:%M} UTC): make a new one with gyroscope keys")
    return min(untils), tuple(warnings)


def read_file(path: Path, remedy: str) -> bytes:
    """Read a file.

    Args:
        path: The file.
        remedy: What to do if it is missing.

    Raises:
        CertificateError: The file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError as problem:
        raise CertificateError(f"{path} is missing: {remedy}") from problem
    except OSError as problem:
        raise CertificateError(
            f"cannot read {path} ({problem.strerror}): let the user who runs this read it"
        ) from problem


def init_command(folder: Path) -> str:
    """Return the command that makes an authority in this folder."""
    return f"gyroscope keys init{folder_option(folder)} --host ADDR"


def folder_option(folder: Path) -> str:
    """Return the option that names this folder; empty for the default one."""
    return "" if folder == Path("keys") else f" --folder {shlex.quote(str(folder))}"
