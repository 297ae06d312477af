"""Certificates: who gets in; the files, revocation, and the command line."""

from __future__ import annotations

import base64
import contextlib
import datetime
import errno
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hostile_peers import days_ago
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gyroscope._core.errors import CertificateError, ConfigError, GyroscopeError, MissingExtraError, StorageError
from gyroscope.cli import main, parser
from gyroscope.distributed.certificates import (
    RevocationList,
    ServerKeys,
    WorkerIdentity,
    WorkerKeys,
    add_worker,
    add_workers,
    create_authority,
    expiry,
    identity_of,
    issued,
    revocation,
    revoke,
    signing,
    validity,
)

PATIENCE = 10.0
REFUSED = "refused"
HOSTS = ["node1.example.org", "10.0.0.5", "fd00::5"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority with workers of which one, worker-9, has expired. Tests only read it."""
    folder = tmp_path_factory.mktemp("authority") / "keys"
    with days_ago(100):
        create_authority(folder, HOSTS)
        add_worker(folder, "worker-9", days=30)
    add_worker(folder, "worker-3")
    add_worker(folder, "hospital-bern", number=12)
    return folder


@pytest.fixture(scope="module")
def intruders(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another authority with a worker-3, and a worker-7 that our worker-3 has signed as if it were an authority."""
    folder = tmp_path_factory.mktemp("intruders")
    create_authority(folder)
    add_worker(folder, "worker-3")
    parent = (keys / "worker-3.crt").read_bytes()
    signer: Any = load_pem_private_key((keys / "worker-3.key").read_bytes(), None)
    key, uri = signing.new_key(), x509.UniformResourceIdentifier("urn:gyroscope:worker:7")
    own = x509.load_pem_x509_certificate(parent)
    until = own.not_valid_after_utc
    made = signing.sign("worker-7", key, until, (own, signer), ExtendedKeyUsageOID.CLIENT_AUTH, [uri])
    signing.write_pairs(folder, {"worker-7": (key, made)})
    (folder / "worker-7.crt").write_bytes(made.public_bytes(Encoding.PEM) + parent)  # with the chain
    return folder


@pytest.fixture
def own(keys: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(keys, tmp_path / "keys"))


# -- handshakes --------------------------------------------------------------------------------------------------------


def seen_by_server(server: Path, trusted: Path, client: Path | None, trusts: Path, host: str) -> str:
    """Let a client connect to a server, and return whom the server sees.

    Args:
        server: The server's pair.
        trusted: The authority that the server trusts.
        client: The client's pair; None for no certificate.
        trusts: The authority that the client trusts.
        host: The name by which the client calls the server.
    """
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=trusted)
    server_side.verify_mode = ssl.CERT_REQUIRED
    client_side = ssl.create_default_context(cafile=trusts)
    for side, pair in ((server_side, server), (client_side, client)):
        side.verify_flags |= ssl.VERIFY_X509_STRICT  # Python's default from 3.13 on
        if pair:
            side.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))

    def serve() -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as plain:
            plain.settimeout(PATIENCE)
            with server_side.wrap_socket(plain, server_side=True) as link:
                der = link.getpeercert(binary_form=True)
                assert der
                link.sendall(str(identity_of(ssl.DER_cert_to_PEM_cert(der).encode())).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listener.getsockname(), PATIENCE) as plain,
                client_side.wrap_socket(plain, server_hostname=host) as link,
            ):
                return link.recv(1000).decode() or REFUSED
        except (ssl.SSLError, ConnectionError):  # TLS 1.3: a client hears of its refusal when it reads
            return REFUSED
        finally:
            thread.join()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1", *HOSTS])
def test_a_worker_gets_in_and_the_server_knows_who_it_is(keys: Path, host: str) -> None:
    name, number = ("worker-3", 3) if ":" in host else ("hospital-bern", 12)
    serial = x509.load_pem_x509_certificate((keys / f"{name}.crt").read_bytes()).serial_number
    seen = seen_by_server(keys / "server", keys / "ca.crt", keys / name, keys / "ca.crt", host)
    assert seen == str(WorkerIdentity(name, number, serial))


@pytest.mark.parametrize("client", ["none", "another authority's", "expired", "the server's", "signed by a worker"])
def test_others_do_not_get_in(keys: Path, intruders: Path, client: str) -> None:
    pair = {
        "none": None,
        "another authority's": intruders / "worker-3",
        "expired": keys / "worker-9",
        "the server's": keys / "server",
        "signed by a worker": intruders / "worker-7",
    }[client]
    assert seen_by_server(keys / "server", keys / "ca.crt", pair, keys / "ca.crt", "localhost") == REFUSED


