"""One-time tokens: a worker makes its own key, over real TLS connections, and what strangers can do meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyroscope._core.errors import CertificateError, ConfigError, LinkError, StorageError
from gyroscope.cli import main
from gyroscope.distributed import tls
from gyroscope.distributed.certificates import Invitations, WorkerKeys, add_worker, create_authority, enrolment, join

HOST = "127.0.0.1"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    create_authority(tmp_path / "keys")
    return tmp_path / "keys"


class Waiting:
    """Invitations that wait in a thread."""

    def __init__(self, invitations: Invitations, seconds: float = 20.0) -> None:
        self.invitations, self.port, self.tokens = invitations, invitations.port, invitations.tokens
        self.said: list[str] = []
        self.left: list[str] = []
        self.thread = threading.Thread(target=self._wait, args=(seconds,))
        self.thread.start()

    def _wait(self, seconds: float) -> None:
        self.left = self.invitations.wait(seconds, self.said.append)


@contextlib.contextmanager
def waiting(keys: Path, *names: str, seconds: float = 20.0) -> Iterator[Waiting]:
    found = Waiting(Invitations(keys, list(names)), seconds)
    try:
        yield found
    finally:
        found.invitations._secrets.clear()
        found.thread.join()


def stranger(port: int) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((HOST, port), 10))


def test_a_worker_with_a_token_gets_a_certificate_that_the_server_accepts(keys: Path, tmp_path: Path) -> None:
    with waiting(keys, "worker-3", "worker-4") as authority:
        path = join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "mine")
        other = join(HOST, authority.port, authority.tokens["worker-4"].upper(), tmp_path / "other")
        authority.thread.join(10)
    assert authority.left == [] and len(authority.said) == 2
    found = WorkerKeys.load(path.parent)
    assert (found.identity.name, found.identity.number) == ("worker-3", 3) and not found.warnings
    assert other.name == "worker-4.crt"
    assert not (keys / "worker-3.key").exists()  # the key never left the worker
    assert (keys / "worker-3.crt").read_bytes() == path.read_bytes()  # the authority's record
    assert stat.S_IMODE(path.with_suffix(".key").stat().st_mode) == 0o600
    to_server, to_worker = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = tls.server_context(keys).wrap_bio(to_server, to_worker, server_side=True)
    worker = tls.worker_context(path).wrap_bio(to_worker, to_server, server_hostname="localhost")
    for side in (worker, server, worker, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    assert server.getpeercert()


def test_a_token_counts_once(keys: Path, tmp_path: Path) -> None:
    with waiting(keys, "worker-3", "worker-4") as authority:
        token = authority.tokens["worker-3"]
        join(HOST, authority.port, token, tmp_path / "first")
        with pytest.raises(LinkError, match="there is no such token: it was used"):
            join(HOST, authority.port, token, tmp_path / "second")
    assert not list((tmp_path / "second").iterdir())


def test_a_token_expires(keys: Path, tmp_path: Path) -> None:
    with waiting(keys, "worker-3", seconds=0.3) as authority:
        authority.thread.join(10)
        assert authority.left == ["worker-3"]
        with pytest.raises(LinkError, match="is gyroscope keys invite running there"):
            join(HOST, authority.port, authority.tokens["worker-3"], tmp_path)
    assert not list(tmp_path.glob("*.crt"))


def test_nothing_is_sent_to_somebody_else(keys: Path, tmp_path: Path) -> None:
    """Another authority answers where ours is expected: it does not hear the secret."""
    create_authority(tmp_path / "other")
    with waiting(keys, "worker-3") as ours, waiting(tmp_path / "other", "worker-3") as theirs:
        with pytest.raises(LinkError, match="somebody else than the authority"):
            join(HOST, theirs.port, ours.tokens["worker-3"], tmp_path / "mine")
        time.sleep(0.2)
        assert all("it ended early" in line for line in theirs.said)
        join(HOST, ours.port, ours.tokens["worker-3"], tmp_path / "mine")  # the token is still good


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"[]\n",
        b"[" * 4000 + b"\n",
        b'{"secret": 3}\n',
        b'{"secret": "aaaa"}\n',
        b"x" * 10_000,
        json.dumps({"secret": enrolment._text(bytes(15)), "request": "none"}).encode() + b"\n",
    ],
)
def test_what_is_no_request_gets_nothing(keys: Path, content: bytes) -> None:
    with waiting(keys, "worker-3") as authority, stranger(authority.port) as link:
        with contextlib.suppress(OSError):
            link.sendall(content)
            assert b"certificate" not in link.recv(10_000)
        with contextlib.suppress(OSError):
            link.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + 10
        while not authority.said and time.monotonic() < deadline:
            time.sleep(0.02)
        assert authority.said[0].startswith("refused")
    assert not (keys / "worker-3.crt").exists()


def test_a_right_token_with_a_wrong_request_is_not_used_up(keys: Path, tmp_path: Path) -> None:
    with waiting(keys, "worker-3") as authority:
        secret = enrolment._text(enrolment._bytes(authority.tokens["worker-3"])[:15])
        with stranger(authority.port) as link:
            link.sendall(json.dumps({"secret": secret, "request": "none"}).encode() + b"\n")
            assert b"could not issue" in link.recv(10_000)
        join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "mine")


def test_somebody_who_says_nothing_is_shut_out_and_keeps_nobody_waiting(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrolment, "_SECONDS", 1.0)
    with waiting(keys, "worker-3") as authority, contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection((HOST, authority.port), 10)) for _ in range(50)]
        path = join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "mine")
        assert path.exists()
        for peer in held:
            peer.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while peer.recv(1000):
                    pass


@given(text=st.text(max_size=80))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_no_token_is_said_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is no token"):
        join(HOST, 1, text, tmp_path / "mine")


def test_names_and_numbers_are_checked_before_a_token_is_made(keys: Path) -> None:
    add_worker(keys, "worker-3")
    with pytest.raises(CertificateError, match=r"worker-3\.crt is there already"):
        Invitations(keys, ["worker-3"])
    with pytest.raises(CertificateError, match="worker-3 has the number 3"):
        Invitations(keys, ["hospital"], number=3)
    with pytest.raises(ConfigError, match="named twice"):
        Invitations(keys, ["worker-5", "worker-5"])
    with pytest.raises(ConfigError, match="does not say which worker it is"):
        Invitations(keys, ["hospital"])
    for days, why in ((0, "days must be"), (5000, "the authority in")):
        with pytest.raises(ConfigError, match=why):
            Invitations(keys, ["worker-5"], days=days)


def test_another_authority_s_folder_is_left_alone(keys: Path, tmp_path: Path) -> None:
    create_authority(tmp_path / "other")
    before = sorted(path.name for path in (tmp_path / "other").iterdir())
    with waiting(keys, "worker-3") as authority, pytest.raises(CertificateError, match="and another one"):
        join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "other")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == before


def test_the_authority_s_own_folder_may_be_the_worker_s(keys: Path) -> None:
    with waiting(keys, "worker-3") as authority:
        path = join(HOST, authority.port, authority.tokens["worker-3"], keys)
    assert WorkerKeys.load(keys, "worker-3").identity.number == 3 and path == keys / "worker-3.crt"


def test_a_folder_that_cannot_be_written_to_does_not_use_up_the_token(keys: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with waiting(keys, "worker-3") as authority:
        with pytest.raises(StorageError, match="choose another --folder"):
            join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "file")
        join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "mine")


def test_a_key_is_not_left_behind_where_the_certificate_cannot_be_written(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = enrolment.write_atomically

    def failing(path: Path, content: bytes, mode: int = 0o666) -> None:
        if path.suffix == ".crt":
            raise OSError(errno.ENOSPC, "no space")
        whole(path, content, mode)

    with waiting(keys, "worker-3") as authority:
        monkeypatch.setattr(enrolment, "write_atomically", failing)
        with pytest.raises(StorageError, match="The token is used up"):
            join(HOST, authority.port, authority.tokens["worker-3"], tmp_path / "mine")
    assert list((tmp_path / "mine").iterdir()) == []


def test_an_output_that_nobody_reads_costs_no_certificate(keys: Path, tmp_path: Path) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    invitations = Invitations(keys, ["worker-3"])
    thread = threading.Thread(target=invitations.wait, args=(20.0, broken))
    thread.start()
    assert join(HOST, invitations.port, invitations.tokens["worker-3"], tmp_path / "mine").exists()
    thread.join(15)
    assert not thread.is_alive()


@pytest.mark.parametrize("host", ["localhost", "::1"])
def test_the_two_commands(keys: Path, tmp_path: Path, host: str) -> None:
    command = [sys.executable, "-m", "gyroscope", "keys", "invite", "hospital-bern", "--number", "5", "--host", host]
    command += ["--port", "0", "--folder", str(keys), "--minutes", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = re.fullmatch(r"on each worker's machine: gyroscope keys join (\S+)\n", process.stdout.readline())
        token = re.fullmatch(r"token of hospital-bern: (\S+)\n", process.stdout.readline())
        assert found and token
        joining = [sys.executable, "-m", "gyroscope", "keys", "join", found[1], "--folder", str(tmp_path / "mine")]
        joined = subprocess.run(joining, input=f"{token[1]}\n", text=True, capture_output=True, timeout=60)
        assert joined.returncode == 0 and "gyroscope work" in joined.stdout, joined.stderr
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "hospital-bern has its certificate" in said
    assert WorkerKeys.load(tmp_path / "mine").identity.number == 5


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["invite", "worker-1", "worker-2", "--number", "1"], "cannot be the number of 2 workers"),
        (["invite", "worker-1", "--minutes", "0"], "--minutes must be above 0"),
        (["join", "localhost:1", "--token", "x"], "https://HOST:PORT, as gyroscope keys invite has printed it"),
        (["join", "https://localhost", "--token", "x"], "cannot read the address"),
    ],
)
def test_mistakes_are_named(keys: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", *options, "--folder", str(keys)]) == 2
    assert why in capsys.readouterr().err
