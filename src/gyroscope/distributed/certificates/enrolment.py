"""One-time tokens: a worker makes its own key, and the authority signs it for whoever has the token.

    the authority's machine                      the worker's machine
    Invitations(folder, ["worker-3"], ...)       join(host, port, token, folder)

A token holds a secret, by which the authority knows the worker, and the fingerprint of the certificate that the
authority shows, by which the worker knows the authority: it sends nothing to anybody else. The worker's key never
leaves its machine.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gyroscope._core.errors import CertificateError, ConfigError, GyroscopeError, LinkError, StorageError
from gyroscope._core.files import write_atomically
from gyroscope._core.foreign_text import quoted, shortened
from gyroscope._core.optional import extra
from gyroscope.distributed.certificates.authority import add_requested, check_days, check_new_worker
from gyroscope.distributed.certificates.identity import PURPOSE, identity_of, is_issued_by, parse_certificate, utc_now
from gyroscope.distributed.certificates.key_files import read_file
from gyroscope.distributed.certificates.signing import new_key, pair_of, sign

_SECRET = _FINGERPRINT = 15
"""Bytes of either half of a token: 24 letters."""
_LONGEST_REQUEST, _LONGEST_ANSWER = 4096, 16_384
_SECONDS = 10.0
"""How long one connection may take."""
_MOST_CONNECTIONS = 32
"""At a time. Beyond, the oldest goes."""
_MOST_REPORTS = 20
"""How many refused peers are named."""
_POLL_SECONDS = 0.2


class Invitations:
    """Wait for workers that have a token, and give each of them its certificate, once.

    Args:
        folder: the authority's folder, with ca.key.
        names: the workers' names; `worker-3` has the number 3.
        number: the worker's number, where its name does not say it; then there is one name only.
        days: for how long certificates are valid; None as for `add_worker`.
        host: the address to listen on; "" for all.
        port: the port, 0 for any that is free.

    Raises:
        CertificateError: a name or number is taken, or the authority's files cannot be used.
        ConfigError: a name, or the address, cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        names: list[str],
        number: int | None = None,
        days: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        with extra("lab", PURPOSE):
            import cryptography  # noqa: F401
        if len(set(names)) < len(names):
            raise ConfigError("a worker is named twice: name each once")
        self.folder, self.number, self.days = Path(folder), number, days
        numbers = [check_new_worker(folder, name, number) for name in names]
        if len(set(numbers)) < len(numbers):
            raise ConfigError("two of the names have the same number: a number belongs to one worker")
        check_days(folder, days)
        self._context, fingerprint = _own_context()
        self._secrets = {name: secrets.token_bytes(_SECRET) for name in names}
        self.tokens = {name: _text(secret + fingerprint) for name, secret in self._secrets.items()}
        """The token of each worker, by name."""
        self._lock, self._refused = threading.Lock(), 0
        self._served: dict[socket.socket, threading.Thread] = {}
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=_MOST_CONNECTIONS)
        except (OSError, OverflowError) as problem:
            raise ConfigError(f"cannot listen at {host or 'all addresses'}, port {port} ({problem})") from problem
        self.port: int = self._listener.getsockname()[1]

    def wait(self, seconds: float, report: Callable[[str], None] = lambda text: None) -> list[str]:
        """Serve until all have come, or the time is over; return the names of those that have not come.

        Args:
            seconds: how long tokens are valid.
            report: called with a line of text for each worker that comes, and for each peer that is refused.
        """
        until = time.monotonic() + seconds
        self._listener.settimeout(_POLL_SECONDS)
        with self._listener:
            while self._secrets and time.monotonic() < until:
                try:
                    connected, address = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:  # somebody has gone already, or there are no descriptors for a moment
                    time.sleep(_POLL_SECONDS)
                    continue
                self._make_room()
                served = threading.Thread(target=self._serve, args=(connected, address[0], report), daemon=True)
                self._served[connected] = served
                served.start()
        for served in list(self._served.values()):  # the last one gets its answer
            served.join(_SECONDS)
        with self._lock:
            left, self._secrets = list(self._secrets), {}
        return left

    def _make_room(self) -> None:
        """Close the oldest connection where there are too many: a worker needs a fraction of a second."""
        served = list(self._served)  # threads remove theirs meanwhile
        for oldest in served[: max(0, len(served) + 1 - _MOST_CONNECTIONS)]:
            self._served.pop(oldest, None)
            _shut(oldest)

    def _serve(self, connected: socket.socket, peer: str, report: Callable[[str], None]) -> None:
        timer = threading.Timer(_SECONDS, _shut, [connected])
        timer.daemon = True
        try:
            timer.start()
            with connected:
                said = self._exchange(connected, peer)
            self._refused += said.startswith("refused")
            if not said.startswith("refused") or self._refused <= _MOST_REPORTS:
                with contextlib.suppress(OSError):  # nobody reads the output any more
                    report(said)
        finally:
            timer.cancel()
            self._served.pop(connected, None)

    def _exchange(self, connected: socket.socket, peer: str) -> str:
        """Answer one peer; return a line for the operator."""
        try:
            duplicate = connected.dup()  # `connected` stays open, to be shut down by others
            with self._context.wrap_socket(duplicate, server_side=True, do_handshake_on_connect=False) as link:
                link.do_handshake()
                answer, said = self._answer(_receive(link, _LONGEST_REQUEST))
                link.sendall(json.dumps(answer).encode() + b"\n")
                return f"{said} ({peer})"
        except (OSError, ValueError, RecursionError, GyroscopeError) as problem:
            return f"refused {peer}: {shortened(problem)}"

    def _answer(self, said: Any) -> tuple[dict[str, str], str]:
        """Return what to answer, and a line for the operator."""
        secret = _bytes(str(said.get("secret"))) if isinstance(said, dict) else b""
        with self._lock:
            name = next((name for name, own in self._secrets.items() if hmac.compare_digest(own, secret)), None)
            if name is None:
                why = "there is no such token: it was used, has expired, or is another invitation's"
                return {"error": why}, f"refused: {why}"
            try:
                certificate = add_requested(
                    self.folder, name, str(said.get("request")).encode(), self.number, self.days
                )
            except GyroscopeError as problem:
                return {"error": "the authority could not issue the certificate"}, f"{name}: {problem}"
            del self._secrets[name]
        authority = read_file(self.folder / "ca.crt", "restore it").decode()
        return {"certificate": certificate.decode(), "authority": authority}, f"{name} has its certificate"


