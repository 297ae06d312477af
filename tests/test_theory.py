"""The paper's quantities: by hand, and the recursions against the explicit sums."""

from __future__ import annotations

import math
from fractions import Fraction

import oracles
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import SCALES, normal, seeds
from torch import Tensor

from gyroscope._core import theory
from gyroscope._core.theory import Curvature, Trajectory, advance

factors = st.floats(0.01, 0.99)


def walk(means: Tensor, sigmas: list[float], mu: float) -> list[Curvature]:
    """All steps of the recursions."""
    trajectory = Trajectory(torch.zeros_like(means[0]))
    curvatures = []
    for mean, sigma in zip(means, sigmas, strict=True):
        now, trajectory = advance(trajectory, mean, sigma, mu)
        curvatures.append(now)
    return curvatures


# ------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("n", "f", "right"),
    [
        (51, 12, 39 + Fraction(12 * 37 + 144 * 38, 25)),  # 275.64
        (51, 24, 27 + Fraction(24 * 25 + 576 * 26, 1)),  # 15603
        (25, 5, 20 + Fraction(5 * 18 + 25 * 19, 13)),  # 63.46...
        (25, 11, 14 + Fraction(11 * 12 + 121 * 13, 1)),  # 1719
        (3, 0, Fraction(3)),
    ],
)
def test_kappa_by_hand(n: int, f: int, right: Fraction) -> None:
    assert theory.kappa(n, f) == pytest.approx(float(right), rel=1e-15)
    assert theory.krum_ratio_bound(n, f) == pytest.approx(float(1 / (2 * right)), rel=1e-15)
    assert theory.median_ratio_bound(n, f) == pytest.approx(1 / (n - f), rel=1e-15)


def test_kappa_in_figures() -> None:
    assert theory.kappa(51, 12) == pytest.approx(275.64)
    assert theory.kappa(51, 24) == 15603
    assert theory.kappa(25, 5) == pytest.approx(63.46153846153846)
    assert theory.kappa(25, 11) == 1719


@given(f=st.integers(0, 30), extra=st.integers(0, 30))
def test_kappa_equals_its_formula(f: int, extra: int) -> None:
    n = 2 * f + 3 + extra
    assert theory.kappa(n, f) == pytest.approx(oracles.kappa(n, f), rel=1e-14)


@pytest.mark.parametrize(("n", "f"), [(2, 0), (4, 1), (3, 1), (50, 24)])
def test_kappa_needs_more_than_2f_plus_2_workers(n: int, f: int) -> None:
    with pytest.raises(ValueError, match="n > 2f"):
        theory.kappa(n, f)


# -------------------------------------------------------------------------------------- ratio and friends


@given(seed=seeds, h=st.integers(2, 9), scale=st.sampled_from(SCALES), dtype=st.sampled_from(["float32", "float64"]))
def test_ratio_and_deviation_equal_their_definitions(seed: int, h: int, scale: float, dtype: str) -> None:
    rows = ((normal(h, 6, seed) + 0.5) * scale).to(getattr(torch, dtype))
    mean = rows.mean(dim=0)
    sigma = theory.deviation(rows, mean)
    assert sigma == pytest.approx(math.sqrt(oracles.variance(rows.tolist())), rel=1e-5)
    norm = float(mean.double().norm())
    assume(norm > 1e-3 * scale)
    assert theory.ratio(sigma, norm) == pytest.approx(oracles.ratio(rows.tolist()), rel=1e-3)


def test_the_deviation_of_a_single_row_is_unknown() -> None:
    assert math.isnan(theory.deviation(torch.ones(1, 3), torch.ones(3)))


def test_the_deviation_of_equal_rows_is_zero() -> None:
    assert theory.deviation(torch.ones(4, 3), torch.ones(3)) == 0


