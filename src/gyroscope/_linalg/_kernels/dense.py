"""Matrix products of the workers' gradients. The plain paths are in gyroscope._linalg.linear_layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gyroscope._linalg._kernels import memory, threads
from gyroscope._linalg.indexed_batch import IndexedBatch

IGNORED = -100
"""The target of a sample that does not count: the default `ignore_index` of torch's losses."""
_BYTES = 64
"""Two vectors: what a panel of weights is wide."""


class Layer:
    """The weights and the bias of a linear layer, as `linear` wants them. They are copies of what was."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.m, self.n = weight.shape
        self.dtype = weight.dtype
        width = _BYTES // weight.element_size()
        fill = -self.m % width
        panels = F.pad(weight.detach(), (0, 0, 0, fill)).view(-1, width, self.n).transpose(1, 2).contiguous()
        shift = panels.new_zeros(self.m + fill)
        if bias is not None:
            shift[: self.m].copy_(bias.detach())
        self.arrays = panels.view(-1).numpy(), shift.numpy()


def linear(inputs: Tensor | IndexedBatch, layer: Layer) -> Tensor:
    """(samples, n) inputs times the transpose of the layer's (m, n) weights, plus its bias."""
    from gyroscope._linalg._kernels.compiled import dense

    rows, picked, samples = _samples(inputs, layer)
    out = rows.new_empty(samples, layer.m)
    bounds = threads.pieces(layer.n, samples, dense.ROWS)
    arrays = memory.flat(rows), picked, *layer.arrays, out.view(-1).numpy()

    def work(begin: int, end: int) -> None:
        dense.linear(*arrays, bounds[begin], bounds[end], layer.n, layer.m)

    threads.spread(work, len(bounds) - 1)
    return out


class Classified(NamedTuple):
    """What became of samples."""

    losses: Tensor
    """(samples,)"""
    hidden: Tensor
    """(samples, m): what the last layer was given."""
    hidden_slopes: Tensor
    """(samples, m): how the losses, times the shares, change with what the first layer gave."""
    slopes: Tensor
    """(samples, c): how they change with what the last layer gave."""


def classify(
    inputs: Tensor | IndexedBatch, layer: Layer, weight: Tensor, bias: Tensor | None, targets: Tensor, shares: Tensor
) -> Classified:
    """The inputs through a linear layer, ReLU, a linear layer with (c, m) weights, and cross entropy with the targets.

    targets: (samples,), from 0 to c - 1, or -100 for samples that do not count, whatever they hold (where they hold NaN
    or inf, torch has NaN for a slope, and not zero). shares: (workers,), by which the losses
    of a worker's samples, equally many for each, count when they are differentiated.
    """
    from gyroscope._linalg._kernels.compiled import dense

    rows, picked, samples = _samples(inputs, layer)
    c, h = len(weight), len(shares)
    alike = {each.dtype for each in (weight, shares, *([] if bias is None else [bias]))} == {layer.dtype}
    fit = weight.shape == (c, layer.m) and targets.shape == (samples,) and h > 0 and samples % h == 0
    if not fit or not alike or targets.dtype != torch.int64 or samples == 0:
        raise ValueError("inputs, weights, targets and shares must be of fitting shapes and types")
    if not targets_fit(targets, c):
        raise ValueError(f"targets must be from 0 to {c - 1}, or {IGNORED}")
    last, back = Layer(weight, bias), Layer(weight.T, None)
    losses, slopes = rows.new_empty(samples), rows.new_empty(samples, c)
    hidden, hidden_slopes = rows.new_empty(samples, layer.m), rows.new_empty(samples, layer.m)
    given = memory.flat(rows), picked, *layer.arrays, *last.arrays, *back.arrays
    truth = memory.flat(targets.contiguous()), memory.flat(shares.contiguous())
    results = memory.flat(hidden), memory.flat(hidden_slopes), memory.flat(slopes), memory.flat(losses)
    bounds = threads.pieces(layer.n, samples, dense.ROWS)

    def work(begin: int, end: int) -> None:
        dense.classify(*given, *truth, *results, bounds[begin], bounds[end], layer.n, layer.m, c, IGNORED)

    threads.spread(work, len(bounds) - 1)
    return Classified(losses, hidden, hidden_slopes, slopes)


def targets_fit(targets: Tensor, c: int) -> bool:
    """Whether all are from 0 to c - 1, or mark samples that do not count."""
    numbers = memory.flat(targets)
    return bool(numbers.max() < c and (numbers.min() >= 0 or ((numbers >= 0) | (numbers == IGNORED)).all()))