def join(host: str, port: int, token: str, folder: str | os.PathLike[str]) -> Path:
    """Make a key, and have it signed by the authority that gave the token.

    Args:
        host, port: where the authority waits.
        token: the worker's token, which counts once.
        folder: where NAME.key, NAME.crt and ca.crt go.

    Returns:
        The path of the certificate.

    Raises:
        ConfigError: the token cannot be read.
        LinkError: nobody answers there, or somebody else than the authority, or the authority does not know the token.
        CertificateError: the folder has another authority's certificate, or a file of that name.
        StorageError: the disk refuses a write.
    """
    with extra("lab", PURPOSE):
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    content = _bytes(token)
    if len(content) != _SECRET + _FINGERPRINT:
        raise ConfigError(
            f"{quoted(token)} is no token: copy the 48 letters and digits that gyroscope keys invite printed"
        )
    _prepare(Path(folder))
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker")])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    said = {"secret": _text(content[:_SECRET]), "request": request.public_bytes(Encoding.PEM).decode()}
    answer = _ask(host, port, content[_SECRET:], said)
    if "error" in answer:
        raise LinkError(
            f"the authority at {host}:{port} refuses: {shortened(answer['error'], 200)}. Ask for another token"
        )
    certificate, authority = (str(answer.get(name)).encode() for name in ("certificate", "authority"))
    who = identity_of(certificate)
    own = parse_certificate(certificate, "the certificate that the authority sent")
    if own.public_key() != key.public_key() or not is_issued_by(own, parse_certificate(authority, "its own")):
        raise LinkError(f"the authority at {host}:{port} sent a certificate that is not for this worker's key")
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _write(Path(folder), who.name, private, certificate, authority)
    return pair_of(Path(folder), who.name)[0]


