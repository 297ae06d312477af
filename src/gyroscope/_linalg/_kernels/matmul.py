"""Linear layers and their gradients per worker. Plain paths: gyroscope._linalg.linear_layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gyroscope._linalg._kernels import compiled, threads
from gyroscope._linalg._kernels.compiled import addresses, flat
from gyroscope._linalg.indexed_batch import IndexedBatch

IGNORED = -100
"""The target of a sample that does not count: the default `ignore_index` of torch's losses."""
_BYTES = 64
"""The width of a panel of weights: two vectors."""
_NO_INDEX = np.empty(0, np.int64)


class PackedLayer:
    """A copy of a linear layer's weights and bias, packed for `linear` into panels as wide as two vectors."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.m, self.n = weight.shape
        self.dtype = weight.dtype
        width = _BYTES // weight.element_size()
        fill = -self.m % width
        panels = F.pad(weight.detach(), (0, 0, 0, fill)).view(-1, width, self.n).transpose(1, 2).contiguous()
        padded_bias = panels.new_zeros(self.m + fill)
        if bias is not None:
            padded_bias[: self.m].copy_(bias.detach())
        self.arrays = panels.view(-1).numpy(), padded_bias.numpy()


def linear(inputs: Tensor | IndexedBatch, layer: PackedLayer) -> Tensor:
    """Return (samples, n) inputs times the transpose of the layer's (m, n) weights, plus its bias."""
    rows, index, samples = _samples(inputs, layer)
    out = rows.new_empty(samples, layer.m)
    loops = compiled.matmul_loops
    bounds = threads.pieces(layer.n, samples, loops.ROWS)
    threads.spread_pieces(loops.linear, bounds, flat(rows), index, *layer.arrays, flat(out), layer.n, layer.m)
    return out


class Classified(NamedTuple):
    """The result of a forward and a backward pass through a classifier with one hidden layer."""

    losses: Tensor
    """(samples,)"""
    hidden: Tensor
    """(samples, m): the inputs of the last layer."""
    grad_preactivation: Tensor
    """(samples, m): the gradient of the weighted losses with respect to the outputs of the first layer."""
    grad_logits: Tensor
    """(samples, c): the gradient of the weighted losses with respect to the outputs of the last layer."""


def classify(
    inputs: Tensor | IndexedBatch, first: PackedLayer, weight: Tensor, bias: Tensor | None, targets: Tensor,
    shares: Tensor,
) -> Classified:  # fmt: skip
    """Pass inputs through a linear layer, ReLU, a linear layer with (c, m) weights and cross entropy, and back.

    Args:
        inputs: (samples, n), equally many samples for each worker.
        first: the first layer.
        weight: (c, m), of the last layer.
        bias: (c,), of the last layer.
        targets: (samples,), from 0 to c - 1, or -100 for samples that do not count: their gradients are zero. (torch's
            are NaN where such a sample holds NaN or infinities.)
        shares: (workers,), the factors of the workers' losses before they are differentiated.
    """
    rows, index, samples = _samples(inputs, first)
    c, h = len(weight), len(shares)
    alike = {each.dtype for each in (weight, shares, *([] if bias is None else [bias]))} == {first.dtype}
    fit = weight.shape == (c, first.m) and targets.shape == (samples,) and h > 0 and samples % h == 0
    if not fit or not alike or targets.dtype != torch.int64 or samples == 0:
        raise ValueError("inputs, weights, targets and shares must be of fitting shapes and types")
    if not targets_fit(targets, c):
        raise ValueError(f"targets must be from 0 to {c - 1}, or {IGNORED}")
    last, back = PackedLayer(weight, bias), PackedLayer(weight.T, None)
    found = Classified(*(rows.new_empty(samples, *width) for width in ((), (first.m,), (first.m,), (c,))))
    given = flat(rows), index, *first.arrays, *last.arrays, *back.arrays
    truth = flat(targets.contiguous()), flat(shares.contiguous())
    arrays = *given, *truth, *map(flat, found)
    bounds = threads.pieces(first.n, samples, compiled.matmul_loops.ROWS)
    threads.spread_pieces(compiled.matmul_loops.classify, bounds, *arrays, first.n, first.m, c, IGNORED)
    return found


def targets_fit(targets: Tensor, c: int) -> bool:
    """Return whether all targets are from 0 to c - 1, or mark samples that do not count."""
    numbers = flat(targets)
    return bool(numbers.max() < c and (numbers.min() >= 0 or ((numbers >= 0) | (numbers == IGNORED)).all()))


