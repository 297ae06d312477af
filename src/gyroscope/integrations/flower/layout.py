"""From Flower's named arrays to one row and back, without trust in arrays that came over the network."""

from __future__ import annotations

import dataclasses
import io
import math
from typing import NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._core.errors import RowsError
from gyroscope._core.foreign_text import quoted

_STYPE = "numpy.ndarray"
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class RefusedError(Exception):
    """A reply that cannot be used. Its text says why, for events.csv."""


class Piece(NamedTuple):
    """One named array: the name, shape and dtype that a reply must have."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def floating(self) -> bool:
        return self.dtype.kind == "f"


class Values(NamedTuple):
    """The content of a valid record: all floating-point arrays as one vector, the others (counters, masks) by name."""

    vector: Tensor
    others: dict[str, NDArray[np.generic]]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The arrays of a model, in order, with their shapes and dtypes. `read` refuses whatever differs."""

    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, record: ArrayRecord) -> Layout:
        """Return the layout of arrays that are trusted: the server's initial ones."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "fiub":
                raise RowsError(f"the array {name!r} is of dtype {array.dtype}: only numbers can be aggregated")
        layout = cls(tuple(Piece(name, array.shape, array.dtype) for name, array in arrays.items()))
        if not any(piece.floating and piece.size for piece in layout.pieces):
            raise RowsError("the initial arrays hold no floating-point values: there is nothing to train")
        return layout

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows: float32, or float64 where an array is wider."""
        wide = any(piece.floating and piece.dtype.itemsize > 4 for piece in self.pieces)
        return torch.float64 if wide else torch.float32

    def read(self, record: ArrayRecord) -> Values:
        """Return the record's values, or raise `RefusedError`. It needs no more memory than the record itself takes."""
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
        """Return the record that `read` reads back to these values."""
        record = ArrayRecord()
        start = 0
        for piece in self.pieces:
            if piece.floating:
                part = values.vector[start : start + piece.size].numpy()
                start += piece.size
                with np.errstate(over="ignore"):  # float16 may overflow to inf, which the caller checks for
                    record[piece.name] = Array(part.astype(piece.dtype).reshape(piece.shape))
            else:
                record[piece.name] = Array(np.asarray(values.others[piece.name], dtype=piece.dtype))
        return record

    def mask(self, left_out: tuple[str, ...]) -> Tensor:
        """Return False for each value of a row whose array's name ends with one of these words, else True."""
        floating = [piece for piece in self.pieces if piece.floating]
        return torch.cat([torch.full((piece.size,), not piece.name.endswith(left_out)) for piece in floating])


def _decode(piece: Piece, array: Array) -> NDArray[np.generic]:
    """Return the array's values. The header must be the expected one, so that no reply makes the server allocate more
    than was sent, and nothing is ever unpickled."""
    if array.stype != _STYPE:
        raise RefusedError(f"{piece.name!r} is serialised as {quoted(array.stype)}, not as {_STYPE!r}")
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        shape, in_columns, dtype = _HEADER_READERS[version](stream)
    except Exception as problem:  # numpy parses a stranger's bytes: whatever it raises, they are no array
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
