"""Assemble the files of a data set into four tensors that have been checked against each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gyroscope._core.errors import DataError
from gyroscope.simulation.data import catalogue
from gyroscope.simulation.data.catalogue import DataSet
from gyroscope.simulation.data.formats import read_cifar_binary, read_idx, read_tar

CLASSES = 10


@dataclass(frozen=True)
class RawData:
    """A data set as published: uint8 images, (N, 28, 28) or (N, 3, 32, 32), and int64 labels (N,) in 0..9."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


@dataclass(frozen=True)
class Content:
    """The decompressed bytes of one file, and its name in messages."""

    raw: bytes
    what: str


def assemble(dataset: DataSet, contents: Mapping[str, Content]) -> RawData:
    """Parse the files (by canonical name) and check shapes and labels. Any number of samples will do."""
    if dataset.kind == "cifar":
        return _assemble_cifar(contents)
    train = _idx_pair(contents[catalogue.TRAIN_IMAGES], contents[catalogue.TRAIN_LABELS])
    test = _idx_pair(contents[catalogue.TEST_IMAGES], contents[catalogue.TEST_LABELS])
    return RawData(*train, *test)


def _idx_pair(images_file: Content, labels_file: Content) -> tuple[torch.Tensor, torch.Tensor]:
    images = read_idx(images_file.raw, images_file.what, dims=3)
    labels = read_idx(labels_file.raw, labels_file.what, dims=1).to(torch.int64)
    if images.shape[1:] != (28, 28):
        height, width = images.shape[1:]
        raise DataError(f"{images_file.what} holds images of {height}x{width} pixels where 28x28 are expected.")
    if len(images) != len(labels):
        raise DataError(
            f"{images_file.what} holds {len(images):,} images, but {labels_file.what} {len(labels):,} labels."
        )
    _check_labels(labels, labels_file.what)
    return images, labels


def _assemble_cifar(contents: Mapping[str, Content]) -> RawData:
    archive = contents.get(catalogue.CIFAR_ARCHIVE)
    if archive is not None:
        members = read_tar(archive.raw, catalogue.CIFAR_NAMES, archive.what)
        absent = [name for name in catalogue.CIFAR_NAMES if name not in members]
        if absent:
            raise DataError(f"{archive.what} lacks {', '.join(absent)}.")
        contents = {name: Content(raw, f"{name} of {archive.what}") for name, raw in members.items()}
    *train, test = (read_cifar_binary(contents[name].raw, contents[name].what) for name in catalogue.CIFAR_NAMES)
    for name, (_, labels) in zip(catalogue.CIFAR_NAMES, (*train, test), strict=True):
        _check_labels(labels, contents[name].what)
    return RawData(torch.cat([images for images, _ in train]), torch.cat([labels for _, labels in train]), *test)


def _check_labels(labels: torch.Tensor, what: str) -> None:
    largest = int(labels.max())
    if largest >= CLASSES:
        raise DataError(f"{what} holds the label {largest}; labels must be in 0..{CLASSES - 1}.")
