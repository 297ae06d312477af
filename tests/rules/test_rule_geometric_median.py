"""The geometric median: its certificate, at rows and between them, and mistakes of other implementations."""

from __future__ import annotations

import math
import warnings

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import normal, seeds
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.rules import GeometricMedian
from gyroscope.rules.geometric_median import excess_at, geometric_median

KINDS = ("normal", "line", "ties", "near copies", "far", "very far", "two clusters", "scales", "nearly a line")


def nasty(n: int, d: int, kind: str, seed: int) -> Tensor:
    rows, many = normal(n, d, seed), (n - 1) // 2
    if "line" in kind:
        rows = rows[:, :1] * normal(1, d, seed + 1) + (1e-9 * rows if kind == "nearly a line" else 0.0)
    elif kind == "ties":
        rows = rows.round()
    elif kind == "near copies":
        rows[:many] = rows[-1] + 10.0 ** -(seed % 14) * rows[:many]
    elif "far" in kind:
        rows[:many] *= 1e38 if kind == "very far" else 1e6
    elif kind == "two clusters":
        rows = 1e-7 * rows + 5 * (torch.arange(n) % 2).unsqueeze(1)
    elif kind == "scales":
        rows *= 10.0 ** (torch.arange(n) % 9 - 6.0).unsqueeze(1)
    return rows


@given(n=st.integers(1, 13), d=st.sampled_from([1, 2, 3, 20]), kind=st.sampled_from(KINDS), seed=seeds)
@settings(max_examples=200)
def test_the_certificate_holds(n: int, d: int, kind: str, seed: int) -> None:
    rows = nasty(n, d, kind, seed)
    points = (rows - rows.median(dim=0).values).numpy()
    radius = 1e-6 * float(np.sort(np.linalg.norm(points, axis=1))[n // 2])
    weight, excess = geometric_median(points, radius)
    assert (weight >= 0).all() and weight.sum() == pytest.approx(1)
    assert excess <= 1e-8
    assert excess == pytest.approx(excess_at(points, weight @ points, radius), abs=1e-8)


@given(n=st.integers(1, 9), d=st.sampled_from([1, 2, 5]), seed=seeds)
def test_no_point_nearby_has_a_smaller_sum_of_distances(n: int, d: int, seed: int) -> None:
    rows = normal(n, d, seed)
    found = GeometricMedian()(rows, (n - 1) // 2).vector
    least = oracles.sum_of_distances(rows.tolist(), found.tolist())
    for size in (1.0, 1e-2, 1e-4):
        for direction in normal(10, d, seed + 1):
            other = (found + size * direction).tolist()
            assert oracles.sum_of_distances(rows.tolist(), other) >= least * (1 - 1e-9)


def test_excess_by_hand() -> None:
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert excess_at(triangle, np.array([1.0, 0.0]), 0.0) == pytest.approx((math.hypot(1 + 0.5**0.5, 0.5**0.5) - 1) / 3)
    assert excess_at(triangle, np.array([100.0, 100.0]), 0.0) == pytest.approx(1, abs=1e-3)
    assert excess_at(triangle[:1], triangle[0], 0.0) == 0


def test_on_a_line_it_is_the_median_and_of_an_even_number_the_mean_of_both_middles() -> None:
    """Three of Weiszfeld's steps from zero would give 3.8 or so for the first."""
    for column, right in (([1, 3, 4, 5, 100], 4.0), ([1, 3, 5, 100], 4.0), ([2, 2, 2, 9, 50], 2.0), ([7], 7.0)):
        rows = torch.tensor(column, dtype=torch.float64).unsqueeze(1)
        assert GeometricMedian()(rows, (len(rows) - 1) // 2).vector.item() == pytest.approx(right, abs=1e-12)


def test_between_the_corners_of_a_triangle_each_side_is_seen_at_120_degrees() -> None:
    rows = torch.tensor([[0.0, 0.0], [3.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    units = torch.nn.functional.normalize(rows - GeometricMedian()(rows, 1).vector)
    torch.testing.assert_close(units @ units.T, 1.5 * torch.eye(3, dtype=torch.float64) - 0.5, atol=1e-6, rtol=0)


def test_a_corner_of_more_than_120_degrees_is_the_answer_itself() -> None:
    rows = torch.tensor([[-3.0, 0.1], [0.0, 0.0], [3.0, 0.1]])
    vector, weight = GeometricMedian()(rows, 1)
    assert vector.tolist() == [0.0, 0.0] and weight is not None and weight.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
def test_in_many_dimensions_with_far_rows_it_is_what_the_definition_says(dtype: torch.dtype) -> None:
    """More dimensions than rows: the rows are replaced by points that have the same distances."""
    rows = normal(9, 500, seed=1, dtype=dtype)
    rows[2] *= 1e5
    rows[5] = 3e38 if dtype == torch.float32 else 1e100
    vector, weight = GeometricMedian()(rows, 3)
    units = torch.nn.functional.normalize(rows.double() - vector.double())
    assert units.mean(dim=0).norm() < 1e-6
    inverse = 1 / (rows.double() - vector.double()).norm(dim=1)
    assert weight is not None
    torch.testing.assert_close(weight, inverse / inverse.sum(), rtol=1e-5, atol=1e-12)


def test_more_than_f_rows_that_are_not_finite_give_nan() -> None:
    rows = normal(7, 3, seed=0)
    rows[:3] = torch.nan
    assert GeometricMedian()(rows, 3).vector.isfinite().all()
    vector, weight = GeometricMedian()(rows, 2)
    assert vector.isnan().all() and weight is None


@pytest.mark.parametrize("scale", [1e-20, 1.0])
def test_a_row_that_most_workers_send_is_the_median_to_the_last_digit(scale: float) -> None:
    """The radius is then zero: any rounding error in the copies' places would have an infinite weight."""
    for seed in range(30):
        rows = scale * normal(7, 33, seed, torch.float32)
        rows[[0, 2, 4]] = rows[1].clone()
        assert torch.allclose(GeometricMedian()(rows, 3).vector, rows[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("tolerance", [0.0, -1e-6, 0.5, math.nan, True, 1, "1e-6"], ids=repr)
def test_the_tolerance_is_a_small_positive_number(tolerance: object) -> None:
    with pytest.raises(ConfigError, match=r"the tolerance of 'geometric-median' must be a number between 0 and 0\.1"):
        GeometricMedian(tolerance=tolerance)  # type: ignore[arg-type]


def test_a_warning_says_how_near_the_search_came_if_it_misses_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = normal(9, 4, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certified = GeometricMedian()(rows, 2).vector
    monkeypatch.setattr("gyroscope.rules.geometric_median._STEPS", 0)
    with pytest.warns(UserWarning, match=r"reached only to \d\.\de-0\d instead of the tolerance 1e-06"):
        nearest = GeometricMedian()(rows, 2).vector
    assert nearest.isfinite().all() and not torch.equal(nearest, certified)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-9, 1e-13], ids=repr)
def test_no_warning_if_the_tolerance_is_reached(tolerance: float) -> None:
    """Also if the tolerance is smaller than the target at which the search otherwise stops."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vector, _ = GeometricMedian(tolerance=tolerance)(normal(9, 4, seed=3), 2)
    assert excess_at(normal(9, 4, seed=3).numpy(), vector.numpy(), 0.0) <= max(tolerance, 1e-12)