@pytest.mark.parametrize(
    ("server", "host"), [("worker", "localhost"), ("another authority's", "localhost"), ("ours", "node2.example.org")]
)
def test_a_worker_does_not_speak_to_a_false_server(keys: Path, intruders: Path, server: str, host: str) -> None:
    pair = {"worker": keys / "worker-3", "another authority's": intruders / "server", "ours": keys / "server"}[server]
    assert seen_by_server(pair, keys / "ca.crt", keys / "worker-3", keys / "ca.crt", host) == REFUSED


@pytest.mark.skipif(not shutil.which("openssl"), reason="this system cannot check with openssl: there is none")
@pytest.mark.parametrize(
    ("name", "options", "good"),
    [
        ("worker-3", "-purpose sslclient", True),
        ("worker-3", "-purpose sslserver", False),
        ("worker-9", "-purpose sslclient", False),
        ("server", "-purpose sslserver -verify_hostname node1.example.org", True),
        ("server", "-purpose sslserver -verify_ip 10.0.0.5", True),
        ("server", "-purpose sslserver -verify_ip 10.0.0.6", False),
        ("server", "-purpose sslclient", False),
    ],
)
def test_openssl_agrees(keys: Path, name: str, options: str, good: bool) -> None:
    command = ["openssl", "verify", "-x509_strict", "-CAfile", keys / "ca.crt", *options.split(), keys / f"{name}.crt"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert (finished.returncode == 0) is good, finished.stderr


# -- what a certificate says -------------------------------------------------------------------------------------------


def test_the_fields_of_the_certificates(keys: Path) -> None:
    ca, server, worker = (
        x509.load_pem_x509_certificate((keys / f"{name}.crt").read_bytes()) for name in ("ca", "server", "worker-3")
    )
    basic = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert basic.critical and basic.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign and usage.crl_sign and not usage.digital_signature
    for leaf, purpose in ((server, ExtendedKeyUsageOID.SERVER_AUTH), (worker, ExtendedKeyUsageOID.CLIENT_AUTH)):
        assert list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage).value
        assert usage.digital_signature and not usage.key_cert_sign
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["node1.example.org", "localhost"]
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["10.0.0.5", "fd00::5", "127.0.0.1", "::1"]
    now = datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(minutes=4) < now - worker.not_valid_before_utc < datetime.timedelta(minutes=30)
    assert expiry((keys / "worker-3.crt").read_bytes()) == worker.not_valid_after_utc
    assert datetime.timedelta(days=364) < worker.not_valid_after_utc - now < datetime.timedelta(days=365)


@pytest.mark.parametrize(
    ("hours", "text"),
    [(-1, "expired"), (1, "expires in 1 day"), (25, "expires in 2 days"), (14 * 24, "expires in 14 days"),
     (14 * 24 + 1, "valid")],
)  # fmt: skip
def test_a_certificate_says_when_it_expires(hours: int, text: str) -> None:
    now = datetime.datetime(2026, 11, 17, tzinfo=datetime.timezone.utc)
    assert validity(now + datetime.timedelta(hours=hours), now) == text


def read_or_refuse(pem: bytes) -> WorkerIdentity | None:
    try:
        who = identity_of(pem)
    except CertificateError as problem:
        return None if len(str(problem).splitlines()) == 1 else pytest.fail(f"several lines: {problem}")
    assert who.name.isascii() and 1 <= len(who.name) <= 64 and 0 <= who.number < 10**9
    return who


@given(st.binary(max_size=300))
@example(b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
@example(b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")
def test_any_bytes_are_an_identity_or_a_certificate_error(data: bytes) -> None:
    assert read_or_refuse(data) is None
    armoured = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(data) + b"-----END CERTIFICATE-----\n"
    assert read_or_refuse(armoured) is None


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_certificate_is_an_identity_or_a_certificate_error(keys: Path, data: st.DataObject) -> None:
    der = bytearray(x509.load_pem_x509_certificate((keys / "worker-3.crt").read_bytes()).public_bytes(Encoding.DER))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(der) - 1))
        how = data.draw(st.sampled_from(["change", "remove", "insert"]))
        der[place : place + (how != "insert")] = [] if how == "remove" else [data.draw(st.integers(0, 255))]
    read_or_refuse(ssl.DER_cert_to_PEM_cert(bytes(der)).encode())


texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=64)
uris = st.one_of(
    st.text(st.characters(codec="ascii"), max_size=40),
    st.text("0123456789+- _x", max_size=12).map("urn:gyroscope:worker:".__add__),
)


@given(st.lists(texts | st.just("worker-3"), max_size=2), st.lists(uris, max_size=3))
@example(["worker-3"], ["urn:gyroscope:worker:3"])
@example(["worker-3"], ["urn:gyroscope:worker:3", "urn:gyroscope:worker:4"])
@example(["worker-3"], ["urn:gyroscope:worker:03"])
@example(["worker-3\n"], ["urn:gyroscope:worker:3"])
@example(["a", "b"], ["urn:gyroscope:worker:3"])
def test_only_one_good_name_and_one_good_number_are_an_identity(names: list[str], uris: list[str]) -> None:
    key = signing.new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 77)
        .not_valid_before(datetime.datetime(2026, 1, 1))
        .not_valid_after(datetime.datetime(2027, 1, 1))
    )
    if uris:
        alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(alternatives, critical=False)
    who = read_or_refuse(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    numbers = [uri.removeprefix("urn:gyroscope:worker:") for uri in uris if uri.startswith("urn:gyroscope:worker:")]
    letters = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    good_name = len(names) == 1 and set(names[0]) <= letters and names[0][0] not in "._-"
    good_number = len(numbers) == 1 and numbers[0].isdigit() and numbers[0] == str(int(numbers[0]))[:9]
    assert who == (WorkerIdentity(names[0], int(numbers[0]), 77) if good_name and good_number else None)


# -- files -------------------------------------------------------------------------------------------------------------


def test_only_the_owner_reads_the_keys_and_nobody_else_does_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {}
    replace = os.replace

    def seen(source: Path, target: Path) -> None:
        modes[target.name] = source.stat().st_mode & 0o777
        replace(source, target)

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0)
    try:
        create_authority(tmp_path / "keys")
        add_worker(tmp_path / "keys", "worker-0")
    finally:
        os.umask(before)
    assert {name for name, mode in modes.items() if mode == 0o600} == {"ca.key", "server.key", "worker-0.key"}
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == modes
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("left", ["ca.key", "ca.crt", "server.key", "server.crt"])
def test_an_authority_is_not_overwritten_not_even_a_part_of_one(own: Path, left: str) -> None:
    for name in {"ca.key", "ca.crt", "server.key", "server.crt"} - {left}:
        (own / name).unlink()
    before = contents(own)
    with pytest.raises(CertificateError, match=rf"{left} is there already.* choose another --folder"):
        create_authority(own)
    assert contents(own) == before


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = signing.write_atomically
    for at in range(4):
        calls = iter(range(9))

        def refuse(path: Path, content: bytes, mode: int, at: int = at, calls: Iterator[int] = calls) -> None:
            if next(calls) == at:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, content, mode)

        monkeypatch.setattr(signing, "write_atomically", refuse)
        with pytest.raises(StorageError, match="No space left on device"):
            create_authority(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["revoked.txt"]
    monkeypatch.undo()
    create_authority(tmp_path)


@pytest.mark.parametrize(
    ("hosts", "says"),
    [("0.0.0.0", "no worker can reach"), ("::", "no worker can reach"), ("fe80::1%eth0", "no worker can reach"),
     ("10.0.0.256", "neither a host name"), ("node1:29517", "without a port"), ("", "neither"), ("-a.org", "neither"),
     ("a..org", "neither"), ("*.example.org", "neither"), ("nöde1", "neither"), ("a" * 64, "neither")],
)  # fmt: skip
def test_hosts_that_cannot_be(tmp_path: Path, hosts: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        create_authority(tmp_path / "keys", [hosts])
    assert not (tmp_path / "keys").exists()


def test_an_address_in_brackets_and_a_host_twice(tmp_path: Path) -> None:
    create_authority(tmp_path, ["[fd00::5]", "fd00::5", "Node1", "node1", "localhost"], days=1)
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    assert len(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value) == 5


@pytest.mark.parametrize(
    ("name", "number", "says"),
    [
        ("bob", None, "add --number, or call it worker-3"),
        ("worker-03", None, "add --number"),
        ("worker-4", 5, "has the number 4, not 5"),
        ("bob", -1, "from 0 to 999999999, got -1"),
        ("bob", 10**9, "got 1000000000"),
        ("bob", True, "got True"),
        ("../bob", 5, "cannot be a worker's name"),
        ("bob\n", 5, "cannot be a worker's name"),
        ("bób", 5, "cannot be a worker's name"),
        ("b" * 65, 5, "at most 64"),
        ("", 5, "cannot be a worker's name"),
        ("-b", 5, "cannot be a worker's name"),
        ("server", 5, "not ca or server"),
        ("CA", 5, "not ca or server"),
        ("worker-3", None, r"worker-3.crt is there already, and no key is overwritten"),
        ("bob", 3, r"worker-3 has the number 3, and is valid until \d{4}-\d\d-\d\d.* revoke worker-3 --folder"),
    ],
)
def test_workers_that_cannot_be_added(own: Path, name: str, number: int | None, says: str) -> None:
    before = contents(own)
    with pytest.raises(GyroscopeError, match=says):
        add_worker(own, name, number)
    assert contents(own) == before


def test_a_number_is_free_again_when_its_certificate_is_revoked_or_expired(own: Path) -> None:
    assert add_worker(own, "worker-9-new", 9).number == 9  # worker-9 has expired
    with pytest.raises(CertificateError, match="worker-9-new has the number 9"):
        add_worker(own, "worker-9-other", 9)
    revoke(own, "worker-3")
    who = add_worker(own, "b" * 64, 3)
    assert who == identity_of((own / f"{who.name}.crt").read_bytes())


def test_a_name_whose_key_alone_is_left_is_not_overwritten(own: Path) -> None:
    (own / "worker-3.crt").unlink()
    with pytest.raises(CertificateError, match=r"worker-3\.key is there already"):
        add_worker(own, "worker-3")


def test_no_worker_outlives_its_authority(tmp_path: Path) -> None:
    create_authority(tmp_path, days=20)
    with pytest.raises(ConfigError, match=r"cannot be valid until .* the authority in .* Choose fewer --days"):
        add_worker(tmp_path, "worker-0", days=21)
    add_worker(tmp_path, "worker-0")
    assert expiry((tmp_path / "worker-0.crt").read_bytes()) == expiry((tmp_path / "ca.crt").read_bytes())
    for days in (0, 36_501, 1.5):
        with pytest.raises(ConfigError, match=f"from 1 to 36500, got {days}"):
            add_worker(tmp_path, "worker-1", days=days)  # type: ignore[arg-type]


def test_many_workers_are_added_together_or_not_at_all(own: Path) -> None:
    before = {each.name for each in issued(own)}
    names = [f"worker-{number}" for number in range(40, 45)]
    added = add_workers(own, names, days=20)
    assert [(who.name, who.number) for who in added] == [(name, 40 + place) for place, name in enumerate(names)]
    assert {each.name for each in issued(own)} == before | set(names)
    for more, says in (
        (["worker-50", "worker-41"], "no key is overwritten"),
        (["worker-50", "worker-51", "worker-50"], "worker-50 is named twice"),
        (["worker-50", "alice"], "does not say which worker it is"),
    ):
        with pytest.raises((CertificateError, ConfigError), match=says):
            add_workers(own, more)
    assert not (own / "worker-50.crt").exists()


def test_the_certificate_that_was_named_is_missed_first(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"worker-0\.crt is missing"):
        WorkerKeys.load(tmp_path, "worker-0")


def test_an_expired_authority_adds_nobody(tmp_path: Path) -> None:
    with days_ago(10):
        create_authority(tmp_path, days=5)
    with pytest.raises(ConfigError, match="make a new authority"):
        add_worker(tmp_path, "worker-0")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "ca.key").unlink(), "ca.key is missing: only the machine on which"),
        (lambda folder: (folder / "ca.crt").unlink(), r"ca.crt is missing: gyroscope keys init --folder \S+ --host"),
        (lambda folder: (folder / "ca.key").write_bytes(b"no key"), "ca.key is no unencrypted private key"),
        (lambda folder: (folder / "ca.crt").write_bytes(b"nothing"), "ca.crt cannot be read as PEM"),
        (lambda folder: shutil.copy(folder / "server.key", folder / "ca.key"), "ca.key does not belong to"),
        (lambda folder: (folder / "worker-3.crt").write_bytes(b"x"), "worker-3.crt cannot be read as PEM"),
        (
            lambda folder: (folder / "revoked.txt").write_bytes(b"worker-3"),
            r"revoked.txt, line 1: 'worker-3' is no ser",
        ),
    ],
)
def test_an_authority_that_is_damaged_adds_nobody(own: Path, damage: Callable[[Path], Any], says: str) -> None:
    damage(own)
    with pytest.raises(CertificateError, match=says):
        add_worker(own, "worker-0")
    assert not (own / "worker-0.key").exists()


