"""Keep fetched files so that they are fetched once, by one process, and only ever whole.

A lock file makes concurrent first runs wait for one download instead of each starting their own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gyroscope._core.files import PART
from gyroscope._core.optional import extra
from gyroscope.simulation.data.catalogue import DataFile


def cache_root() -> Path:
    """Return `$GYROSCOPE_CACHE`, else the user's cache folder as the platform has it."""
    named = os.environ.get("GYROSCOPE_CACHE")
    if named:
        return Path(os.path.expanduser(named))
    with extra("lab", "finding the cache of data sets"):
        import platformdirs

    return Path(platformdirs.user_cache_dir("gyroscope"))


class Cache:
    """The cached files of one data set. A folder that cannot be read is an empty cache, not an error."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, files: Iterable[DataFile], repair: bool = False) -> dict[DataFile, bytes]:
        """Return the verified files there are. With `repair` (only under the lock) damaged ones are removed."""
        found = {}
        for file in files:
            with contextlib.suppress(OSError):
                raw = (self.folder / file.name).read_bytes()
                if file.matches(raw):
                    found[file] = raw
                elif repair:
                    (self.folder / file.name).unlink()
        return found

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cache alone, where folder and platform allow; else go on without, which costs a double download."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                self.folder.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context((self.folder / ".lock").open("ab"))
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX)  # closing the stream (or dying) releases it
                for part in self.folder.glob(f".*{PART}"):  # of a killed process: no other writes now
                    part.unlink()
            yield
