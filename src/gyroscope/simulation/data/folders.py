"""Find a data set in a folder on this machine, in any of the usual layouts.

MNIST and Fashion-MNIST share their file names, so the folder decides: a subfolder named after the data set comes first,
then the folder itself. A folder whose name, or whose label file, belongs to the other data set is never taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gyroscope._core.errors import DataError
from gyroscope.simulation.data import catalogue
from gyroscope.simulation.data.catalogue import CATALOGUE, DataSet
from gyroscope.simulation.data.formats import GZIP_MAGIC, gunzip
from gyroscope.simulation.data.raw import Content


class NotHereError(DataError):
    """The folder does not hold the data set, as opposed to holding a broken copy of it."""


def read_folder(dataset: DataSet, folder: Path) -> dict[str, Content]:
    """Return the files of the data set by canonical name, decompressed; their checksums are not compared.

    Raises:
        NotHereError: If there is no sign of the data set.
        DataError: If there is a copy of it that cannot be used.
    """
    try:
        return _search(dataset, folder)
    except OSError as error:  # most often a parent folder that this user may not enter
        raise DataError(f"{folder} cannot be read: {error.strerror}.") from None


def _search(dataset: DataSet, folder: Path) -> dict[str, Content]:
    if not folder.is_dir():
        raise NotHereError("it is not a folder" if folder.exists() else "it does not exist")
    foreign = None
    for place in _places(dataset, folder):
        paths = _locate(dataset, place)
        if not paths:
            continue
        contents = {name: Content(_read(path), f"{path.name} in {place}") for name, path in paths.items()}
        foreign = _foreign_title(dataset, contents)
        if foreign is None:
            return contents
    if foreign is not None:
        raise NotHereError(f"it holds {foreign}, not {dataset.title}")
    namesake = _named_after(dataset, folder)
    if namesake is not None:
        raise NotHereError(f"its name says that it holds {namesake}, not {dataset.title}")
    pickles = ("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1")
    places = (folder, folder / "cifar10", folder / "CIFAR10")
    if dataset.kind == "cifar" and any((place / name).exists() for place in places for name in pickles):
        raise NotHereError("it holds only the pickled Python version; Gyroscope reads the binary version")
    raise NotHereError(f"it holds no {dataset.title} files")


def _places(dataset: DataSet, folder: Path) -> Iterator[Path]:
    """Yield candidate folders, the most specific name first."""
    inner = "raw" if dataset.kind == "idx" else "cifar-10-batches-bin"
    for name in dataset.subfolders:
        yield folder / name / inner
        yield folder / name
    if _named_after(dataset, folder) is None:
        yield folder / inner
        yield folder


def _named_after(dataset: DataSet, folder: Path) -> str | None:
    """Return the title of another data set with the same file names, if this folder has its name."""
    resolved = folder.resolve()
    own = resolved.parent.name if resolved.name == "raw" else resolved.name
    return next((other.title for other in _lookalikes(dataset) if own in other.subfolders), None)


def _locate(dataset: DataSet, place: Path) -> dict[str, Path]:
    """Return the path of each file in this very folder; nothing if there is none, an error if there are only some."""
    names = catalogue.CIFAR_NAMES if dataset.kind == "cifar" else catalogue.IDX_NAMES
    found = {name: [place / each for each in _spellings(name) if (place / each).is_file()] for name in names}
    paths = {name: choices[0] for name, choices in found.items() if choices}
    if not paths and dataset.kind == "cifar" and (place / catalogue.CIFAR_ARCHIVE).is_file():
        return {catalogue.CIFAR_ARCHIVE: place / catalogue.CIFAR_ARCHIVE}
    absent = [name for name in names if name not in paths]
    if paths and absent:
        raise DataError(f"{dataset.title} in {place} is incomplete: there is no {' and no '.join(absent)}.")
    return paths


def _spellings(name: str) -> tuple[str, ...]:
    if name in catalogue.CIFAR_NAMES:
        return (name,)
    dotted = name.replace("-idx", ".idx")
    return name, f"{name}.gz", dotted, f"{dotted}.gz"


def _read(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name} in {path.parent} cannot be read: {error.strerror}.") from None
    if path.name == catalogue.CIFAR_ARCHIVE:
        return raw
    # Also by content: some download tools keep the compression and drop the suffix.
    if path.suffix == ".gz" or raw.startswith(GZIP_MAGIC):
        return gunzip(raw, f"{path.name} in {path.parent}")
    return raw


def _foreign_title(dataset: DataSet, contents: dict[str, Content]) -> str | None:
    """Return the title of another data set, if the (small) label file is known to belong to it."""
    files = ((other.title, file) for other in _lookalikes(dataset) for file in other.files)
    labels = catalogue.TRAIN_LABELS
    return next((title for title, file in files if file.name == labels and file.matches(contents[labels].raw)), None)


def _lookalikes(dataset: DataSet) -> list[DataSet]:
    """Return the other data sets with the same file names."""
    return [other for other in CATALOGUE.values() if other.kind == dataset.kind and other.name != dataset.name]