def test_what_is_issued(own: Path, intruders: Path) -> None:
    shutil.copy(intruders / "worker-3.crt", own / "stranger.crt")  # another authority's
    add_worker(own, "worker-0", days=3)
    revoke(own, "hospital-bern")
    assert [(each.name, each.number, each.state) for each in issued(own)] == [
        ("ca", None, "valid"),
        ("server", None, "valid"),
        ("worker-0", 0, "expires in 3 days"),
        ("worker-3", 3, "valid"),
        ("worker-9", 9, "expired"),
        ("hospital-bern", 12, "revoked"),
    ]


# -- loading -----------------------------------------------------------------------------------------------------------


def test_each_side_loads_its_files(own: Path, tmp_path: Path) -> None:
    server = ServerKeys.load(own)
    assert server.revoked == own / "revoked.txt" and server.warnings == ()
    assert server.expiry == expiry((own / "server.crt").read_bytes())
    machine = tmp_path / "machine"
    machine.mkdir()
    for name in ("ca.crt", "worker-3.crt", "worker-3.key"):
        shutil.copy(own / name, machine)
    worker = WorkerKeys.load(machine)
    assert worker == WorkerKeys.load(own, "worker-3")
    assert (worker.identity.name, worker.identity.number) == ("worker-3", 3)
    assert worker.authority == server.authority and "PRIVATE" not in repr((server, worker))
    assert b"PRIVATE" in worker.key and b"PRIVATE" in server.key
    with pytest.raises(CertificateError, match=r"3 workers' keys \(hospital-bern, worker-3, worker-9\): name one"):
        WorkerKeys.load(own)


