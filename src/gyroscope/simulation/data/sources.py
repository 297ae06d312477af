"""Find a data set: in the folder the user names, in the cache, or where it is published, in that order.

Files in the user's own folder are parsed and checked, but not compared with a checksum; files from elsewhere must be
the published ones bit by bit. If nothing works, one error lists every place with its reason.

The cache keeps fetched files so that they are fetched once, by one process, and only ever whole: a lock file makes
concurrent first runs wait for one download instead of each starting their own.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from gyroscope._core.errors import DataError, UnknownNameError
from gyroscope._core.files import PART, write_atomically
from gyroscope._core.optional import extra
from gyroscope.simulation.data import catalogue
from gyroscope.simulation.data.catalogue import CATALOGUE, DataFile, DataSet
from gyroscope.simulation.data.fetch import Source, sources
from gyroscope.simulation.data.folders import NotHereError, read_folder
from gyroscope.simulation.data.raw import Content, RawData, assemble


class DataSetMissingError(DataError):
    """A data set is in no folder and no cache, and no source delivers it. The message lists every place tried."""

    def __init__(self, dataset: DataSet, tried: list[str]) -> None:
        self.title = dataset.title
        self.published = dataset.mirrors[0] if dataset.mirrors else "a machine that has them"
        if dataset.kind == "cifar":
            files = f"{catalogue.CIFAR_ARCHIVE} or its .bin files"
        else:
            files = ", ".join(catalogue.IDX_NAMES) + " (as they are or as .gz)"
        listing = "\n".join(f"  - {reason}" for reason in tried)
        super().__init__(
            f"{dataset.title} is nowhere to be had. Tried:\n{listing}\n"
            f"Get {files} from {self.published}, and name their folder with --data-dir or GYROSCOPE_DATA. The task "
            "`digits` needs no download."
        )


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


def load_raw(name: str, folder: str | Path | None = None, progress: bool = True) -> RawData:
    """Return a data set, unscaled and in its published order.

    Args:
        name: `mnist`, `fashion-mnist` or `cifar10`.
        folder: Searched first (else `$GYROSCOPE_DATA`). A broken copy in it is an error at once: the user meant that
            copy, and training on another one would go unnoticed.
        progress: Whether to draw a bar while downloading.
    """
    if name not in CATALOGUE:
        raise UnknownNameError("data set", name, CATALOGUE)
    dataset = CATALOGUE[name]
    tried: list[str] = []
    own = _from_folder(dataset, folder, tried)
    if own is not None:
        return own
    cache = Cache(cache_root() / dataset.name)
    contents = {file.name: Content(raw, file.name) for file, raw in _obtain(dataset, cache, progress, tried).items()}
    return assemble(dataset, contents)


def _from_folder(dataset: DataSet, folder: str | Path | None, tried: list[str]) -> RawData | None:
    """Return the data set from the folder, or from that in $GYROSCOPE_DATA; None where it is not there."""
    named = os.environ.get("GYROSCOPE_DATA", "") if folder is None else str(folder)
    if folder is None and not named:
        tried.append("a folder of yours: none is named (--data-dir, GYROSCOPE_DATA)")
        return None
    place = Path(os.path.expanduser(named))
    if folder is not None and (not os.path.isdir(place) or not named):  # "" would quietly mean the current folder
        fault = "is not a folder" if named and os.path.exists(place) else "does not exist"
        raise DataError(
            f"the data folder {named!r} {fault}. Name an existing folder that holds {dataset.title} "
            "with --data-dir, or leave it out to use the cache and the mirrors."
        )
    try:
        return assemble(dataset, read_folder(dataset, place))
    except DataError as error:
        absent = isinstance(error, NotHereError)
        if folder is not None and not absent:
            raise DataError(f"{error} Fetch the file again, or name another folder with --data-dir.") from None
        tried.append(f"the folder {place}{' (GYROSCOPE_DATA)' * (folder is None)}: {str(error).rstrip('.')}")
        if not absent:
            warnings.warn(f"{error} Gyroscope passes over this copy, which GYROSCOPE_DATA names.", stacklevel=3)
        elif folder is not None:
            warnings.warn(
                f"{folder} holds no {dataset.title}: looking elsewhere (the cache, then the mirrors)", stacklevel=3
            )
    return None


def _obtain(dataset: DataSet, cache: Cache, progress: bool, tried: list[str]) -> dict[DataFile, bytes]:
    """Return all files of the data set, verified: from the cache as far as possible, the others fetched and cached."""
    have = cache.load(dataset.files)  # the usual case needs no lock
    if len(have) == len(dataset.files):
        return have
    with cache.locked():
        have = cache.load(dataset.files, repair=True)
        missing = [file for file in dataset.files if file not in have]
        if missing:
            state = "holds nothing usable" if not have else f"lacks {', '.join(file.name for file in missing)}"
            tried.append(f"the cache {cache.folder}: {state}")
        refused: OSError | None = None
        for label, source in sources(dataset, progress):
            if len(have) == len(dataset.files):
                break
            refused = _take(dataset, label, source, cache, have, tried) or refused
    if len(have) < len(dataset.files):
        raise DataSetMissingError(dataset, tried)
    if refused is not None:
        warnings.warn(
            f"{dataset.title} could not be kept in the cache {cache.folder} ({refused.strerror or refused}), so the "
            "next run fetches it again. Name a writable folder with GYROSCOPE_CACHE.",
            stacklevel=3,
        )
    return have


def _take(
    dataset: DataSet, label: str, source: Source, cache: Cache, have: dict[DataFile, bytes], tried: list[str]
) -> OSError | None:
    """Take what is missing from one source, file by file, so that a source that breaks off still helps.

    Returns the reason if the cache refused a file, which does not matter to this run.
    """
    refused: OSError | None = None
    missing = [file for file in dataset.files if file not in have]
    try:
        for file, raw in source(missing):
            if not file.matches(raw):
                raise DataError(f"{file.name} is not the published file ({file.digest.partition(':')[0]} differs)")
            have[file] = raw
            try:
                write_atomically(cache.folder / file.name, raw)
            except OSError as error:
                refused = error
    except DataError as error:
        tried.append(f"{label}: {str(error).rstrip('.')}")
    return refused
