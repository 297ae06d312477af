"""TLS 1.3 with certificates on both sides, from the standard library."""

from __future__ import annotations

import ssl
import warnings
from collections.abc import Sequence
from pathlib import Path

from gyroscope.distributed.certificates import ServerKeys, WorkerKeys


def server_context(folder: Path) -> ssl.SSLContext:
    """Return the context of a server, which asks every worker for a certificate.

    Raises:
        CertificateError: A file is missing, or does not belong to the others.
    """
    keys = ServerKeys.load(folder)
    _warn(keys.warnings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # every connection shows its certificate again
    return _filled(context, keys.authority, folder / "server.crt")


def worker_context(certificate: Path) -> ssl.SSLContext:
    """Return the context of the worker with this certificate; its key and ca.crt lie beside it.

    Raises:
        CertificateError: A file is missing, or does not belong to the others.
    """
    keys = WorkerKeys.load(certificate.parent, certificate.stem)
    _warn(keys.warnings)
    return _filled(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), keys.authority, certificate)


def _filled(context: ssl.SSLContext, authority: bytes, certificate: Path) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority.decode("ascii"))
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


def _warn(texts: Sequence[str]) -> None:
    for text in texts:
        warnings.warn(text, stacklevel=3)
