"""Keep fetched files so that they are fetched once, by one process, and only ever whole.

A file gets its name by an atomic rename, after its bytes are on disk; a reader therefore sees all of it or nothing.
A lock file makes concurrent first runs wait for one download instead of each starting their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gyroscope._core.optional import extra
from gyroscope.simulation.data.catalogue import DataFile


def cache_root() -> Path:
    """`$GYROSCOPE_CACHE`, else the user's cache folder as the platform has it."""
    named = os.environ.get("GYROSCOPE_CACHE")
    if named:
        return Path(os.path.expanduser(named))
    with extra("lab", "finding the cache of data sets"):
        import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("gyroscope"))


class Cache:
    """The cached files of one data set. A folder that cannot be read is an empty cache, not an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, file: DataFile, repair: bool = False) -> bytes | None:
        """The verified bytes, or None. With `repair` (only under the lock) a damaged file is removed."""
        path = self.folder / file.name
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        if file.matches(raw):
            return raw
        if repair:
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def store(self, file: DataFile, raw: bytes) -> None:
        """Write atomically; raises OSError where the disk refuses, leaving nothing behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # Not tempfile: its mode 0600 would shut other users out of a shared cache.
        part = self.folder / f".{file.name}.{secrets.token_hex(6)}.part"
        try:
            with part.open("xb") as stream:
                stream.write(raw)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(self.folder / file.name)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cache alone, where folder and platform allow; else go on without, which costs a double download."""
        with contextlib.ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context((self.folder / ".lock").open("ab"))
            except OSError:
                pass
            else:
                if _flock(stream):
                    self._sweep()
            yield

    def _sweep(self) -> None:
        """Remove what a killed process left half-written; the lock says that nobody is writing now."""
        with contextlib.suppress(OSError):
            for part in self.folder.glob(".*.part"):
                part.unlink()


def _flock(stream: IO[bytes]) -> bool:
    """Wait for the lock, which closing the stream (or dying) releases; False where there is no such lock."""
    try:
        import fcntl

        fcntl.flock(stream.fileno(), fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True
