"""The parsers: right on good bytes, and on any other bytes a DataError that says what is wrong."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable

import numpy as np
import pytest
import torch
from datafiles import cifar_files, idx, tar_gz
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gyroscope._core.errors import DataError
from gyroscope.simulation.data.formats import gunzip, read_cifar_binary, read_idx, read_tar

PARSERS: dict[str, Callable[[bytes], object]] = {
    "idx": lambda raw: read_idx(raw, "x"),
    "images": lambda raw: read_idx(raw, "x", dims=3),
    "cifar": lambda raw: read_cifar_binary(raw, "x"),
    "gzip": lambda raw: gunzip(raw, "x"),
    "tar": lambda raw: read_tar(raw, {"a", "b"}, "x"),
}
GOOD: dict[str, bytes] = {
    "idx": idx(np.arange(6)),
    "images": idx(np.arange(24).reshape(2, 3, 4)),
    "cifar": cifar_files(count=1)["test_batch.bin"],
    "gzip": gzip.compress(b"some bytes, some bytes", mtime=0),
    "tar": tar_gz({"d/a": b"aaa", "d/b": b"b" * 600}),
}


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)))
def test_idx_gives_back_what_was_written(array: np.ndarray) -> None:
    tensor = read_idx(idx(array), "x")
    assert tensor.dtype == torch.uint8
    assert np.array_equal(tensor.numpy(), array)


def test_tensors_own_their_memory() -> None:
    raw = idx(np.arange(6))
    read_idx(raw, "x").fill_(7)
    assert raw == idx(np.arange(6))


def test_cifar_order_is_label_then_channel_row_column() -> None:
    raw = bytes([3]) + bytes([10]) * 1024 + bytes([20]) * 1024 + bytes([30]) * 1023 + bytes([31])
    images, labels = read_cifar_binary(raw * 2, "x")
    assert images.shape == (2, 3, 32, 32) and images.dtype == torch.uint8
    assert labels.tolist() == [3, 3] and labels.dtype == torch.int64
    assert images[1, :, 0, 0].tolist() == [10, 20, 30] and int(images[1, 2, 31, 31]) == 31


@pytest.mark.parametrize(
    ("raw", "dims", "words"),
    [
        (b"", None, "truncated: 0 bytes"),
        (idx(np.zeros(60_000))[: 8 + 1234], 1, "truncated: its header promises 60,000 labels, 1,234 are there"),
        (idx(np.zeros((4, 28, 28)))[:-1], 3, "promises 4 images, 3 are there"),
        (idx(np.zeros((4, 28, 28)))[:9], 3, "its header alone takes 16"),
        (idx(np.zeros(4)) + b"!", 1, "too long: its header promises 4 labels in 12 bytes, the file has 13"),
        (b"<!DOCTYPE html>", 1, "not an IDX file: it begins with b'<!DO'"),
        (gzip.compress(idx(np.zeros(4)), mtime=0), 1, "not an IDX file"),
        (b"\0\0\x0b\x01" + b"\0\0\0\1" + b"\0\0", 1, "holds int16 values"),
        (idx(np.zeros((4, 28, 28))), 1, "holds images where labels are expected: the files seem to be swapped"),
        (idx(np.zeros(4)), 3, "holds labels where images are expected: the files seem to be swapped"),
        (idx(np.zeros((4, 4))), 3, "has 2 dimensions where 3 are expected"),
        (b"\0\0\x08\0", None, "claims 0 dimensions"),
        (idx(np.zeros(0)), 1, "holds no labels"),
        (b"\0\0\x08\x03" + b"\0\0\0\0" + b"\xff" * 8, 3, "holds no images"),
        (b"\0\0\x08\x03" + b"\xff" * 12, 3, "promises 4,294,967,295 images, 0 are there"),
    ],
)
def test_bad_idx_says_what_is_wrong(raw: bytes, dims: int | None, words: str) -> None:
    with pytest.raises(DataError) as caught:
        read_idx(raw, "labels.gz in /x", dims=dims)
    assert words in str(caught.value) and "labels.gz in /x" in str(caught.value)


@pytest.mark.parametrize(("raw", "words"), [(b"", "is empty"), (b"x" * 3074, "no whole number of records")])
def test_bad_cifar_says_what_is_wrong(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_cifar_binary(raw, "x")


def test_gzip_faults_are_told_apart() -> None:
    good = gzip.compress(b"payload" * 100)
    assert gunzip(good, "x") == b"payload" * 100
    flipped = bytearray(good)
    flipped[-6] ^= 0xFF
    for raw, words in [(good[:-9], "truncated"), (bytes(flipped), "corrupt"), (b"plain", "not gzip data")]:
        with pytest.raises(DataError, match=f"f.gz in /x is {words}"):
            gunzip(raw, "f.gz in /x")
    with pytest.raises(DataError, match="more than 99 bytes"):
        gunzip(good, "x", limit=99)


def test_tar_takes_basenames_and_ignores_paths_and_links() -> None:
    raw = tar_gz({"../../etc/a": b"outside", "/abs/b": b"absolute", "deep/er/c": b"unwanted"})
    assert read_tar(raw, {"a", "b"}, "x") == {"a": b"outside", "b": b"absolute"}
    with pytest.raises(DataError, match="larger than 3 bytes"):
        read_tar(raw, {"a"}, "x", limit=3)
    for cut in (raw[:-12], raw[: len(raw) // 2], b"no tar at all", b""):
        with pytest.raises(DataError):
            read_tar(cut, {"a", "b"}, "x")


def test_a_flipped_bit_in_an_archive_is_noticed() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    raw = bytearray(tar_gz({"a": noise}))
    raw[len(raw) // 2] ^= 1  # incompressible, so the bit lands in the content, where only the checksum can tell
    with pytest.raises(DataError, match="corrupt"):
        read_tar(bytes(raw), {"a"}, "x")


@pytest.mark.parametrize("kind", sorted(PARSERS))
@given(raw=st.binary(max_size=200))
def test_any_bytes_parse_or_raise_data_error(kind: str, raw: bytes) -> None:
    with contextlib.suppress(DataError):
        PARSERS[kind](raw)


@pytest.mark.parametrize("kind", sorted(PARSERS))
@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_parse_or_raise_data_error(kind: str, data: st.DataObject) -> None:
    raw = bytearray(GOOD[kind])
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    with contextlib.suppress(DataError):
        PARSERS[kind](bytes(raw[:cut]))
    if kind == "tar":  # the damage behind the compression, where the checksum does not stop it
        inner = bytearray(gzip.decompress(GOOD["tar"]))
        for _ in range(3):
            inner[data.draw(st.integers(0, 1200))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(DataError):
            PARSERS[kind](gzip.compress(bytes(inner)))


@pytest.mark.parametrize("kind", ["idx", "images", "gzip"])
@given(data=st.data())
def test_a_shortened_file_is_never_taken(kind: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(GOOD[kind]) - 1))
    with pytest.raises(DataError):
        PARSERS[kind](GOOD[kind][:cut])