def test_a_key_that_others_may_read_and_a_certificate_that_ends_soon_are_warnings(tmp_path: Path) -> None:
    create_authority(tmp_path, days=14)
    (tmp_path / "server.key").chmod(0o640)
    first, *others = ServerKeys.load(tmp_path).warnings
    assert first.startswith("other users of this machine may read") and "mode 0640): chmod 600" in first
    assert [other.partition("(")[0].split("/")[-1] for other in others] == [
        "server.crt expires in 14 days ", "ca.crt expires in 14 days ",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "ca.crt").unlink(), r"ca.crt is missing: .*gyroscope keys init"),
        (lambda folder: (folder / "server.crt").unlink(), r"server.crt is missing: gyroscope keys init"),
        (lambda folder: (folder / "server.key").unlink(), r"server.key is missing: gyroscope keys init"),
        (lambda folder: (folder / "server.key").write_bytes(b""), r"server.key is no unencrypted private key"),
        (lambda folder: (folder / "server.crt").write_bytes(b""), r"server.crt cannot be read as PEM"),
        (lambda folder: shutil.copy(folder / "worker-3.key", folder / "server.key"), "server.key does not belong to"),
    ],
)
def test_a_server_without_its_files_says_which(own: Path, damage: Callable[[Path], Any], says: str) -> None:
    damage(own)
    with pytest.raises(CertificateError, match=says):
        ServerKeys.load(own)


def test_a_worker_without_its_files_says_which(own: Path, intruders: Path, tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"worker-5.crt is missing: .*`gyroscope keys add worker-5`"):
        WorkerKeys.load(own, "worker-5")
    with pytest.raises(CertificateError, match=r"no worker's key: copy .* from where gyroscope keys add NAME ran"):
        WorkerKeys.load(tmp_path / "nowhere")
    with pytest.raises(CertificateError, match="a certificate has no worker's name but the common names"):
        WorkerKeys.load(own, "server")
    shutil.copy(intruders / "ca.crt", own)
    with pytest.raises(CertificateError, match=r"worker-3.crt was not issued by the authority of \S+ca.crt"):
        WorkerKeys.load(own, "worker-3")


# -- revocation --------------------------------------------------------------------------------------------------------


