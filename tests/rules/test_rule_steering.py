"""Attacks made for a rule: `chain` steers FLAME, `decoy` steers DnC, and neither steers the variant made against it."""

from __future__ import annotations

import math

import pytest
import torch
from strategies import normal
from torch import Tensor

from gyroscope.attacks import Chain, Decoy
from gyroscope.rules import FLAME, DnC

SIZES = [(15, 4), (15, 6), (51, 12), (51, 20), (51, 24)]
by_size = pytest.mark.parametrize(("n", "f"), SIZES)


def honest_rows(n: int, offset: float) -> Tensor:
    return normal(n, 200, seed=n) + offset


def along(vector: Tensor, mean: Tensor) -> float:
    """Return the vector's part along the honest mean, in multiples of the mean."""
    return float(vector @ mean / (mean @ mean))


@by_size
def test_a_chain_turns_flame_around_but_not_with_a_ball(n: int, f: int) -> None:
    honest = honest_rows(n - f, offset=0.3)
    rows, mean = torch.cat([honest, Chain()(honest, f)]), honest.mean(dim=0)
    assert along(FLAME()(rows, f).vector, mean) < -0.2
    assert along(FLAME(linkage="ball")(rows, f).vector, mean) > 0.5


@pytest.mark.parametrize(("n", "f"), [*SIZES, (15, 7), (51, 25)])
def test_flames_ball_points_where_honest_rows_do_if_they_are_within_30_degrees(n: int, f: int) -> None:
    honest = honest_rows(n - f, offset=4.0)
    units = honest / honest.norm(dim=1, keepdim=True)
    assert math.degrees(math.acos(float((units @ units.T).min()))) < 30
    mean = honest.mean(dim=0)
    aside = torch.nn.functional.normalize(normal(1, 200, seed=1)[0], dim=0) * honest.norm(dim=1).max()
    for byzantine in (Chain()(honest, f), Decoy()(honest, f), (-mean).expand(f, -1), aside.expand(f, -1)):
        vector = FLAME(linkage="ball")(torch.cat([honest, byzantine]), f).vector
        assert (honest @ vector > 0).all() and vector @ mean > 0


def test_nothing_is_proven_for_flames_ball_if_honest_directions_differ_more() -> None:
    """One honest row and half of all rows, which agree, are nearer to each other than the honest rows are."""
    honest = honest_rows(8, offset=0.3)
    vector = FLAME(linkage="ball")(torch.cat([honest, Chain()(honest, 7)]), 7).vector
    assert along(vector, honest.mean(dim=0)) < -0.2, "say that more is proven"


@pytest.mark.parametrize(("n", "f"), [*SIZES, (15, 2), (51, 2)])
def test_a_decoy_moves_dnc_anywhere_but_not_if_rows_are_shortened(n: int, f: int) -> None:
    honest = honest_rows(n - f, offset=0.3)
    rows, mean = torch.cat([honest, Decoy()(honest, f)]), honest.mean(dim=0)
    radius = float((honest - mean).norm(dim=1).max())
    assert (DnC()(rows, f).vector - mean).norm() > 100 * radius
    for rule in (DnC(robust=True), DnC(robust=True, coordinates=50)):
        vector = rule(rows, f).vector
        assert (vector - mean).norm() <= rule.bound_factor(n, f) * radius
        assert along(vector, mean) > 0.5
