"""Moments and inner products: float64 sums, so within rounding of the float64 result."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import close, plain, rows, same
from torch import Tensor

from gyroscope._linalg import moments
from gyroscope._linalg._kernels import row_updates, sums
from gyroscope._linalg.matrix import (
    finite_and_gathered,
    finite_rows,
    scaled,
    shift_and_clip,
    squared_lengths,
    squared_lengths_and_products,
    weighted_sum,
)


@given(rows, st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_gathered(matrix: Tensor, count: int, seed: int) -> None:
    places = torch.randint(matrix.shape[1], (count,), generator=torch.Generator().manual_seed(seed))
    assert same(row_updates.gathered(matrix, places), matrix[:, places])


@given(rows, st.lists(st.integers(0, 400), max_size=4), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_finite_rows_and_their_values_at_some_places(matrix: Tensor, counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randint(matrix.shape[1], (count,), generator=generator).sort().values for count in counts]
    finite = matrix.isfinite().all(dim=1)
    assert torch.equal(finite_rows(matrix), finite) and torch.equal(plain(finite_rows, matrix), finite)
    if draws:
        for found in (finite_and_gathered(matrix, draws), plain(finite_and_gathered, matrix, draws)):
            assert torch.equal(found[0], finite) and same(found[1], matrix[:, torch.cat(draws)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_value_of_many_is_not_finite(dtype: torch.dtype) -> None:
    matrix = torch.full((9, 60_001), 3e38, dtype=dtype)
    for row, (column, value) in enumerate(
        [(0, torch.nan), (60_000, torch.inf), (31_007, -torch.inf), (59_999, torch.nan)]
    ):
        matrix[2 * row, column] = value
    draws = [torch.arange(0, 60_001, 7), torch.tensor([59_999, 60_000])]
    finite, values = finite_and_gathered(matrix, draws)
    assert finite.tolist() == [row % 2 == 1 or row == 8 for row in range(9)]
    assert same(values, matrix[:, torch.cat(draws)])


@given(rows, st.sampled_from((0.0, 1e4)))
@settings(deadline=None, max_examples=150)
def test_moments(matrix: Tensor, offset: float) -> None:
    matrix = (matrix + offset).clamp(-1e38, 1e38).nan_to_num(0.5)
    wide = matrix.double()
    mean = wide.mean(dim=0)
    deviations = wide - mean
    got = sums.moments(matrix, std=True)
    scale = wide.abs().amax(dim=0)  # float64 sums in another order
    rounding = torch.finfo(matrix.dtype).eps
    assert got.mean.dtype == matrix.dtype
    assert bool(((got.mean - mean).abs() <= rounding * mean.abs() + 1e-13 * scale + 1e-45).all())
    assert got.std is not None
    std = deviations.square().sum(dim=0).div(len(matrix) - 1).sqrt()
    assert torch.equal(got.std.isnan(), std.isnan())
    assert bool(((got.std - std).abs() <= 1e-6 * std + 1e-13 * scale + 1e-45)[~std.isnan()].all())
    assert got.squares == pytest.approx(float(deviations.square().sum()), rel=1e-9, abs=1e-20 * float(scale.max()) ** 2)
    without = sums.moments(matrix)
    assert without.std is None
    assert torch.equal(without.mean, got.mean) and without.squares == got.squares


def test_moments_with_nan_and_infinity() -> None:
    matrix = torch.ones(3, 50)
    matrix[1, 4] = torch.nan
    got = sums.moments(matrix)
    assert math.isnan(got.squares) and got.mean.isnan().nonzero().tolist() == [[4]]
    matrix[1, 4] = torch.inf
    got = sums.moments(matrix)
    assert math.isnan(got.squares) and got.mean[4] == math.inf


@given(rows)
@settings(deadline=None, max_examples=100)
def test_inner_products(matrix: Tensor) -> None:
    matrix = matrix[:6].clamp(-1e38, 1e38).nan_to_num(0.5)
    wide = matrix.double()
    got = sums.products(list(matrix))
    norms = wide.norm(dim=1)
    dots = torch.tensor(got.dots, dtype=torch.float64)
    assert bool(((dots - wide @ wide.T).abs() <= 1e-13 * norms * norms.unsqueeze(1)).all())
    assert torch.equal(dots, dots.T)
    assert got.largest == wide.abs().amax(dim=1).tolist()


def test_only_the_pairs_that_are_asked_for() -> None:
    vectors = list(torch.randn(4, 1000))
    full, some = sums.products(vectors), sums.products(vectors, [(0, 2), (3, 1)])
    asked = torch.eye(4, dtype=torch.bool)
    for i, j in ((0, 2), (3, 1)):
        asked[i, j] = asked[j, i] = True
    some_dots, all_dots = (torch.tensor(found.dots, dtype=torch.float64) for found in (some, full))
    assert close(some_dots[asked], all_dots[asked], 1e-15)
    assert some_dots[~asked].isnan().all()
    assert some.largest == full.largest


@given(rows)
@settings(deadline=None, max_examples=60)
def test_a_pair_of_vectors_is_their_difference(matrix: Tensor) -> None:
    """Both paths subtract in float64: of vectors close together and far from zero, float32 would lose most digits."""
    left = (matrix[0] + 1e4).clamp(-1e37, 1e37).nan_to_num(0.5)
    right, other = left.roll(1), matrix[-1].clamp(-1e37, 1e37).nan_to_num(0.5)
    wide = torch.stack([left.double() - right.double(), other.double()])
    norms = wide.norm(dim=1)
    for got in (moments.products([(left, right), other]), plain(moments.products, [(left, right), other])):
        dots = torch.tensor(got.dots, dtype=torch.float64)
        assert bool(((dots - wide @ wide.T).abs() <= 1e-13 * norms * norms.unsqueeze(1)).all())
        assert got.largest == wide.abs().amax(dim=1).tolist()


@pytest.mark.parametrize("first", ["moments", "std"])
def test_deviations_are_computed_only_when_asked_for(first: str) -> None:
    described = moments.CachedMoments(torch.randn(5, 100))
    getattr(described, first)
    assert (described.moments.std is None) == (first == "moments")
    assert torch.allclose(described.std, described.rows.std(dim=0))
    assert described.moments.std is described.std  # found in the same pass


def test_inner_products_with_nan_and_infinity() -> None:
    got = sums.products([torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf]), torch.tensor([1.0, 2.0])])
    assert math.isnan(got.largest[0]) and got.largest[1:] == [math.inf, 2.0]
    assert got.dots[1][2] == math.inf and all(map(math.isnan, got.dots[0]))


@given(rows, st.data())
@settings(deadline=None, max_examples=80)
def test_mean_of_chosen_rows(matrix: Tensor, data: st.DataObject) -> None:
    numbers = data.draw(st.lists(st.integers(0, len(matrix) - 1), min_size=1, unique=True))
    kept = matrix[numbers].double()
    got = sums.mean_of(matrix, torch.tensor(numbers))
    assert got.dtype == matrix.dtype
    bad = ~kept.isfinite().all(dim=0)
    assert not got[bad].isfinite().any()
    good, mean = kept[:, ~bad], kept[:, ~bad].mean(dim=0)
    scale = good.abs().amax(dim=0) if good.numel() else mean
    assert bool(((got[~bad] - mean).abs() <= 1e-7 * mean.abs() + 1e-13 * scale + 1e-45).all())


@given(rows, st.booleans())
@settings(deadline=None, max_examples=150)
def test_lengths_and_products(matrix: Tensor, from_origin: bool) -> None:
    origin = matrix[0].nan_to_num(0.5).clamp(-1e30, 1e30)
    got = squared_lengths(matrix, origin if from_origin else None)
    assert close(got, plain(squared_lengths, matrix, origin if from_origin else None), 1e-12)
    lengths, products = squared_lengths_and_products(matrix, origin)
    expected_lengths, expected = plain(squared_lengths_and_products, matrix, origin)
    assert close(lengths, expected_lengths, 1e-12)
    known = matrix.isfinite().all(dim=1)
    sizes = matrix.double().abs() @ origin.double().abs()
    other = matrix[-1].nan_to_num(0.5).clamp(-1e30, 1e30)
    away, along = squared_lengths_and_products(matrix, origin, other)
    assert torch.equal(away.isfinite(), known) and close(away, squared_lengths(matrix, other), 1e-12)
    reach = (matrix.double() - other.double()).abs() @ origin.double().abs()
    exact = plain(squared_lengths_and_products, matrix, origin, other)[1]
    assert bool(((along - exact).abs() <= 1e-13 * reach)[known].all())
    assert not products[~known].isfinite().any() and not expected[~known].isfinite().any()
    assert bool(((products - expected).abs() <= 1e-13 * sizes)[known].all())


FACTORS = torch.tensor([0.0, 1.0, 0.25, -1.5, 1e-3], dtype=torch.float64)


@given(rows, st.integers(0, 2**32 - 1), st.booleans())
@settings(deadline=None, max_examples=150)
def test_weighted_sums_and_scaled_rows(matrix: Tensor, seed: int, with_origin: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    factors = FACTORS[torch.randint(len(FACTORS), (len(matrix),), generator=generator)]
    origin = matrix[0].nan_to_num(0.5).clamp(-1e30, 1e30).contiguous() if with_origin else None
    arguments = (matrix, factors, 3.0, origin, 0.5)
    got, expected = weighted_sum(*arguments), plain(weighted_sum, *arguments)
    used = matrix[factors != 0].double()
    sizes = used.abs().T @ factors[factors != 0].abs() + (0 if origin is None else origin.double().abs())
    assert torch.equal(got.isfinite(), expected.isfinite())
    known = used.isfinite().all(dim=0)
    rounding = torch.finfo(matrix.dtype).eps
    near = (got - expected).abs() <= rounding * expected.abs() + 1e-13 * sizes + 1e-44
    assert bool(near[known & expected.isfinite()].all())
    for out in (None, torch.empty(matrix.shape, dtype=torch.float64)):
        moved, slowly = scaled(matrix, factors, origin, out).clone(), plain(scaled, matrix, factors, origin, out)
        assert close(moved, slowly, 2 * rounding), "the plain path rounds alike"
        assert not moved[factors == 0].any()


def test_chosen_rows_must_exist() -> None:
    for numbers in ([], [3], [-1]):
        with pytest.raises(ValueError, match="chosen"):
            sums.mean_of(torch.zeros(3, 4), numbers)


def test_vectors_of_different_kinds_are_an_error() -> None:
    with pytest.raises(ValueError, match="one length"):
        sums.products([torch.zeros(3), torch.zeros(4)])
    with pytest.raises(ValueError, match="one type"):
        sums.products([torch.zeros(3), torch.zeros(3, dtype=torch.float64)])


@given(rows, st.sampled_from((None, 0.0, 1e-4, 3.0)), st.sampled_from((0.5, 2.0, 1e30, math.inf)))
@settings(deadline=None, max_examples=150)
def test_shifting_and_clipping(matrix: Tensor, factor: float | None, limit: float) -> None:
    matrix = matrix.clamp(-1e37, 1e37).nan_to_num(0.5)
    shift = None if factor is None else matrix[0].roll(1) * factor
    for compiled in (True, False):
        got = matrix.clone()
        shift_and_clip(got, shift, limit) if compiled else plain(shift_and_clip, got, shift, limit)
        wanted = matrix.double() if shift is None else matrix.double() + shift.double()
        norms = wanted.norm(dim=1, keepdim=True)
        scale = (limit / norms).clamp_max(1) if limit < math.inf else torch.ones_like(norms)
        # The plain path rounds after each operation: a sum that nearly cancels keeps the error of its parts.
        parts = matrix.double().abs() + (0 if shift is None else shift.double().abs())
        allowed = 4 * torch.finfo(matrix.dtype).eps * parts * scale + 1e-44
        assert got.dtype == matrix.dtype
        assert bool(((got - wanted * scale).abs() <= allowed).all())
        unchanged = (norms < limit * (1 - 1e-6)).flatten() & (shift is None)
        assert torch.equal(got[unchanged], matrix[unchanged])


@pytest.mark.parametrize("function", [row_updates.shift_and_clip, functools.partial(plain, shift_and_clip)])
def test_clipping_what_is_not_finite(function: Callable[..., None]) -> None:
    matrix = torch.ones(3, 50)
    matrix[0, 7], matrix[1, 7] = torch.nan, torch.inf
    unlimited = matrix.clone()
    function(unlimited, None, math.inf)
    assert same(unlimited, matrix)
    function(matrix, None, 1.0)
    assert matrix[:2].isnan().all(), "any value tells that a row is not finite"
    assert matrix[2].norm() == pytest.approx(1)


@pytest.mark.parametrize("d", [8191, 8192, 8193, 20_005])
@pytest.mark.parametrize("count", [1, 4, 7])
def test_weighted_sum_of_rows_longer_than_a_run(d: int, count: int) -> None:
    matrix, factors = torch.randn(count, d), torch.rand(count)
    origin = torch.randn(d)
    wanted = (factors.double() @ matrix.double()) / 3 + 0.25 * origin.double()
    got = weighted_sum(matrix, factors, 3.0, origin, 0.25)
    torch.testing.assert_close(got, wanted.float(), rtol=1e-6, atol=1e-7)
