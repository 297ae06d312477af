"""The momentum recursion on whole rows: m <- mu * m + gain * g, except where that would not be finite."""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg import _kernels


def accumulate(memory: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> Tensor | None:
    """Add a gradient to each row of `memory`, in place. A row whose sum would not be finite stays as it is.

    Args:
        memory: (n, d), changed in place.
        gradient: (n, d), of the same dtype and device.
        mu: the momentum factor.
        gain: the factor of the gradient, 1 - dampening.

    Returns:
        (n,) of bool: which rows were accumulated. None where all were, and the device tells so without waiting.
    """
    usable = (
        memory.shape == gradient.shape
        and memory.dtype == gradient.dtype
        and _kernels.usable(memory)
        and _kernels.usable(gradient)
        and _same_or_apart(memory, gradient)
    )
    return (_kernels.accumulate if usable else plain_accumulate)(memory, gradient, mu, gain)


def _same_or_apart(memory: Tensor, gradient: Tensor) -> bool:
    """Whether no value of `gradient` is overwritten before it is read: the two are identical, or disjoint in memory."""
    (begin, end), (other, other_end) = _addresses(memory), _addresses(gradient)
    if memory.stride(0) < memory.shape[1] and len(memory) > 1:  # rows of `memory` overlap each other
        return False
    return end <= other or other_end <= begin or (begin == other and memory.stride() == gradient.stride())


def _addresses(rows: Tensor) -> tuple[int, int]:
    begin = rows.data_ptr()
    return begin, begin + ((len(rows) - 1) * rows.stride(0) + rows.shape[1]) * rows.element_size()


def plain_accumulate(memory: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> Tensor | None:
    """The reference, and the path of other devices."""
    added = gradient if gain == 1 else gradient * gain
    total = torch.add(added, memory, alpha=mu)
    # The sum of a row is finite only if all its values are; where it is not, the values decide.
    finite = total.sum(dim=1).isfinite()
    if memory.device.type == "cpu":
        if bool(finite.all()):
            memory.copy_(total)
            return None
        finite = total.isfinite().all(dim=1)
    else:
        finite |= total.isfinite().all(dim=1)
    memory.copy_(torch.where(finite.unsqueeze(1), total, memory))
    return finite