def test_ratio_where_something_vanishes() -> None:
    assert theory.ratio(2.0, 1.0) == 4
    assert theory.ratio(0.0, 1.0) == 0
    assert theory.ratio(1.0, 0.0) == math.inf
    assert math.isnan(theory.ratio(0.0, 0.0))
    assert math.isnan(theory.ratio(math.nan, 0.0)) and math.isnan(theory.ratio(math.nan, 1.0))
    assert theory.ratio(math.inf, 1.0) == math.inf


def test_a_ratio_beyond_the_range_of_numbers_is_infinite() -> None:
    """A mean that all but vanishes is ordinary near a minimum, in float64."""
    assert theory.ratio(1.0, 1e-160) == math.inf
    assert theory.ratio(1e200, 1.0) == math.inf


def test_dot_and_cosine() -> None:
    left, right = torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])
    assert theory.dot(left, right) == 24
    assert theory.cosine(left, right) == pytest.approx(24 / 25)
    assert theory.cosine(left, -left) == pytest.approx(-1)
    assert math.isnan(theory.cosine(left, torch.zeros(2)))


def test_dot_is_accumulated_in_float64() -> None:
    big = torch.tensor([1e30, 1.0, -1e30])
    assert theory.dot(big, torch.tensor([1e10, 1.0, 1e10])) == 1.0


# ---------------------------------------------------------------------------------------------- recursions


@given(seed=seeds, mu=factors, drift=st.sampled_from([0.0, 0.3, 3.0]))
def test_thirty_steps_of_the_recursions_equal_the_explicit_sums(seed: int, mu: float, drift: float) -> None:
    means = normal(30, 4, seed) + drift
    sigmas = (normal(1, 30, seed + 1)[0].abs() + 0.1).tolist()
    vectors, variances = means.tolist(), [sigma**2 for sigma in sigmas]
    for t, now in enumerate(walk(means, sigmas, mu)):
        size = 1e-9 * oracles.dot(vectors[t], vectors[t]) + 1e-9
        assert now.straightness == pytest.approx(oracles.straightness(vectors, t, mu), abs=size, rel=1e-9)
        assert now.omega**2 == pytest.approx(oracles.omega2(variances, t, mu), rel=1e-9)
        assert now.lambda_**2 == pytest.approx(oracles.lambda2(vectors, t, mu), rel=1e-9, abs=1e-9)


@given(seed=seeds, mu=factors)
def test_lambda_is_the_norm_of_the_accumulated_mean(seed: int, mu: float) -> None:
    means = normal(20, 5, seed)
    for t, now in enumerate(walk(means, [1.0] * 20, mu)):
        accumulated = oracles.discounted(means[: t + 1].tolist(), mu)
        assert now.lambda_ == pytest.approx(math.hypot(*accumulated), rel=1e-7, abs=1e-7)


@given(seed=seeds, mu=factors, drift=st.sampled_from([-1.0, 0.0, 0.5]))
def test_the_decrease_condition_says_whether_the_ratio_is_lower_at_the_workers(
    seed: int, mu: float, drift: float
) -> None:
    means = normal(30, 4, seed) + drift
    sigmas = (normal(1, 30, seed + 1)[0].abs() + 0.1).tolist()
    vectors, variances = means.tolist(), [sigma**2 for sigma in sigmas]
    curvatures = walk(means, sigmas, mu)
    assert curvatures[0].decreases  # at the first step both ratios are the same
    for t in range(1, 30):
        met, slack = oracles.decreases(vectors, variances, t, mu)
        if abs(slack) < 1e-9:
            continue
        at_server = variances[t] / oracles.dot(vectors[t], vectors[t])
        at_workers = oracles.omega2(variances, t, mu) / oracles.lambda2(vectors, t, mu)
        assert curvatures[t].decreases == met == (at_workers <= at_server)


def test_the_decrease_condition_goes_both_ways() -> None:
    straight = walk(torch.ones(5, 1), [1.0] * 5, 0.9)
    assert all(now.decreases for now in straight) and straight[4].straightness > 0
    zigzag = walk(torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), [1.0] * 4, 0.9)
    assert not any(now.decreases for now in zigzag[1:]) and zigzag[1].straightness < 0


