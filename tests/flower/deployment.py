"""Real SuperLinks, SuperNodes and `flwr run`: processes in groups of their own, all ended at the end."""

from __future__ import annotations

import contextlib
import csv
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gyroscope.integrations.flower import new_app

PATIENCE = 600.0
"""Seconds until something is taken to be wrong, whatever else the machine does. Only a failure waits for them."""

BIN = Path(sys.executable).parent
HERE = Path(__file__).resolve().parent


class Processes:
    """Start processes with their output in files, and end all of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "flwr-home"
        home.mkdir()
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }

    def start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        with open(self.log(name), "wb") as log:
            process = subprocess.Popen(
                [str(BIN / str(command[0])), *map(str, command[1:])],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started[name] = process
        return process

    def run(self, name: str, *command: object, seconds: float = PATIENCE) -> str:
        process = self.start(name, *command)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(name)
            raise AssertionError(f"{name} takes more than {seconds} s:\n{self.tail()}") from None
        assert code == 0, f"{name} ended with {code}:\n{self.tail()}"
        return self.text(name)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def text(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")

    def tail(self) -> str:
        return "\n".join(f"--- {name}\n{self.text(name)[-3000:]}" for name in self.started)

    def until(self, happened: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        end = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < end, f"{what}: not within {seconds} s\n{self.tail()}"
            time.sleep(0.2)

    def listens(self, name: str, port: int) -> None:
        """Wait until a process listens; raise at once where it has ended instead."""
        self.until(lambda: listening(port) or self.started[name].poll() is not None, f"{name} listens")
        assert self.started[name].poll() is None, self.tail()

    def kill(self, name: str) -> None:
        process = self.started[name]
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self.started):
            process = self.started[name]
            if process.poll() is None:
                # Asked first: Flower's processes end the children that they put into other groups.
                process.terminate()
        end = time.monotonic() + 10
        for name, process in self.started.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            self.kill(name)
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self) -> list[int]:
        """Return descendants in other process groups, recognised by the FLWR_HOME that only they have."""
        mark = f"FLWR_HOME={self.environment['FLWR_HOME']}".encode()
        left = []
        for entry in Path("/proc").glob("[0-9]*"):  # elsewhere than on Linux there is none
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    left.append(int(entry.name))
        return left


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def make_app(folder: Path, byzantine: tuple[int, ...]) -> Path:
    """Write the generated app, changed so that the nodes of these numbers misbehave."""
    app = new_app.write(folder)
    source = (HERE / "misbehaviour.py").read_text(encoding="utf-8")
    switch = "BYZANTINE: tuple[int, ...] = ()"
    assert switch in source
    (app / "robust_app" / "misbehaviour.py").write_text(source.replace(switch, f"BYZANTINE = {byzantine}"))
    client = app / "robust_app" / "client_app.py"
    text = client.read_text(encoding="utf-8")
    assert "mods=[momentum]" in text
    text = text.replace("mods=[momentum]", "mods=[misbehave, momentum]")
    first = "from flwr.clientapp import ClientApp\n"
    client.write_text(text.replace(first, f"{first}from robust_app.misbehaviour import misbehave\n"))
    return app


def connection(processes: Processes, name: str, port: int, certificate: Path | None) -> None:
    how = "insecure = true" if certificate is None else f'root-certificates = "{certificate}"'
    with open(Path(processes.environment["FLWR_HOME"]) / "config.toml", "a", encoding="utf-8") as file:
        file.write(f'[superlink.{name}]\naddress = "127.0.0.1:{port}"\n{how}\n')


def table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reasons(run: Path, number: int) -> list[str]:
    """Return why replies of a round were rejected."""
    rows = table(run / "events.csv") if (run / "events.csv").exists() else []
    return [row["detail"] for row in rows if row["event"] == "rejected" and row["step"] == str(number - 1)]


def certificates(folder: Path) -> Path:
    """Write a CA, and a certificate of it for 127.0.0.1: ca.crt, server.pem, server.key."""
    folder.mkdir()
    now = datetime.datetime.now(datetime.timezone.utc)

    def certificate(name: str, key: Any, issuer: str, signer: Any, extensions: list[tuple[Any, bool]]) -> Any:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(signer, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False)  # fmt: skip
    signs = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage)
    root = certificate(
        "test CA", authority, "test CA", authority, [(x509.BasicConstraints(True, None), True), (signs, True)]
    )
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = certificate(
        "localhost", server, "test CA", authority, [(x509.BasicConstraints(False, None), True), (names, False)]
    )
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(server, serialization.PrivateFormat.PKCS8))
    return folder


def node_key(path: Path) -> Path:
    """Write a SuperNode's key pair, as `ssh-keygen -t ecdsa -b 384` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    path.chmod(0o600)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")
    return path


def _private(key: Any, form: serialization.PrivateFormat) -> bytes:
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


@contextlib.contextmanager
def simulation(folder: Path) -> Iterator[Processes]:
    """Start a SuperLink that simulates its nodes, called `sim`."""
    with Processes(folder) as processes:
        port = free_port()
        connection(processes, "sim", port, None)
        processes.start(
            "superlink", "flower-superlink", "--simulation", "--insecure",
            "--disable-runtime-dependency-installation", "--port", port,
        )  # fmt: skip
        processes.listens("superlink", port)
        yield processes
