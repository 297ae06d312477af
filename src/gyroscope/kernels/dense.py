"""Matrix products of the workers' gradients. The plain paths are in gyroscope.dense."""

from __future__ import annotations

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
    parts = threads.pieces(layer.n, samples, dense.ROWS)
    arrays = memory.flat(inputs), *layer.arrays, out.view(-1).numpy()

    def work(number: int) -> None:
        dense.linear(*arrays, *parts[number], layer.n, layer.m)

    threads.spread(work, len(parts))
    return out


def products_by_worker(slopes: Tensor, given: Tensor, out: Tensor) -> None:
    """out (h, m, n): for each worker the transpose of its (b, m) slopes times the (b, n) values it was given."""
    from gyroscope.kernels.compiled import dense

    (h, b, m), n = slopes.shape, given.shape[2]
    if given.shape != (h, b, n) or out.shape != (h, m, n) or not slopes.dtype == given.dtype == out.dtype:
        raise ValueError(
            "slopes, what was given, and the place for their products must be of fitting shapes and one type"
        )
    arrays = slopes.reshape(-1).numpy(), given.reshape(-1).numpy(), memory.flat(out)
    parts = threads.pieces(b * n, h, 1)

    def work(number: int) -> None:
        dense.by_worker(*arrays, *parts[number], b, m, n, out.stride(1), out.stride(0))

    threads.spread(work, len(parts))
