"""From Flower's named arrays to one row and back, trusting nothing about arrays that came over the network."""

from __future__ import annotations

import dataclasses
import io
import math

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._core.errors import RowsError
from gyroscope._core.sanitize import quoted

_STYPE = "numpy.ndarray"
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class RefusedError(Exception):
    """A reply that cannot be used. Its text says why, for the table of events."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """One named array: what its bytes must say that they are."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        return self.dtype.kind == "f"


@dataclasses.dataclass(frozen=True)
class Values:
    """The content of a valid record: all floating-point arrays as one vector, the others (counters, masks) by name."""

    vector: Tensor
    others: dict[str, NDArray[np.generic]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which arrays a model has, in which order and of which kind. Whatever differs from it is refused."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """The layout of arrays that are trusted: those that the server begins with."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise RowsError(f"the array {name!r} is of dtype {array.dtype}: only numbers can be aggregated")
        layout = cls(tuple(Piece(name, array.shape, array.dtype) for name, array in arrays.items()))
        if not any(piece.floating and piece.size for piece in layout.pieces):
            raise RowsError("the arrays to begin with hold no floating-point values: there is nothing to train")
        return layout

    @property
    def dtype(self) -> torch.dtype:
        """That of the rows: float32, or float64 where an array is wider."""
        wide = any(piece.floating and piece.dtype.itemsize > 4 for piece in self.pieces)
        return torch.float64 if wide else torch.float32

    @property
    def width(self) -> int:
        return sum(piece.size for piece in self.pieces if piece.floating)

    def read(self, record: ArrayRecord) -> Values:
        """The record's values, or `RefusedError`. Memory use is bounded by what the record itself takes."""
        names = [piece.name for piece in self.pieces]
        missing = [name for name in names if name not in record]
        extra = [name for name in record if name not in names]
        if missing:
            raise RefusedError(f"the array {missing[0]!r} is missing")
        if extra:
            raise RefusedError(f"there is an array too many: {quoted(extra[0])}")
        arrays = {piece.name: _decode(piece, record[piece.name]) for piece in self.pieces}
        floating = [arrays[piece.name].reshape(-1) for piece in self.pieces if piece.floating]
        vector = torch.cat([torch.from_numpy(array.astype(np.float64)).to(self.dtype) for array in floating])
        return Values(vector, {piece.name: arrays[piece.name] for piece in self.pieces if not piece.floating})

    def write(self, values: Values) -> ArrayRecord:
        """The record that `read` reads back to these values."""
        record = ArrayRecord()
        start = 0
        for piece in self.pieces:
            if piece.floating:
                part = values.vector[start : start + piece.size].numpy()
                start += piece.size
                with np.errstate(over="ignore"):  # float16 may overflow: to inf, which the caller looks for
                    record[piece.name] = Array(part.astype(piece.dtype).reshape(piece.shape))
            else:
                record[piece.name] = Array(np.asarray(values.others[piece.name], dtype=piece.dtype))
        return record

    def mask(self, left_out: tuple[str, ...]) -> Tensor:
        """(width,): True where a value belongs to an array whose name ends with none of the given words."""
        return torch.cat(
            [
                torch.full((piece.size,), not piece.name.endswith(left_out) if left_out else True)
                for piece in self.pieces
                if piece.floating
            ]
        )


def _decode(piece: Piece, array: Array) -> NDArray[np.generic]:
    """The array's values. Its header is believed only where it says what is expected, so that nobody can make the
    server allocate more than was sent, and nothing is ever unpickled."""
    if array.stype != _STYPE:
        raise RefusedError(f"{piece.name!r} is serialised as {quoted(array.stype)}, not as {_STYPE!r}")
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, in_columns, dtype = _HEADER_READERS[version](stream)
    except Exception as problem:  # numpy's parser meets a stranger's bytes: whatever it raises, they are no array
        raise RefusedError(f"{piece.name!r} is no .npy array: {quoted(problem)}") from problem
    if dtype != piece.dtype:
        raise RefusedError(f"{piece.name!r} has the dtype {quoted(dtype)}, not {piece.dtype}")
    if shape != piece.shape or tuple(array.shape) != piece.shape:
        raise RefusedError(f"{piece.name!r} has the shape {quoted(shape)}, announced {quoted(tuple(array.shape))}, not "
                      f"{piece.shape}")  # fmt: skip
    left = len(array.data) - stream.tell()
    if left != piece.size * piece.dtype.itemsize:
        raise RefusedError(f"{piece.name!r} has {left} bytes of values, not {piece.size * piece.dtype.itemsize}")
    flat = np.frombuffer(array.data, dtype=piece.dtype, offset=stream.tell())
    return flat.reshape(piece.shape, order="F" if in_columns else "C")