class Gradient(NamedTuple):
    """What makes up each worker's gradient of one linear layer."""

    slopes: Tensor
    """(h, b, m): how the loss changes with the layer's outputs."""
    given: Tensor | IndexedBatch
    """(h, b, n): what the layer was given. Or which rows of a matrix it was, by (h, b) numbers."""
    has_bias: bool

    @property
    def n(self) -> int:
        """How many inputs the layer has."""
        return (self.given.source if isinstance(self.given, IndexedBatch) else self.given).shape[-1]

    @property
    def size(self) -> int:
        """How many values it has."""
        m = self.slopes.shape[2]
        return m * self.n + m if self.has_bias else m * self.n


def check_rows(layers: Sequence[Gradient], shift: Tensor | None, out: Tensor) -> None:
    """An error unless the layers' gradients make up rows like these."""
    kinds = {_kind(each) for layer in layers for each in (layer.slopes, layer.given)}
    samples = max((layer.slopes.shape[1] for layer in layers), default=0)
    width = sum(layer.size for layer in layers)
    if samples == 0 or kinds != {(len(out), samples, 3, out.dtype)} or out.shape[1:] != (width,):
        raise ValueError("the layers' slopes and what they were given must fit the rows, and be of one type")
    if shift is not None and (shift.shape != out.shape[1:] or shift.dtype != out.dtype):
        raise ValueError("the shift must be a vector as long as the rows, and of their type")


def gradient_rows(layers: Sequence[Gradient], shift: Tensor | None, limit: float, out: Tensor) -> None:
    """Each worker's row of `out` (h, d): the gradients of its layers one after the other, each the transpose of the
    worker's slopes times what it was given, then the sums of the slopes. Shifted and clipped like `shift_and_clip`."""
    from gyroscope._linalg._kernels.compiled import dense

    check_rows(layers, shift, out)
    (h, d), b = out.shape, layers[0].slopes.shape[1]
    if out.stride(1) != 1 and d > 1:
        raise ValueError("the columns of the rows must be neighbours in memory")
    slopes = [layer.slopes.contiguous() for layer in layers]
    given, indices = zip(*(_parts(layer.given) for layer in layers), strict=True)
    rows = memory.flat(out)
    addresses: tuple[Any, Any, Any] = _addresses(slopes), _addresses(given), _addresses(indices)
    shapes = np.array(
        [
            (layer.slopes.shape[2], layer.n, layer.has_bias, values.numel())
            for layer, values in zip(layers, given, strict=True)
        ]
    )
    vector = rows[:0] if shift is None else memory.flat(shift.contiguous())
    bounds = threads.pieces(max(d, *(b * layer.n for layer in layers)), h, 1)
    like, stride = rows[:0], out.stride(0)

    def work(begin: int, end: int) -> None:
        workers = bounds[begin], bounds[end]
        dense.rows_by_worker(*addresses, shapes, like, rows, stride, d, *workers, b, vector, limit)

    threads.spread(work, len(bounds) - 1)


_NONE = np.empty(0, np.int64)


def _samples(inputs: Tensor | IndexedBatch, layer: Layer) -> tuple[Tensor, Any, int]:
    """Inputs of a layer: one row per sample, the numbers of those that are meant, if not all, and how many that is."""
    rows, index = _parts(inputs)
    if rows.dim() != 2 or rows.shape[1] != layer.n or rows.dtype != layer.dtype:
        raise ValueError(
            f"the layer takes (samples, {layer.n}) values of {layer.dtype}, not {tuple(rows.shape)} of {rows.dtype}"
        )
    return rows, *((_NONE, len(rows)) if index is None else (memory.flat(index), index.numel()))


def _kind(values: Tensor | IndexedBatch) -> tuple[Any, ...]:
    """The workers, their samples, the number of dimensions, and the type of (h, b, n) values."""
    if isinstance(values, IndexedBatch):
        shape = *values.index.shape, *values.source.shape[1:]
        return *shape[:2], len(shape), values.source.dtype
    return *values.shape[:2], values.dim(), values.dtype


def _parts(values: Tensor | IndexedBatch) -> tuple[Tensor, Tensor | None]:
    """Rows one after the other in memory, and which of them are meant, unless it is all of them."""
    if not isinstance(values, IndexedBatch):
        return values.contiguous(), None
    rows, index = values.source.contiguous(), values.index.contiguous()
    if rows.dim() != 2:
        raise ValueError(f"rows must be picked from a matrix, not from values of the shape {tuple(rows.shape)}")
    if index.dtype != torch.int64 or not index.is_cpu:
        raise ValueError(f"rows must be picked by torch.int64 on the CPU, not by {index.dtype} on {index.device}")
    numbers = memory.flat(index)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(rows):
        raise IndexError(f"rows {numbers.min()} to {numbers.max()} are picked, and there are {len(rows)}")
    return rows, index


def _addresses(tensors: Sequence[Tensor | None]) -> Any:
    """numba would compile anew for each number of arrays. The caller keeps the memory alive."""
    return np.array([0 if each is None else each.data_ptr() for each in tensors], dtype=np.int64)
