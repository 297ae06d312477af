"""Matrix products of the workers' gradients. The plain paths are in gyroscope.dense."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from gyroscope.kernels import memory, threads

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


def linear(inputs: Tensor, layer: Layer) -> Tensor:
    """(samples, n) inputs times the transpose of the layer's (m, n) weights, plus its bias."""
    from gyroscope.kernels.compiled import dense

    samples, n = inputs.shape
    if n != layer.n or inputs.dtype != layer.dtype:
        raise ValueError(f"the layer takes {layer.n} values of {layer.dtype}, not {n} of {inputs.dtype}")
    out = inputs.new_empty(samples, layer.m)
    parts = threads.pieces(layer.n, samples, dense.ROWS, added_up=False)
    arrays = memory.flat(inputs), *layer.arrays, out.view(-1).numpy()

    def work(number: int) -> None:
        dense.linear(*arrays, *parts[number], layer.n, layer.m)

    threads.spread(work, len(parts))
    return out


class Gradient(NamedTuple):
    """What makes up each worker's gradient of one linear layer."""

    slopes: Tensor
    """(h, b, m): how the loss changes with the layer's outputs."""
    given: Tensor
    """(h, b, n): what the layer was given."""
    has_bias: bool

    @property
    def size(self) -> int:
        """How many values it has."""
        m, n = self.slopes.shape[2], self.given.shape[2]
        return m * n + m if self.has_bias else m * n


def check_rows(layers: Sequence[Gradient], shift: Tensor | None, out: Tensor) -> None:
    """An error unless the layers' gradients make up rows like these."""
    kinds = {(*each.shape[:2], each.dtype) for layer in layers for each in (layer.slopes, layer.given)}
    samples = max((layer.slopes.shape[1] for layer in layers), default=0)
    width = sum(layer.size for layer in layers)
    if samples == 0 or kinds != {(len(out), samples, out.dtype)} or out.shape[1:] != (width,):
        raise ValueError("the layers' slopes and what they were given must fit the rows, and be of one type")
    if shift is not None and (shift.shape != out.shape[1:] or shift.dtype != out.dtype):
        raise ValueError("the shift must be a vector as long as the rows, and of their type")


def gradient_rows(layers: Sequence[Gradient], shift: Tensor | None, limit: float, out: Tensor) -> None:
    """Each worker's row of `out` (h, d): the gradients of its layers one after the other, each the transpose of the
    worker's slopes times what it was given, then the sums of the slopes. Shifted and clipped like `shift_and_clip`."""
    from gyroscope.kernels.compiled import dense

    check_rows(layers, shift, out)
    (h, d), b = out.shape, layers[0].slopes.shape[1]
    if out.stride(1) != 1 and d > 1:
        raise ValueError("the columns of the rows must be neighbours in memory")
    slopes, given = [layer.slopes.contiguous() for layer in layers], [layer.given.contiguous() for layer in layers]
    rows = memory.flat(out)
    addresses: tuple[Any, Any] = _addresses(slopes), _addresses(given)
    shapes = np.array(
        [(x.shape[2], y.shape[2], layer.has_bias) for x, y, layer in zip(slopes, given, layers, strict=True)]
    )
    vector = rows[:0] if shift is None else memory.flat(shift.contiguous())
    parts = threads.pieces(max(d, *(b * each.shape[2] for each in given)), h, 1, added_up=False)

    def work(number: int) -> None:
        dense.rows_by_worker(*addresses, shapes, rows[:0], rows, out.stride(0), d, *parts[number], b, vector, limit)

    threads.spread(work, len(parts))


def _addresses(tensors: Sequence[Tensor]) -> Any:
    """numba would compile anew for each number of arrays. The caller keeps the memory alive."""
    return np.array([each.data_ptr() for each in tensors], dtype=np.int64)
