"""Checks and passes over (n, d) matrices with one worker's vector per row.

A pass without a kernel works in float64 on one block of columns at a time, so that it makes no copy of the matrix. No
size depends on values, so the host need not wait for a GPU. Rows that a pass leaves out may hold NaN or infinities:
they are masked, never multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gyroscope._core.errors import RowsError
from gyroscope._linalg._kernels import accelerated_by, row_updates, sums, usable

_BLOCK = 8192
"""Columns per block: 51 rows of this many float64 values fit in a core's cache."""


def check(rows: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the rows as an (n, d) floating-point tensor without gradient history.

    Raises:
        RowsError: the rows are not a floating-point matrix, nor vectors of one length, dtype and device.
    """
    if not isinstance(rows, Tensor):
        if not isinstance(rows, Sequence):
            raise RowsError(
                f"rows must be an (n, d) tensor or a sequence of vectors, got a {type(rows).__name__}: convert arrays "
                "with torch.from_numpy"
            )
        rows = _stack(rows)
    if rows.dim() != 2 or rows.shape[0] == 0 or rows.shape[1] == 0:
        raise RowsError(f"rows must have the shape (n, d) with n >= 1 and d >= 1, got {tuple(rows.shape)}")
    if not rows.is_floating_point():
        raise RowsError(f"rows must be floating-point, got {rows.dtype}: convert them with rows.float()")
    return rows.detach()


def _stack(rows: Sequence[Tensor]) -> Tensor:
    rows = list(rows)
    if not rows:
        raise RowsError("there are no rows: a rule needs at least one")
    first = rows[0]
    for index, row in enumerate(rows):
        if not isinstance(row, Tensor):
            raise RowsError(f"row {index} is a {type(row).__name__}, not a tensor")
        if row.dim() != 1:
            raise RowsError(f"row {index} must be a vector, got the shape {tuple(row.shape)}")
        if row.shape != first.shape:
            raise RowsError(f"rows are ragged: row 0 has shape {tuple(first.shape)}, row {index} {tuple(row.shape)}")
        if row.dtype != first.dtype or row.device != first.device:
            raise RowsError(
                f"rows are of mixed kinds: row 0 is {first.dtype} on {first.device}, "
                f"row {index} {row.dtype} on {row.device}"
            )
    return torch.stack(rows)


def all_finite(values: Tensor) -> Tensor:
    """Return whether no value is NaN or infinite: one bool, still on the device, so that the host need not wait for it.

    A sum is finite only if all its terms are, and on a CPU it takes a thirtieth of the time of `isfinite().all()`. Only
    where the sum is not finite must the values themselves decide: finite values may add up to infinity.
    """
    if values.device.type == "cpu":
        finite = values.sum().isfinite()
        if finite:
            return finite
    return values.isfinite().all()


@accelerated_by(row_updates.copy_finite, usable)
def copy_finite(source: Tensor, target: Tensor) -> bool:
    """Copy a vector and return whether it is free of NaN and infinities: on a CPU in one pass over memory."""
    return bool(all_finite(target.copy_(source)))


@accelerated_by(row_updates.finite_rows)
def finite_rows(rows: Tensor) -> Tensor:
    """Return (n,): which rows hold neither NaN nor infinities."""
    finite = squared_lengths(rows).isfinite()
    return rows.isfinite().all(dim=1) if rows.dtype == torch.float64 else finite  # their squares may overflow


@accelerated_by(row_updates.sign_counts)
def sign_counts(rows: Tensor, places: Tensor) -> Tensor:
    """Return (n, 3): how many of each row's values at these places are positive, zero (or NaN) and negative."""
    part = gathered(rows, places)
    positive, negative = (part > 0).sum(dim=1), (part < 0).sum(dim=1)
    return torch.stack([positive, part.shape[1] - positive - negative, negative], dim=1)


@accelerated_by(row_updates.gathered)
def gathered(rows: Tensor, places: Tensor) -> Tensor:
    """Return (n, k): the values of all rows at these places."""
    return rows.index_select(1, places.to(rows.device))


@accelerated_by(row_updates.finite_and_gathered)
def finite_and_gathered(rows: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return `finite_rows`, and the values at several sequences of places, side by side: on a CPU in one pass.

    Each sequence is sorted.
    """
    return finite_rows(rows), torch.cat([gathered(rows, each) for each in places], dim=1)


def blocks(rows: Tensor, point: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of columns, each as its slice and a new float64 matrix of the rows (less the point) there."""
    for start in range(0, rows.shape[1], _BLOCK):
        columns = slice(start, start + _BLOCK)
        block = rows[:, columns].to(torch.float64, copy=True)
        yield columns, block if point is None else block.sub_(point[columns])


def _with(rows: Tensor, *others: object, **more: object) -> bool:
    """Return whether the kernels take the matrix and the vectors of its dtype that belong to it."""
    vectors = [other for other in (*others, *more.values()) if isinstance(other, Tensor) and other.dim() == 1]
    return usable(rows, *(vector for vector in vectors if vector.shape == rows.shape[1:]))


@accelerated_by(sums.squared_lengths, _with)
def squared_lengths(rows: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return the (n,) squared distances of the rows from zero or another origin; inf for a row that is not finite."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for _, block in blocks(rows, origin):
        total += block.square_().sum(dim=1)
    return total.nan_to_num_(nan=torch.inf, posinf=torch.inf)


@accelerated_by(sums.squared_lengths_and_products, _with)
def squared_lengths_and_products(rows: Tensor, vector: Tensor, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return `squared_lengths`, and the (n,) inner products of the rows (less the origin) with a vector.

    The product of a row that is not finite is not finite.
    """
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for columns, block in blocks(rows, origin):
        total += block @ vector[columns].to(torch.float64)
    return squared_lengths(rows, origin), total


@accelerated_by(row_updates.scaled, _with)
def scaled(rows: Tensor, factors: Tensor, origin: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return each row's difference from the origin (or zero) times its factor, in float64.

    Args:
        rows: (n, d).
        factors: (n,). Where one is zero the result is zero, whatever the row holds.
        origin: (d,).
        out: where to write the result; it may have another dtype than the rows.
    """
    out = torch.empty_like(rows, memory_format=torch.contiguous_format) if out is None else out
    unused = (factors == 0).unsqueeze(1)
    for columns, block in blocks(rows, origin):
        out[:, columns] = block.mul_(factors.unsqueeze(1)).masked_fill_(unused, 0.0).to(out.dtype)
    return out


@accelerated_by(sums.weighted_sum, _with)
def weighted_sum(
    rows: Tensor, factors: Tensor, divisor: Tensor | float = 1.0, origin: Tensor | None = None,
    share: Tensor | float = 1.0,
) -> Tensor:  # fmt: skip
    """Return the sum of the rows times their factors, divided by the divisor, in float64; rounded to the rows' dtype.

    Args:
        rows: (n, d). A row with the factor zero may hold anything.
        factors: (n,).
        divisor: with integer factors and their sum as the divisor, the mean of equal rows is equal to them.
        origin: (d,): this vector, times its share, is added to the quotient.
        share: the factor of the origin.
    """
    unused = (factors == 0).unsqueeze(1)
    parts = [factors.to(torch.float64) @ block.masked_fill_(unused, 0.0) for _, block in blocks(rows)]
    total = torch.cat(parts) / divisor
    return (total if origin is None else total + origin.to(torch.float64) * share).to(rows.dtype)


def combined(rows: Tensor, weights: Tensor, divisors: Tensor | None = None) -> Tensor:
    """Return the (m, d) sums of rows weighted by (m, n) `weights`, each divided by its divisor.

    With integer weights and a divisor, the mean of equal rows is equal to them. A row with no weight may hold anything.
    """
    out = rows.new_empty(weights.shape[0], rows.shape[1])
    unused = (weights == 0).all(dim=0).unsqueeze(1)
    for columns, block in blocks(rows):
        total = weights @ block.masked_fill_(unused, 0.0)
        out[:, columns] = (total if divisors is None else total / divisors.unsqueeze(1)).to(rows.dtype)
    return out


@accelerated_by(sums.mean_of)
def mean_of(rows: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean of the rows with the chosen indices. The other rows are never read: they may hold NaN."""
    return rows.index_select(0, chosen).mean(dim=0)


def _same_kind(rows: Tensor, shift: Tensor | None, limit: float) -> bool:
    return usable(rows) if shift is None else usable(rows, shift)


@accelerated_by(row_updates.shift_and_clip, _same_kind)
def shift_and_clip(rows: Tensor, shift: Tensor | None, limit: float) -> None:
    """Add a vector to every row, then scale every row whose norm exceeds the limit to that norm. In place.

    With a finite limit, a row that is not finite becomes NaN as a whole, so that any of its values tells.
    """
    if shift is not None:
        rows.add_(shift)
    if limit == float("inf"):
        return
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)  # no square overflows
    scale = (limit / norms).clamp_max_(1.0).masked_fill_(~norms.isfinite(), torch.nan)
    rows.mul_(scale.to(rows.dtype))
