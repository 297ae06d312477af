"""Pairwise distances: within 1e-6 of float64 whatever the rows hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import close, fill, plain, rows, same
from torch import Tensor

from gyroscope._linalg._kernels import pairwise
from gyroscope._linalg.distances import squared_distances, squared_distances_by_parts, unit_distances_by_parts


def distances(matrix: Tensor) -> Tensor:
    return pairwise.squared_distances(matrix).sqrt()


def oracle(matrix: Tensor) -> Tensor:
    """Compute one pair after the other, in float64."""
    wide = matrix.double()
    table = torch.stack([(wide - row).square().sum(dim=1).sqrt() for row in wide])
    table[table.isnan()] = torch.inf
    return table.fill_diagonal_(0)


@given(rows)
@settings(deadline=None, max_examples=150)
def test_equals_the_plain_path(matrix: Tensor) -> None:
    table = distances(matrix)
    assert close(table, plain(squared_distances, matrix).sqrt())
    assert torch.equal(table, table.T)


@given(
    st.integers(1, 12),
    st.integers(1, 600),
    st.integers(0, 2**32 - 1),
    st.sampled_from((1e-45, 1e-39, 1e-30, 1e-25, 1e-20, 1e-15, 1e15, 1e18, 1e20, 1e38)),
)
@settings(deadline=None, max_examples=100)
def test_squares_that_no_float32_can_hold(n: int, d: int, seed: int, scale: float) -> None:
    matrix = (fill(n, d, seed, "normal", torch.float64) * scale).clamp(-3.4e38, 3.4e38).float()
    assert close(distances(matrix), oracle(matrix))


@pytest.mark.parametrize("spread", [1.0, 1e-2])
def test_a_large_common_offset_hides_nothing(spread: float) -> None:
    matrix = fill(7, 5000, 1, "normal", torch.float32) * spread + 1e4
    assert close(distances(matrix), oracle(matrix))


def test_equal_differences_do_not_drift() -> None:
    matrix = torch.zeros(3, 100_001)
    matrix[1], matrix[2] = 0.1, 1 / 3
    assert close(distances(matrix), oracle(matrix), 2e-7)


def test_rows_of_very_different_sizes() -> None:
    matrix = fill(9, 700, 2, "normal", torch.float32)
    matrix[1] *= 1e-30
    matrix[2] *= 1e-32
    matrix[3] *= 1e30
    matrix[4] = 3e38
    matrix[5] = -3e38
    matrix[6, 3] = torch.nan
    matrix[7, 699] = -torch.inf
    assert close(distances(matrix), oracle(matrix))


@given(rows, st.integers(0, 8))
@settings(deadline=None, max_examples=100)
def test_copies_change_nothing(matrix: Tensor, copies: int) -> None:
    copies = min(copies, len(matrix))
    matrix = matrix.clone()
    if copies:
        matrix[len(matrix) - copies :] = matrix[-1].clone()
    assert same(distances(matrix), distances(matrix.flip(0)).flip(0, 1))  # copies at the front are not searched for


def test_copies_of_many_columns() -> None:
    matrix = fill(20, 40_000, 3, "normal", torch.float32)
    matrix[12:] = matrix[12].clone()
    assert same(distances(matrix), distances(matrix.flip(0)).flip(0, 1))
    assert close(distances(matrix), oracle(matrix))


def test_two_groups_of_copies_and_a_hair_between_them() -> None:
    matrix = fill(8, 300, 4, "normal", torch.float32) * 1e-20
    matrix[1:4] = matrix[0]
    matrix[4:] = matrix[0]
    matrix[4:, 7] = 1e-29
    assert close(distances(matrix), oracle(matrix))


@given(rows, st.integers(1, 5), st.booleans())
@settings(deadline=None, max_examples=100)
def test_parts_of_the_columns(matrix: Tensor, parts: int, copies: bool) -> None:
    matrix = matrix.repeat(1, parts).roll(1, dims=1) if parts > 1 else matrix
    if copies:
        matrix = torch.cat([matrix, matrix[-1:], matrix[-1:]])
    tables = squared_distances_by_parts(matrix, parts)
    assert len(tables) == parts
    for table, part in zip(tables, matrix.chunk(parts, dim=1), strict=True):
        assert close(table.sqrt(), plain(squared_distances, part).sqrt())


def test_long_parts() -> None:
    matrix = fill(6, 5 * 2051, 1, "normal", torch.float32)
    for table, part in zip(squared_distances_by_parts(matrix, 5), matrix.chunk(5, dim=1), strict=True):
        assert close(table.sqrt(), oracle(part))


@given(rows, st.integers(1, 4), st.booleans(), st.sampled_from(["", "zeros", "lost", "copies"]), st.integers(0, 1000))
@settings(deadline=None, max_examples=150)
def test_scaled_differences_from_an_origin(matrix: Tensor, parts: int, shifted: bool, kind: str, seed: int) -> None:
    matrix = matrix.repeat(1, parts)
    if kind == "copies":
        matrix = torch.cat([matrix, matrix[-1:], matrix[-1:]])
    n, d = matrix.shape
    generator = torch.Generator().manual_seed(seed)
    factors = torch.rand(parts, n, generator=generator, dtype=torch.float64) + 0.1
    if kind == "copies":
        factors[:, -3:] = factors[:, -1:]
    if kind in ("zeros", "lost"):
        factors[torch.rand(parts, n, generator=generator) < 0.3] = 0.0 if kind == "zeros" else torch.nan
    origin = torch.randn(d, generator=generator).to(matrix.dtype) if shifted else None
    tables = unit_distances_by_parts(matrix, factors, matrix.dtype, origin)
    for table, expected in zip(
        tables, plain(unit_distances_by_parts, matrix, factors, matrix.dtype, origin), strict=True
    ):
        assert close(table.sqrt(), expected.sqrt())


def test_scaled_rows_of_many_blocks() -> None:
    matrix = fill(5, 5001, 1, "normal", torch.float32)
    factors = torch.rand(1, 5, dtype=torch.float64)
    (table,) = unit_distances_by_parts(matrix, factors, torch.float32, matrix[0])
    assert close(table.sqrt(), oracle((matrix.double() - matrix[0].double()) * factors.T))