def test_revoked_txt_is_plain_text_that_a_person_may_edit(own: Path) -> None:
    who = revoke(own, "worker-3")
    path = own / "revoked.txt"
    *comments, line = path.read_text().splitlines()
    assert line.split()[:2] == [f"{who.serial:x}", "worker-3"] and all(each.startswith("#") for each in comments)
    assert revoke(own, "worker-3") == who and path.read_text().count("worker-3") == 1
    path.write_bytes(b"\xef\xbb\xbf# Z\xc3\xbcrich\r\n\r\n  0A:bC  # by hand\r\nff someone 2026-01-01")
    revoke(own, "worker-3")
    revoked = RevocationList(path)
    assert [revoked.is_revoked(serial) for serial in (0xABC, 0xFF, who.serial, 0)] == [True, True, True, False]
    path.unlink()
    revoke(own, "worker-3")
    assert RevocationList(path).is_revoked(who.serial)


def test_who_cannot_be_revoked(own: Path, intruders: Path) -> None:
    shutil.copy(intruders / "worker-3.crt", own / "stranger.crt")
    with pytest.raises(
        CertificateError, match=r"stranger.crt is another authority's.* would leave worker-3's in force"
    ):
        revoke(own, "stranger")
    with pytest.raises(CertificateError, match=r"nobody.crt is missing: gyroscope keys list --folder \S+ shows"):
        revoke(own, "nobody")
    with pytest.raises(ConfigError, match=r"'\.\./keys/worker-3' cannot be"):
        revoke(own, "../keys/worker-3")
    (own / "revoked.txt").write_text("ff\nalice\n")
    with pytest.raises(CertificateError, match=r"line 2: 'alice' is no serial number"):
        revoke(own, "worker-3")
    assert (own / "revoked.txt").read_text() == "ff\nalice\n"