def test_straightness_of_a_straight_line_by_hand() -> None:
    now = walk(torch.tensor([[2.0], [2.0], [2.0]]), [1.0] * 3, 0.5)[2]
    assert now.straightness == 2 * 4 * (0.5 + 0.25)
    assert now.lambda_ == 2 * 1.75
    assert now.omega == pytest.approx(math.sqrt(1 + 1 / 4 + 1 / 16))


def test_without_momentum_nothing_is_remembered() -> None:
    means = normal(5, 3, seed=0)
    for mean, now in zip(means, walk(means, [2.0] * 5, 0.0), strict=True):
        assert now.straightness == 0 and now.omega == 2
        assert now.lambda_ == pytest.approx(float(mean.norm()), rel=1e-12)


def test_the_trajectory_and_the_mean_are_not_changed() -> None:
    trajectory, mean = Trajectory(torch.ones(3), 1.0, 2.0), torch.tensor([1.0, 2.0, 3.0])
    _, after = advance(trajectory, mean, 1.0, 0.5)
    assert trajectory.past.tolist() == [1.0] * 3 and mean.tolist() == [1.0, 2.0, 3.0]
    assert after.past.tolist() == [1.0, 1.5, 2.0]


def test_a_momentum_that_vanishes_has_norm_zero_and_no_imaginary_one() -> None:
    for mu in (0.1, 0.3, 0.7, 0.9):
        first = normal(1, 50, seed=1, dtype=torch.float32)[0]
        last = walk(torch.stack([first, -mu * first]), [0.0, 0.0], mu)[1]
        assert 0 <= last.lambda_ < 1e-3 * float(first.norm())


def test_float32_means_lose_little_over_a_long_run() -> None:
    means = normal(30, 50, seed=5, dtype=torch.float32)
    last = walk(means, [1.0] * 30, 0.99)[-1]
    assert last.lambda_ == pytest.approx(math.sqrt(oracles.lambda2(means.tolist(), 29, 0.99)), rel=1e-4)


@pytest.mark.parametrize(
    ("means", "sigmas", "dtype"),
    [
        ([3e38, 3e38, -1e38, 1.0], [1.0, 1.0, 1.0, 1.0], torch.float32),
        ([math.inf, -1.0, math.nan, 1.0], [math.inf, 1.0, math.nan, 1.0], torch.float32),
        ([1e200, -1e200, 1.0], [1.0, 1.0, 1.0], torch.float64),
        ([1.0, 1.0], [1e200, 1.0], torch.float64),
    ],
    ids=["float32 overflows", "not finite", "squared norm overflows", "squared sigma overflows"],
)
def test_gradients_that_diverge_are_measured_without_an_exception(
    means: list[float], sigmas: list[float], dtype: torch.dtype
) -> None:
    """A run that diverges is recorded like any other: what leaves the range of numbers becomes inf or NaN."""
    assert len(walk(torch.tensor(means, dtype=dtype).unsqueeze(1), sigmas, 0.99)) == len(means)


# --------------------------------------------------------------------------------------------- slips of the paper


@pytest.mark.parametrize("mu", [0.5, 0.9])
def test_straightness_grows_to_twice_mu_over_one_minus_mu(mu: float) -> None:
    """The paper says 1 / (1 - mu). With equal gradients of length 1 the sum is 2 mu / (1 - mu)."""
    curvatures = walk(torch.ones(400, 1, dtype=torch.float64), [1.0] * 400, mu)
    assert curvatures[-1].straightness == pytest.approx(2 * mu / (1 - mu))


@given(mu=factors, t=st.integers(1, 40))
def test_the_sum_in_the_last_bound_has_a_factor_mu(mu: float, t: int) -> None:
    """The paper has (1 - mu^t) / (1 - mu) for the sum of mu^(t - u) over u = 0, ..., t - 1."""
    assert sum(mu ** (t - u) for u in range(t)) == pytest.approx(mu * (1 - mu**t) / (1 - mu))