def _write(folder: Path, name: str, private: bytes, certificate: bytes, authority: bytes) -> None:
    """Write the three files. Those of the authority's own folder, where it may be, are there already."""
    (public, key), known = pair_of(folder, name), folder / "ca.crt"
    wanted = {known: authority, public: certificate}
    for path, content in wanted.items():
        if path.exists() and path.read_bytes() != content:
            raise CertificateError(f"{path} is there already, and another one: choose another --folder. {_USED_UP}")
    if os.path.lexists(key):
        raise CertificateError(f"{key} is there already: choose another --folder. {_USED_UP}")
    try:
        write_atomically(key, private, 0o600)
        for path, content in wanted.items():
            if not path.exists():
                write_atomically(path, content, 0o666)
    except BaseException as problem:
        key.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise StorageError(f"cannot write to {folder} ({problem.strerror or problem}). {_USED_UP}") from problem
        raise


_USED_UP = "The token is used up"


def _prepare(folder: Path) -> None:
    """Make sure that the folder can be written to, before a token is used."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        cause = problem.strerror or problem
        raise StorageError(f"cannot write to {folder} ({cause}): choose another --folder") from problem


def _ask(host: str, port: int, fingerprint: bytes, said: Mapping[str, str]) -> dict[str, Any]:
    """Send a request to whoever has the certificate of this fingerprint, and return the answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # No authority is known yet, and no name is checked: the token says which certificate it must be.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host) as link,
        ):
            link.settimeout(_SECONDS)
            shown = _fingerprint(link.getpeercert(binary_form=True) or b"")
            if not hmac.compare_digest(shown, fingerprint):
                raise LinkError(
                    f"somebody else than the authority that made the token answers at {host}:{port}; nothing was sent. "
                    "Ask for another token, and look at the network"
                )
            link.sendall(json.dumps(dict(said)).encode() + b"\n")
            answer = _receive(link, _LONGEST_ANSWER)
    except (OSError, ValueError, RecursionError) as problem:
        raise LinkError(
            f"no authority answers at {host}:{port} ({shortened(problem)}): is gyroscope keys invite running there?"
        ) from problem
    if not isinstance(answer, dict):
        raise LinkError(f"what the authority at {host}:{port} answers cannot be read")
    return answer


def _receive(link: ssl.SSLSocket, longest: int) -> Any:
    """Return a line of JSON; ValueError where it is none, or too long."""
    content = bytearray()
    while not content.endswith(b"\n"):
        piece = link.recv(longest)
        content += piece
        if not piece or len(content) > longest:
            raise ValueError("it ended early, or took too long" if not piece else f"it sent more than {longest} bytes")
    return json.loads(content)


def _shut(connected: socket.socket) -> None:
    """End a connection, whoever reads from it or writes to it."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _own_context() -> tuple[ssl.SSLContext, bytes]:
    """Return the context of a server with a new certificate, and its fingerprint."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = new_key()
    certificate = sign("gyroscope invitation", key, utc_now() + datetime.timedelta(days=2))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.TemporaryDirectory() as folder:  # its owner's only; ssl takes files and nothing else
        path = Path(folder, "invitation.pem")
        path.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM)
        )
        context.load_cert_chain(path)
    return context, _fingerprint(certificate.public_bytes(Encoding.DER))


def _fingerprint(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()[:_FINGERPRINT]


def _text(content: bytes) -> str:
    return base64.b32encode(content).decode().lower()


def _bytes(text: str) -> bytes:
    """Return what `_text` has written; empty for anything else."""
    try:
        return base64.b32decode(text.strip().upper().encode())
    except ValueError:
        return b""
