"""The momentum recursion, and what a gradient that is not finite does to it: nothing.

`WorkerMomentum` sends such a gradient as it is, for the rule to leave out; here it is not accumulated.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._linalg._kernels import accelerated_by, row_updates, usable


def _can_update_in_place(buffer: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> bool:
    """Return whether the kernel takes these matrices: no value of the gradient may be overwritten before it is read."""
    if not usable(buffer, gradient) or buffer.shape != gradient.shape:
        return False
    if len(buffer) > 1 and buffer.stride(0) < buffer.shape[1]:  # rows that overlap: torch's error to raise
        return False
    (begin, end), (other_begin, other_end) = _addresses(buffer), _addresses(gradient)
    identical = begin == other_begin and buffer.stride() == gradient.stride()
    return identical or end <= other_begin or other_end <= begin


def _addresses(rows: Tensor) -> tuple[int, int]:
    begin = rows.data_ptr()
    return begin, begin + ((len(rows) - 1) * rows.stride(0) + rows.shape[1]) * rows.element_size()


@accelerated_by(row_updates.accumulate, _can_update_in_place)
def accumulate(buffer: Tensor, gradient: Tensor, mu: float, gain: float = 1.0) -> Tensor | None:
    """Add a gradient to each row of `buffer`, in place. A row whose sum would not be finite stays as it is.

    Args:
        buffer: (n, d), changed in place.
        gradient: (n, d), of the same dtype and device.
        mu: the momentum factor.
        gain: the factor of the gradient, 1 - dampening.

    Returns:
        (n,) of bool: which rows were accumulated. None where all were, and the device tells so without waiting.
    """
    added = gradient if gain == 1 else gradient * gain
    total = torch.add(added, buffer, alpha=mu)
    # The sum of a row is finite only if all its values are; where it is not, the values decide.
    finite = total.sum(dim=1).isfinite()
    if buffer.device.type == "cpu":
        if bool(finite.all()):
            buffer.copy_(total)
            return None
        finite = total.isfinite().all(dim=1)
    else:
        finite |= total.isfinite().all(dim=1)
    buffer.copy_(torch.where(finite.unsqueeze(1), total, buffer))
    return finite
