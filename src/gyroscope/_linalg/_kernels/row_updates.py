"""Kernels that copy or change a matrix row by row. Plain paths: _linalg.matrix, momentum.worker_momentum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg._kernels import compiled, threads
from gyroscope._linalg._kernels.compiled import flat


def copy_finite(source: Tensor, target: Tensor) -> bool:
    """Copy a vector bit by bit, in the calling thread; return whether it is free of NaN and infinities."""
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError("source and target must have one length and one type")
    return bool(compiled.row_loops.copy_finite(flat(source), flat(target)))


def shift_and_clip(rows: Tensor, shift: Tensor | None, limit: float) -> None:
    """Add a vector to every row, then scale every row whose norm exceeds the limit to that norm. In place."""
    n, d = rows.shape
    matrix = flat(rows)
    vector = matrix[:0] if shift is None else flat(shift)
    threads.spread_rows(compiled.row_loops.shift_and_clip, n, d, matrix, rows.stride(0), d, vector, limit)


def scaled(rows: Tensor, factors: Tensor, origin: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return each row's difference from the origin (or zero) times its factor, in `out` if given."""
    n, d = rows.shape
    out = torch.empty(n, d, dtype=rows.dtype) if out is None else out
    values = flat(rows)
    also = values[:0] if origin is None else flat(origin)
    known = factors.numpy().astype(np.float64, copy=False)
    arguments = values, rows.stride(0), d, known, also, flat(out), out.stride(0)
    threads.spread_rows(compiled.row_loops.scale, n, d, *arguments)
    return out


def sign_counts(rows: Tensor, places: Tensor) -> Tensor:
    """Return (n, 3): how many of each row's values at these places are positive, zero (or NaN) and negative."""
    n = len(rows)
    counts = np.empty((n, 3), np.int64)
    arguments = flat(rows), rows.stride(0), places.numpy(), counts
    threads.spread_rows(compiled.row_loops.sign_counts, n, 8 * len(places), *arguments)
    return torch.from_numpy(counts)


def finite_rows(rows: Tensor) -> Tensor:
    """Return (n,): which rows hold neither NaN nor infinities."""
    return finite_and_gathered(rows, [])[0]


def finite_and_gathered(rows: Tensor, places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return `finite_rows`, and the values at several sorted sequences of places, side by side, in one pass."""
    n, d = rows.shape
    bounds = threads.pieces(n, d, 64)
    cuts = np.empty((len(bounds), len(places)), np.int64)
    begin = 0
    for i, sequence in enumerate(places):
        cuts[:, i] = np.searchsorted(sequence.numpy(), bounds) + begin
        begin += len(sequence)
    every = torch.cat([*places]).numpy() if places else np.empty(0, np.int64)
    out, finite = torch.empty(n, begin, dtype=rows.dtype), np.empty((len(bounds) - 1, n), np.bool_)
    arguments = flat(rows), n, rows.stride(0), bounds, every, cuts, flat(out), finite
    threads.spread(compiled.row_loops.check_and_gather, len(finite), *arguments)
    return torch.from_numpy(finite.all(axis=0)), out


def gathered(rows: Tensor, places: Tensor) -> Tensor:
    """Return (n, k): the values of all rows at these places."""
    n, k = len(rows), len(places)
    out = torch.empty(n, k, dtype=rows.dtype)
    threads.spread_rows(compiled.row_loops.gather, n, 8 * k, flat(rows), rows.stride(0), places.numpy(), flat(out))
    return out


def accumulate(memory: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> Tensor | None:
    """Add mu times the rows of `memory` and gain times those of `gradient`, in place, where the sums are finite.

    The two must be of one shape and dtype, and share no memory unless element i is the same in both.
    """
    n, d = memory.shape
    if n == 1 and threads.is_large(1, d):
        return None if accumulate_row(memory, gradient, mu, gain) else torch.zeros(1, dtype=torch.bool)
    matrices = flat(memory), memory.stride(0), flat(gradient), gradient.stride(0)
    finite = np.empty(n, np.bool_)
    threads.spread_rows(compiled.row_loops.accumulate, n, d, *matrices, d, mu, gain, finite)
    return None if finite.all() else torch.from_numpy(finite)


def accumulate_row(memory: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> bool:
    """Accumulate a single row, whose columns the threads share: all of them check their sums before one writes."""
    sums = flat(memory), flat(gradient), mu, gain
    bounds = threads.pieces(1, memory.numel(), 16)
    finite = np.empty(len(bounds) - 1, np.bool_)
    threads.spread(compiled.row_loops.check_sums, len(finite), *sums, bounds, finite)
    if finite.all():
        threads.spread_pieces(compiled.row_loops.write_sums, bounds, *sums)
    return bool(finite.all())
