"""Small but real data files, a catalogue that knows their checksums, and a mirror on 127.0.0.1 that serves them."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from gyroscope.simulation.data.catalogue import (
    CATALOGUE,
    CIFAR_ARCHIVE,
    CIFAR_NAMES,
    IDX_NAMES,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    DataFile,
    DataSet,
)


def idx(array: np.ndarray) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def idx_files(seed: int = 0, train: int = 12, test: int = 5) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    return {
        TRAIN_IMAGES: idx(rng.integers(0, 256, (train, 28, 28))),
        TRAIN_LABELS: idx(rng.integers(0, 10, train)),
        TEST_IMAGES: idx(rng.integers(0, 256, (test, 28, 28))),
        TEST_LABELS: idx(rng.integers(0, 10, test)),
    }


def cifar_files(seed: int = 0, count: int = 3) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    files = {}
    for name in CIFAR_NAMES:
        records = rng.integers(0, 256, (count, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        files[name] = records.tobytes()
    return files


def tar_gz(files: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))
    return buffer.getvalue()


def cifar_archive(seed: int = 0) -> bytes:
    return tar_gz({f"cifar-10-batches-bin/{name}": raw for name, raw in cifar_files(seed).items()})


def write(folder: Path, files: Mapping[str, bytes], zipped: bool = False, dotted: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        spelling = name.replace("-idx", ".idx") if dotted else name
        (folder / (spelling + ".gz" * zipped)).write_bytes(gzip.compress(raw) if zipped else raw)
    return folder


def small(name: str, files: Mapping[str, bytes], *mirrors: str) -> DataSet:
    """The catalogue's entry with the checksums of `files`, these mirrors and no other source."""
    known = tuple(
        DataFile(key, f"sha256:{hashlib.sha256(raw).hexdigest()}", gzipped=key in IDX_NAMES)
        for key, raw in files.items()
    )
    return replace(CATALOGUE[name], files=known, mirrors=mirrors, npm_package=None, system_folder=None)


@dataclass
class Mirror:
    """What the local server offers, how it misbehaves, and what it was asked for."""

    offers: dict[str, bytes]
    cut: set[str] = field(default_factory=set)  # promised in full, broken off half-way
    delay: float = 0.0
    asked: Counter[str] = field(default_factory=Counter)
    url: str = ""


def offer(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """As the mirrors publish them: IDX files as .gz, the archive as it is."""
    return {
        f"{name}.gz" if name != CIFAR_ARCHIVE else name: gzip.compress(raw) if name != CIFAR_ARCHIVE else raw
        for name, raw in files.items()
    }


@contextmanager
def serve(offers: dict[str, bytes]) -> Iterator[Mirror]:
    mirror = Mirror(offers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            mirror.asked[name] += 1
            time.sleep(mirror.delay)
            if name not in mirror.offers:
                self.send_error(404)
                return
            raw = mirror.offers[name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw[: len(raw) // 2] if name in mirror.cut else raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    mirror.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield mirror
    finally:
        server.shutdown()
        server.server_close()
