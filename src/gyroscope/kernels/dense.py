"""Matrix products of the workers' gradients. The plain paths are in gyroscope.dense."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gyroscope.kernels import memory, threads

_BYTES = 64
"""Two vectors: what a panel of weights is wide."""


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(samples, n) inputs times the transpose of (m, n) weights, plus the bias."""
    from gyroscope.kernels.compiled import dense

    samples, n = inputs.shape
    m = weight.shape[0]
    width = _BYTES // weight.element_size()
    fill = -m % width
    panels = F.pad(weight, (0, 0, 0, fill)).view(-1, width, n).transpose(1, 2).contiguous()
    shift = weight.new_zeros(m + fill)
    if bias is not None:
        shift[:m].copy_(bias)
    out = inputs.new_empty(samples, m)
    parts = threads.pieces(n, samples, dense.ROWS)
    arrays = memory.flat(inputs), panels.view(-1).numpy(), shift.numpy(), out.view(-1).numpy()

    def work(number: int) -> None:
        dense.linear(*arrays, *parts[number], n, m)

    threads.spread(work, len(parts))
    return out


def products_by_worker(slopes: Tensor, given: Tensor, out: Tensor) -> None:
    """out (h, m, n): for each worker the transpose of its (b, m) slopes times the (b, n) values it was given."""
    from gyroscope.kernels.compiled import dense

    (h, b, m), n = slopes.shape, given.shape[2]
    arrays = slopes.reshape(-1).numpy(), given.reshape(-1).numpy(), memory.flat(out)
    parts = threads.pieces(b * n, h, 1)

    def work(number: int) -> None:
        dense.by_worker(*arrays, *parts[number], b, m, n, out.stride(1), out.stride(0))

    threads.spread(work, len(parts))