def test_several_that_revoke_at_once_forget_nobody(tmp_path: Path) -> None:
    create_authority(tmp_path)
    names = [f"worker-{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda name: add_worker(tmp_path, name), names))
        list(pool.map(lambda name: revoke(tmp_path, name), names))
    revoked = RevocationList(tmp_path / "revoked.txt")
    assert all(revoked.is_revoked(who.serial) for who in added)


def test_a_list_that_changes_is_read_again_and_one_that_breaks_stays_in_force(tmp_path: Path) -> None:
    said: list[str] = []
    path = tmp_path / "revoked.txt"
    revoked = RevocationList(path, said.append, interval=0)
    assert not revoked.is_revoked(1)
    path.write_text("1 a 2026-11-17\n")
    assert revoked.is_revoked(1) and not revoked.is_revoked(2)
    path.write_text("oops\n")
    assert revoked.is_revoked(1) and revoked.is_revoked(1)
    assert said == [revoked.problem] and "line 1: 'oops'" in said[0] and "The 1 revocations read before stay" in said[0]
    path.write_bytes(b"\xff")
    assert revoked.is_revoked(1) and "no text in UTF-8" in said[1]
    path.unlink()
    assert revoked.is_revoked(1) and "No such file" in said[2]
    path.mkdir()
    assert revoked.is_revoked(1) and "Is a directory" in said[3]
    path.rmdir()
    path.write_text("2\n")
    assert revoked.is_revoked(2) and not revoked.is_revoked(1)
    assert revoked.problem == "" and len(said) == 4


def test_a_list_that_is_broken_at_the_start_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "revoked.txt"
    path.write_text("oops\n")
    with pytest.raises(CertificateError, match="'oops' is no serial number"):
        RevocationList(path)
    with pytest.raises(CertificateError, match="cannot read"):
        RevocationList(tmp_path)


def test_the_file_is_looked_at_once_per_second_and_read_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, looks, reads = [100.0], [], []
    path = tmp_path / "revoked.txt"
    path.write_text("1\n")
    parse = revocation.parse_revoked
    monkeypatch.setattr(revocation, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(revocation, "os", SimpleNamespace(stat=lambda name: looks.append(name) or os.stat(name)))
    monkeypatch.setattr(revocation, "parse_revoked", lambda *given: reads.append(given) or parse(*given))
    revoked = RevocationList(path)
    path.write_text("2 a\n")
    for moment, looked, read, answer in (
        (100.9, 1, 1, False),
        (101.0, 2, 2, True),
        (101.9, 2, 2, True),
        (102.5, 3, 2, True),
    ):
        clock[0] = moment
        assert [revoked.is_revoked(2) for _ in range(5)] == [answer] * 5
        assert (len(looks), len(reads)) == (looked, read)


# -- without the extra, and the command line ---------------------------------------------------------------------------


def test_without_cryptography_the_error_names_the_extra(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for call in (
        lambda: create_authority(tmp_path / "new"),
        lambda: add_worker(keys, "worker-0"),
        lambda: revoke(keys, "worker-3"),
        lambda: issued(keys),
        lambda: ServerKeys.load(keys),
        lambda: WorkerKeys.load(keys, "worker-3"),
        lambda: identity_of(b""),
    ):
        with pytest.raises(MissingExtraError, match=r"certificates needs .* pip install 'gyroscope\[lab\]'"):
            call()
    assert not (tmp_path / "new").exists()


def test_importing_the_module_and_the_command_line_does_not_load_cryptography() -> None:
    code = "import sys, gyroscope.cli as cli, gyroscope.distributed.certificates; cli.parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "gyroscope.distributed.certificates" in loaded and "cryptography" not in loaded


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    try:
        code = main(line.split())
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_life_of_an_authority_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "keys init --host node1 --host 10.0.0.5 --days 400")
    assert code == 0 and "node1, 10.0.0.5, localhost, 127.0.0.1, ::1" in out and "ca.key stays here" in out
    code, out, _ = run(capsys, "keys add worker-0 worker-1")
    assert code == 0
    assert out.splitlines()[1] == "to worker 1's machine: keys/ca.crt, keys/worker-1.crt, keys/worker-1.key"
    assert out.splitlines()[2].startswith("valid for 365 days")
    code, out, _ = run(capsys, "keys add alice --number 2 --days 10")
    assert code == 0 and "valid for 10 days" in out
    code, out, _ = run(capsys, "keys revoke worker-1")
    assert code == 0 and "revoked worker-1, number 1" in out and "keys/revoked.txt" in out
    code, out, _ = run(capsys, "keys list")
    header, *rows = [line.split(maxsplit=4) for line in out.splitlines()]
    assert code == 0 and header == ["name", "number", "valid", "until", "state"]
    assert [[row[0], row[1], row[4]] for row in rows] == [
        ["ca", "-", "valid"],
        ["server", "-", "valid"],
        ["worker-0", "0", "valid"],
        ["worker-1", "1", "revoked"],
        ["alice", "2", "expires in 10 days"],
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("keys init --folder {keys}", "ca.crt is there already"),
        ("keys init --days 0", "days must be a whole number from 1 to 36500, got 0"),
        ("keys init --host 0.0.0.0", "no worker can reach"),
        ("keys init --folder {keys}/ca.crt", "cannot write to"),
        ("keys add worker-0", "keys/ca.crt is missing: gyroscope keys init --host ADDR makes it"),
        ("keys add worker-3 --folder {keys}", "no key is overwritten"),
        ("keys add bob --folder {keys}", "add --number"),
        ("keys add a b --number 3 --folder {keys}", "--number 3 cannot be the number of 2 workers"),
        ("keys revoke bob --folder {keys}", "bob.crt is missing"),
        ("keys list --folder no-such", "no-such/ca.crt is missing: gyroscope keys init --folder no-such"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = contents(keys)
    code, out, err = run(capsys, line.format(keys=keys))
    assert (code, out) == (2, "")
    assert err.startswith("gyroscope: error: ") and len(err.splitlines()) == 1 and says in err
    assert contents(keys) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("action", "mentions"),
    [
        ("", ["init", "add", "revoke", "list", "ca.crt, worker-3.crt, worker-3.key, and nothing else",
              "ca.crt, server.crt, server.key, revoked.txt", "ca.key: whoever has it", "examples:"]),
        ("init", ["--folder", "--host", "--days", "ca.key stays where it is"]),
        ("add", ["--folder", "--number", "--days"]),
        ("revoke", ["--folder", "--number 3"]),
        ("list", ["--folder", "expires in N days"]),
    ],
)  # fmt: skip
def test_help_teaches_by_examples(capsys: pytest.CaptureFixture[str], action: str, mentions: list[str]) -> None:
    code, out, err = run(capsys, f"keys {action} --help")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= 120
    for text in mentions:
        assert text in out
    for line in map(str.strip, out.splitlines()):
        if line.startswith("gyroscope keys "):
            assert callable(parser().parse_args(line.split("#")[0].split()[1:]).run)
