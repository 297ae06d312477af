"""Honest rows in float64 at a scale near 1, for attacks that compute with squares of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def to_unit_scale(rows: Tensor) -> tuple[Tensor, float]:
    """Return the rows in float64 divided by a power of two, and that power; the largest magnitude is then near 1.

    So no square overflows or vanishes, whatever the rows' own scale; multiplying by the power is exact.
    """
    exponent = min(1023, math.frexp(float(rows.abs().max()))[1])
    # In two steps, because 2^-exponent by itself may be outside float64's range although the rows are not.
    half = exponent // 2
    return rows.to(torch.float64) * 2.0**-half * 2.0 ** (half - exponent), 2.0**exponent


def from_unit_scale(vector: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """Return the vector at the rows' scale and in their dtype."""
    return (vector * scale).to(dtype)
