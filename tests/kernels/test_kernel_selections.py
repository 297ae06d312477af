"""Median, trimmed mean and mean around the median: bit for bit what plain torch gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import KINDS, fill, plain, rows, same
from torch import Tensor

from gyroscope._linalg import order_statistics
from gyroscope._linalg._kernels import selections

LARGE = (100, 129, 255, 300)


@given(rows, st.sampled_from(("lower", "mean")))
@settings(deadline=None, max_examples=150)
def test_median(matrix: Tensor, even: str) -> None:
    assert same(selections.median(matrix, even), plain(order_statistics.median, matrix, even))


@given(rows, st.floats(0, 1))
@settings(deadline=None, max_examples=150)
def test_mean_around_median(matrix: Tensor, part: float) -> None:
    count = 1 + int(part * (len(matrix) - 1))
    expected = plain(order_statistics.mean_around_median, matrix, count)
    assert same(selections.mean_around_median(matrix, count), expected)


@given(rows, st.floats(0, 1))
@settings(deadline=None, max_examples=150)
def test_trimmed_mean(matrix: Tensor, part: float) -> None:
    trim = int(part * ((len(matrix) - 1) // 2))
    assert same(selections.trimmed_mean(matrix, trim), plain(order_statistics.trimmed_mean, matrix, trim))


@given(rows, st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=150)
def test_mean_around_trimmed_mean(matrix: Tensor, left_out: float, part: float) -> None:
    trim = int(left_out * ((len(matrix) - 1) // 2))
    count = 1 + int(part * (len(matrix) - 1))
    expected = plain(order_statistics.mean_around_trimmed_mean, matrix, trim, count)
    assert same(selections.mean_around_trimmed_mean(matrix, trim, count), expected)


def assert_mean_around_median_of(shares: Tensor, matrix: Tensor, used: Tensor, part: float, least: float = 1.0) -> None:
    size = len(shares)
    count = 1 + int(part * (size - 1))
    mixtures = shares @ torch.where(used, matrix, 0).double()
    expected = plain(order_statistics.mean_around_median, mixtures, count)
    result = selections.mean_around_median(matrix, count, shares)
    # A rounding decides which of two values equally near the median is taken: then both are right.
    other = plain(order_statistics.mean_around_median, -mixtures, count).neg() if size % 2 else expected
    tolerance = 1e-5 if matrix.dtype == torch.float32 else 1e-12
    error = torch.minimum((result - expected).abs(), (result - other).abs())
    assert bool((error <= tolerance * mixtures.abs().amax(dim=0).clamp(min=least)).all())


@given(rows, st.integers(1, 40), st.floats(0, 1), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_mean_around_median_of_mixtures(matrix: Tensor, size: int, part: float, seed: int) -> None:
    n = len(matrix)
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(size, n, generator=generator, dtype=torch.float64)
    shares *= torch.rand(size, n, generator=generator) < 0.7
    alike = torch.rand(n, generator=generator) < seed % 4 / 3  # none, some or all have the same share in all mixtures
    shares[:, alike] = shares[0, alike]
    unused = torch.rand(n, generator=generator) < 0.3  # these may hold anything; the others are finite
    shares[:, unused] = 0
    used = ~unused.unsqueeze(1)
    matrix = torch.where(used, matrix.nan_to_num(0.5, 0, 0).clamp(-10, 10), matrix)
    assert_mean_around_median_of(shares, matrix, used, part)


@given(st.integers(3, 30), st.integers(1, 250), st.floats(0, 0.99), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=50)
def test_order_statistics_of_mixtures(n: int, d: int, part: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(n, d, generator=generator)
    shares = torch.rand(n, n, generator=generator, dtype=torch.float64) * (
        torch.rand(n, n, generator=generator) < 0.1 + part
    )
    shares[:, 0] += 0.01  # none is empty
    shares /= shares.sum(dim=1, keepdim=True)
    mixtures, trim, count = shares @ matrix.double(), int(part * ((n - 1) // 2)), n
    for found, expected in (
        (selections.median(matrix, "lower", shares), order_statistics.median(mixtures)),
        (selections.median(matrix, "mean", shares), order_statistics.median(mixtures, "mean")),
        (selections.trimmed_mean(matrix, trim, shares), order_statistics.trimmed_mean(mixtures, trim)),
        (selections.mean_around_trimmed_mean(matrix, trim, count, shares), mixtures.mean(dim=0)),
    ):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)
    expected = plain(order_statistics.median, matrix, "lower", shares)
    torch.testing.assert_close(selections.median(matrix, "lower", shares), expected, rtol=0, atol=1e-5)


@given(rows, st.integers(2, 30), st.floats(0, 1), st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1e-30, 1e36]))
@settings(deadline=None, max_examples=100)
def test_mean_around_median_of_means_of_ever_fewer_rows(
    matrix: Tensor, size: int, part: float, seed: int, scale: float
) -> None:
    n = len(matrix)
    size = min(size, n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: max(size, n - seed % 3)]
    shares = torch.zeros(size, n, dtype=torch.float64)
    for i in range(size):
        shares[i, order[i:]] = 1 / len(order[i:])
    used = shares.any(dim=0).unsqueeze(1)
    unlike = torch.rand(matrix.shape, generator=torch.Generator().manual_seed(seed), dtype=matrix.dtype)  # no ties
    matrix = torch.where(used, (matrix.nan_to_num(0.5, 0, 0).clamp(-9, 9) + unlike) * scale, matrix)
    assert size == 1 or selections._nested(shares.numpy()).tolist()[: size - 1] == order[: size - 1].tolist()
    assert_mean_around_median_of(shares, matrix, used, part, scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", LARGE)
def test_many_rows(n: int, kind: str) -> None:
    matrix = fill(n, 131, n, kind, torch.float32)
    for even in ("lower", "mean"):
        assert same(selections.median(matrix, even), plain(order_statistics.median, matrix, even))
    expected = plain(order_statistics.mean_around_median, matrix, n // 2)
    assert same(selections.mean_around_median(matrix, n // 2), expected)
    assert same(selections.trimmed_mean(matrix, n // 3), plain(order_statistics.trimmed_mean, matrix, n // 3))
    expected = plain(order_statistics.mean_around_trimmed_mean, matrix, n // 3, n - n // 3)
    assert same(selections.mean_around_trimmed_mean(matrix, n // 3, n - n // 3), expected)


@pytest.mark.parametrize("n", range(1, 34))
def test_each_small_number_of_rows(n: int) -> None:
    matrix = fill(n, 150, n, "mixed", torch.float32)
    assert same(selections.median(matrix), plain(order_statistics.median, matrix))
    for count in {1, n // 2 + 1, n}:
        expected = plain(order_statistics.mean_around_median, matrix, count)
        assert same(selections.mean_around_median(matrix, count), expected)


def test_nan_comes_back_where_it_is_the_median_and_only_there() -> None:
    column = torch.tensor([1.0, torch.inf, -torch.nan, torch.nan, 2.0])
    assert selections.median(column.unsqueeze(1)).item() == torch.inf
    assert selections.median(column[1:4].unsqueeze(1)).isnan().all()
    assert selections.median(column[[0, 2, 4]].unsqueeze(1)).item() == 2.0


@pytest.mark.parametrize("lost", [torch.nan, torch.inf])
def test_values_around_a_median_that_is_lost(lost: float) -> None:
    column = torch.tensor([1.0, 2.0, 3.0, lost, lost, lost, lost]).unsqueeze(1)
    for count in range(1, 8):
        expected = plain(order_statistics.mean_around_median, column, count)
        assert same(selections.mean_around_median(column, count), expected)


def test_rows_that_coincide_in_memory() -> None:
    matrix = torch.randn(1, 300).expand(5, 300)
    assert torch.equal(selections.median(matrix), matrix[0])


def test_the_input_stays_as_it_was_and_gradients_are_no_concern() -> None:
    matrix = fill(9, 200, 0, "nasty", torch.float32).requires_grad_()
    before = matrix.detach().clone()
    result = selections.median(matrix)
    assert same(matrix.detach(), before)
    assert not result.requires_grad


def test_what_cannot_be_is_an_error() -> None:
    matrix = torch.zeros(4, 3)
    for trim in (-1, 2):
        with pytest.raises(ValueError, match="trim"):
            selections.trimmed_mean(matrix, trim)
        with pytest.raises(ValueError, match="trim"):
            selections.mean_around_trimmed_mean(matrix, trim, 2)
    for count in (0, 5):
        with pytest.raises(ValueError, match="count"):
            selections.mean_around_median(matrix, count)
        with pytest.raises(ValueError, match="count"):
            selections.mean_around_trimmed_mean(matrix, 1, count)