class Gradient(NamedTuple):
    """The factors of each worker's gradient of one linear layer."""

    grad_output: Tensor
    """(h, b, m): the gradient of the loss with respect to the layer's outputs."""
    inputs: Tensor | IndexedBatch
    """(h, b, n): the layer's inputs; or a matrix and the (h, b) indices of its rows that are the inputs."""
    has_bias: bool

    @property
    def m(self) -> int:
        """The number of the layer's outputs."""
        return self.grad_output.shape[2]

    @property
    def n(self) -> int:
        """The number of the layer's inputs."""
        return (self.inputs.source if isinstance(self.inputs, IndexedBatch) else self.inputs).shape[-1]


def check_rows(layers: Sequence[Gradient], shift: Tensor | None, out: Tensor) -> None:
    """Raise ValueError unless the layers' gradients make up rows like those of `out`."""
    kinds = {_kind(each) for layer in layers for each in (layer.grad_output, layer.inputs)}
    samples = max((layer.grad_output.shape[1] for layer in layers), default=0)
    width = sum(layer.m * (layer.n + layer.has_bias) for layer in layers)
    if samples == 0 or kinds != {(len(out), samples, 3, out.dtype)} or out.shape[1:] != (width,):
        raise ValueError("the layers' inputs and output gradients must fit the rows, and be of one type")
    if shift is not None and (shift.shape != out.shape[1:] or shift.dtype != out.dtype):
        raise ValueError("the shift must be a vector as long as the rows, and of their type")


def gradient_rows(layers: Sequence[Gradient], shift: Tensor | None, limit: float, out: Tensor) -> None:
    """Write each worker's gradients to its row of `out` (h, d), then shift and clip the row (see the plain path)."""
    check_rows(layers, shift, out)
    (h, d), b = out.shape, layers[0].grad_output.shape[1]
    if out.stride(1) != 1 and d > 1:
        raise ValueError("the columns of the rows must be neighbours in memory")
    grad_outputs = [layer.grad_output.contiguous() for layer in layers]
    inputs, indices = zip(*(_parts(layer.inputs) for layer in layers), strict=True)
    rows = flat(out)
    shapes = np.array(
        [(layer.m, layer.n, layer.has_bias, values.numel()) for layer, values in zip(layers, inputs, strict=True)]
    )
    vector = rows[:0] if shift is None else flat(shift.contiguous())
    layout = *map(addresses, (grad_outputs, inputs, indices)), shapes
    size = max(d, *(b * layer.n for layer in layers))
    target = rows[:0], rows, out.stride(0), d
    threads.spread_rows(compiled.matmul_loops.rows_by_worker, h, size, *layout, *target, b, vector, limit)


def _samples(inputs: Tensor | IndexedBatch, layer: PackedLayer) -> tuple[Tensor, Any, int]:
    """Return a layer's inputs as rows, the indices of the samples among them (empty for all), and their number."""
    rows, index = _parts(inputs)
    if rows.dim() != 2 or rows.shape[1] != layer.n or rows.dtype != layer.dtype:
        raise ValueError(
            f"the layer takes (samples, {layer.n}) values of {layer.dtype}, not {tuple(rows.shape)} of {rows.dtype}"
        )
    return rows, *((_NO_INDEX, len(rows)) if index is None else (flat(index), index.numel()))


def _kind(values: Tensor | IndexedBatch) -> tuple[Any, ...]:
    """Return the number of workers, samples per worker and dimensions, and the dtype, of (h, b, n) values."""
    if isinstance(values, IndexedBatch):
        shape = *values.index.shape, *values.source.shape[1:]
        return *shape[:2], len(shape), values.source.dtype
    return *values.shape[:2], values.dim(), values.dtype


def _parts(values: Tensor | IndexedBatch) -> tuple[Tensor, Tensor | None]:
    """Return contiguous rows, and the indices of the samples among them, or None for all rows."""
    if not isinstance(values, IndexedBatch):
        return values.contiguous(), None
    rows, index = values.source.contiguous(), values.index.contiguous()
    if rows.dim() != 2:
        raise ValueError(f"indexed samples must be rows of a matrix, got values of the shape {tuple(rows.shape)}")
    if index.dtype != torch.int64 or not index.is_cpu:
        raise ValueError(f"sample indices must be torch.int64 on the CPU, got {index.dtype} on {index.device}")
    numbers = flat(index)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(rows):
        raise IndexError(f"sample indices must be from 0 to {len(rows) - 1}, got {numbers.min()} to {numbers.max()}")
    return rows, index
