"""Honest rows in float64 at a harmless scale, for attacks that compute with squares of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def at_unit_scale(rows: Tensor) -> tuple[Tensor, float]:
    """(rows in float64 divided by a power of two, that power): the largest magnitude is then between 1/2 and 2.

    So no square overflows or vanishes, whatever the rows' own scale; multiplying by the power is exact.
    """
    exponent = min(1023, math.frexp(float(rows.abs().max()))[1])
    # Two steps, because 2^-exponent by itself may be outside float64 where the rows are not.
    half = exponent // 2
    return rows.to(torch.float64) * 2.0**-half * 2.0 ** (half - exponent), 2.0**exponent


def back(vector: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """The vector at the rows' scale and in their dtype."""
    return (vector * scale).to(dtype)
