"""How a worker writes its row for the server: as it is, in half precision, or its largest values only.

A format takes a fixed number of bytes for a given dimension, so that the server knows the only size that can be right
before it takes any of them. What comes in is a stranger's: `decode` writes nothing that it has not checked.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg.matrix import all_finite, copy_finite

_LARGEST_INDEX = 2**31 - 1


class MalformedRowError(Exception):
    """Values that are no row in this format; the text says why."""


@dataclasses.dataclass(frozen=True)
class RowFormat(registry.Named):
    """How rows are written, by name: `count(d)` values of `dtype_for(the row's dtype)`."""

    kind_in_errors = "row format"
    shows_row: ClassVar[bool] = True
    """Whether all of the row is in what is sent, up to rounding."""

    @property
    def keeps_rest(self) -> bool:
        """Whether a worker keeps what it does not send, and adds it to its next row (`RowWriter`)."""
        return False

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of the values that are sent of a row of this type."""
        return dtype

    def count(self, d: int) -> int:
        """Return how many values are sent of a row of d."""
        return d

    @abstractmethod
    def encode(self, row: Tensor, out: Tensor) -> None:
        """Write a row, which may hold NaN or inf, into the values to send. If it does, the server finds some, too."""

    @abstractmethod
    def decode(self, values: Tensor, row: Tensor) -> bool:
        """Write what was sent into a row, and return whether it is finite.

        Raises:
            MalformedRowError: they are no row, which is left as it was. Nothing else is raised, whatever they are.
        """


@dataclasses.dataclass(frozen=True)
class Full(RowFormat):
    """The row as it is: each value in the type of the parameters."""

    name = "full"

    def encode(self, row: Tensor, out: Tensor) -> None:
        out.copy_(row)

    def decode(self, values: Tensor, row: Tensor) -> bool:
        return copy_finite(values, row)


@dataclasses.dataclass(frozen=True)
class Float16(Full):
    """Each value in 2 bytes: 11 significant bits, up to 65,504; a larger one becomes inf, and the row is left out."""

    name = "float16"

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float16


@dataclasses.dataclass(frozen=True)
class BFloat16(Full):
    """Each value in 2 bytes: 8 significant bits, and the range of float32."""

    name = "bfloat16"

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16


@dataclasses.dataclass(frozen=True)
class TopK(RowFormat):
    """The k = max(1, round(share * d)) values of largest magnitude: k indices (int32) and k values (float32).

    The values that are not sent are lost, or with feedback added to the next row. Workers with feedback send other
    indices than each other, and the median of values most of which are zero is zero: docs/server.md has the cost.
    """

    name = "top-k"
    shows_row = False
    share: float = registry.number(0.1, "above 0 and at most 1", lambda share: 0 < share <= 1)
    feedback: bool = registry.choice(False, (False, True))

    @property
    def keeps_rest(self) -> bool:
        return self.feedback

    def dtype_for(self, dtype: torch.dtype) -> torch.dtype:
        return torch.int32  # the values' bits stand behind the indices

    def count(self, d: int) -> int:
        if d > _LARGEST_INDEX:
            raise ConfigError(f"top-k has indices up to {_LARGEST_INDEX:,}, the model has {d:,} values: use bfloat16")
        return 2 * max(1, round(self.share * d))

    def encode(self, row: Tensor, out: Tensor) -> None:
        k = out.numel() // 2
        # NaN counts as the largest magnitude, and inf as the next.
        indices = row.abs().topk(k, sorted=False).indices.sort().values
        out[:k].copy_(indices)
        out[k:].view(torch.float32).copy_(row[indices])

    def decode(self, values: Tensor, row: Tensor) -> bool:
        indices, found = values.view(2, -1)
        first, last = int(indices[0]), int(indices[-1])
        if not bool((indices[1:] > indices[:-1]).all()):
            raise MalformedRowError("the indices of its row do not increase, as those of a top-k row do")
        if first < 0 or last >= row.numel():
            wrong = first if first < 0 else last
            raise MalformedRowError(f"its row has the index {wrong:,}, only 0 to {row.numel() - 1:,} exist")
        given = found.view(torch.float32)
        row.zero_()[indices.to(row.device, torch.int64)] = given.to(row.device, row.dtype)
        return bool(all_finite(given))


ROW_FORMATS: dict[str, type[RowFormat]] = {kind.name: kind for kind in (Full, Float16, BFloat16, TopK)}


def parse(spec: str) -> RowFormat:
    """Return the format of a spec, such as "top-k:share=0.01". No other class than those listed is ever imported.

    Raises:
        UnknownNameError: there is no such format.
        ConfigError: its parameters are wrong.
    """
    name, parameters = registry.split(spec)
    if name not in ROW_FORMATS:
        raise UnknownNameError(RowFormat.kind_in_errors, name, ROW_FORMATS)
    return registry.make(RowFormat.kind_in_errors, RowFormat, ROW_FORMATS, name, parameters)


class RowWriter:
    """Write a worker's rows in a format; add what was left out of a row to the next one, where the format says so.

    A row that is not finite, or that would make the rest so, is sent as it is and leaves the rest as it was: like a
    gradient in `WorkerMomentum`, it costs its worker one round.
    """

    def __init__(self, row_format: RowFormat) -> None:
        self.row_format = row_format
        self.rest: Tensor | None = None
        """(d,): what was not sent; None before the first row, and where nothing is left out."""

    def write(self, row: Tensor, out: Tensor) -> None:
        """Write a row into the values to send. It does not change."""
        if not self.row_format.keeps_rest:
            self.row_format.encode(row, out)
            return
        total = row.clone() if self.rest is None else row + self.rest
        self.row_format.encode(total, out)
        sent = torch.empty_like(total)
        self.row_format.decode(out, sent)
        rest = total.sub_(sent)
        if bool(all_finite(rest)):
            self.rest = rest
        else:
            self.row_format.encode(row, out)

    def forget(self) -> None:
        """Begin anew, without a rest."""
        self.rest = None
