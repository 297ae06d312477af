"""The paper's quantities as pure functions: no window of past gradients, constant memory.

Notation as in "Distributed Momentum for Byzantine-resilient Learning": sigma is the standard deviation of the honest
gradients around their mean, lambda the norm of that mean, mu the momentum factor.

Example:
    With 12 of 51 workers Byzantine, Krum is proven resilient while the ratio is below 0.0018, and Median below 0.026:

    >>> import gyroscope as gy
    >>> f"{gy.theory.krum_ratio_bound(51, 12):.4f}", f"{gy.theory.median_ratio_bound(51, 12):.3f}"
    ('0.0018', '0.026')
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor


def kappa(n: int, f: int) -> float:
    """kappa(n, f) of the condition on Krum and Bulyan. Defined for n > 2f + 2."""
    if n <= 2 * f + 2:
        raise ValueError(f"kappa needs n > 2f + 2, got n = {n}, f = {f}")
    return n - f + (f * (n - f - 2) + f**2 * (n - f - 1)) / (n - 2 * f - 2)


def krum_ratio_bound(n: int, f: int) -> float:
    """Krum and Bulyan are proven resilient while the variance-norm ratio is below 1 / (2 kappa(n, f))."""
    return 1 / (2 * kappa(n, f))


def median_ratio_bound(n: int, f: int) -> float:
    """Median is proven resilient while the variance-norm ratio is below 1 / (n - f)."""
    return 1 / (n - f)


def deviation(rows: Tensor, mean: Tensor) -> float:
    """sigma: the root of the rows' total variance around their mean (ddof = 1). NaN for a single row."""
    return spread(float(torch.linalg.vector_norm(rows - mean, dtype=torch.float64).square()), rows.shape[0])


def spread(squares: float, count: int) -> float:
    """sigma from the sum of squared deviations of `count` rows. NaN for a single row."""
    return math.sqrt(squares / (count - 1)) if count > 1 else math.nan


def ratio(sigma: float, norm: float) -> float:
    """The variance-norm ratio sigma^2 / lambda^2; infinite where the mean vanishes and the deviation does not."""
    if norm == 0:
        return math.nan if sigma == 0 or math.isnan(sigma) else math.inf
    quotient = sigma / norm
    return quotient * quotient  # a product overflows to inf where a power would raise


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """What the recursions remember of the steps before: P (a vector), Omega^2 and Lambda^2 (numbers).

    P_t = mu (P_{t-1} + g_{t-1}) is the discounted sum of past mean gradients, so s_t = 2 <g_t, P_t>.
    """

    past: Tensor
    omega2: float = 0.0
    lambda2: float = 0.0


@dataclasses.dataclass(frozen=True)
class Curvature:
    """The paper's momentum quantities at one step."""

    straightness: float  # s_t
    omega: float  # Omega_t, deviation of the momentum gradient
    lambda_: float  # Lambda_t, norm of the momentum gradient
    decreases: bool  # whether momentum at the workers has a ratio at most that of momentum at the server


def advance(
    trajectory: Trajectory, mean: Tensor, sigma: float, mu: float, known: tuple[float, float] | None = None
) -> tuple[Curvature, Trajectory]:
    """One step of the recursions for straightness, Omega and Lambda, and the decrease condition.

    known: the inner products of the mean with itself and with the trajectory's past, if they are known already.
    """
    norm2, with_past = known or (dot(mean, mean), dot(mean, trajectory.past))
    sigma2 = sigma * sigma
    straightness = 2 * with_past
    omega2 = sigma2 + mu**2 * trajectory.omega2
    # Lambda_t is a norm: rounding may push the recursion a hair below zero where the momentum vanishes.
    lambda2 = norm2 + straightness + mu**2 * trajectory.lambda2
    lambda2 = lambda2 if math.isnan(lambda2) else max(lambda2, 0.0)
    # s_t >= mu^2 Lambda_{t-1}^2 (r^w_{t-1} / r^s_t - 1), multiplied out by r^s_t so that no zero is divided by:
    decreases = mu**2 * trajectory.omega2 * norm2 <= (straightness + mu**2 * trajectory.lambda2) * sigma2
    now = Curvature(straightness, math.sqrt(omega2), math.sqrt(lambda2), decreases)
    return now, Trajectory(torch.add(trajectory.past, mean).mul_(mu), omega2, lambda2)


def dot(left: Tensor, right: Tensor) -> float:
    """The inner product, accumulated in float64."""
    return float(torch.dot(left.to(torch.float64), right.to(torch.float64)))


def cosine(left: Tensor, right: Tensor) -> float:
    """The cosine of the angle between two vectors; NaN where one of them vanishes."""
    first, second = (float(torch.linalg.vector_norm(vector, dtype=torch.float64)) for vector in (left, right))
    return dot(left, right) / (first * second) if first * second > 0 else math.nan
