"""Helpers of all kernel tests: matrices of ordinary and of extreme numbers, the plain path, and equality with NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from hypothesis import strategies as st
from torch import Tensor

from gyroscope._linalg import _kernels

Result = TypeVar("Result")

NASTY = torch.tensor(
    [0.0, -0.0, 1.0, 1.0, -1.0, 2.0, 3e38, -3e38, torch.inf, -torch.inf, torch.nan, -torch.nan, 1e-45, -4e-45, 1e-39]
)


def fill(n: int, d: int, seed: int, kind: str, dtype: torch.dtype, gap: int = 0) -> Tensor:
    """Return an (n, d) matrix with `gap` unused elements between its rows."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, d, generator=generator)
    nasty = NASTY[torch.randint(len(NASTY), (n, d), generator=generator)]
    if kind == "nasty":
        values = nasty
    elif kind == "mixed":
        values = torch.where(torch.rand(n, d, generator=generator) < 0.2, nasty, normal)
    elif kind == "ties":
        values = normal.mul(2).round()
    elif kind == "rows":  # a third of the rows are an adversary's
        values = torch.where(torch.rand(n, 1, generator=generator) < 0.3, nasty, normal)
    elif kind == "broken":  # so many NaN and infinities that they are the median
        lost = torch.where(torch.rand(n, d, generator=generator) < 0.7, torch.nan, torch.inf)
        values = torch.where(torch.rand(n, d, generator=generator) < 0.7, lost, normal)
    else:
        values = normal
    storage = torch.full((n, d + gap), torch.nan, dtype=dtype)
    storage[:, :d] = values
    return storage[:, :d]


KINDS = ("normal", "ties", "mixed", "nasty", "rows", "broken")
rows = st.builds(
    fill,
    n=st.integers(1, 70),
    d=st.one_of(st.just(1), st.integers(1, 40), st.integers(100, 300)),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from((torch.float32, torch.float64)),
    gap=st.sampled_from((0, 1, 7)),
)


def plain(function: Callable[..., Result], *args: object) -> Result:
    """Return the function's result without kernels."""
    with _kernels.switched_off():
        return function(*args)


def same(left: Tensor, right: Tensor) -> bool:
    """Return whether two tensors have one dtype and equal values, where NaN equals NaN."""
    nan = left.isnan()
    return (
        left.dtype == right.dtype
        and torch.equal(nan, right.isnan())
        and torch.equal(left.masked_fill(nan, 0), right.masked_fill(nan, 0))
    )


def close(left: Tensor, right: Tensor, tolerance: float = 1e-6) -> bool:
    """Return whether finite values agree within a relative tolerance, and all others exactly."""
    finite = left.isfinite() & right.isfinite()
    return same(left.masked_fill(finite, 1), right.masked_fill(finite, 1)) and bool(
        ((left - right).abs() <= tolerance * right.abs())[finite].all()
    )
