"""The momentum recursion on whole rows: m <- mu * m + gain * g, except where that would not be finite."""

from __future__ import annotations

import torch
from torch import Tensor


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
    return plain_accumulate(memory, gradient, mu, gain)


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
