"""CAF with history: its filter by a naive one on points of two parts, and what a past can and cannot do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gyroscope import attacks, rules
from gyroscope.rules import RuleContext, RuleState
from gyroscope.rules.caf_history import CAFHistory

MEMORY = 0.9


NEAR = 0.5


def naive_weights(points: np.ndarray, f: int, near: float) -> np.ndarray:  # type: ignore[type-arg]
    """CAF from its definition, with the d x d covariance; points near each other share one vote.

    The best mean is that of the smallest eigenvalue, divided by the square root of the weight that is left.
    """
    limit = near * radius(points, len(points) // 2 + 1) ** 2
    weight = np.array([1 / sum(float(np.sum((one - other) ** 2)) <= limit for other in points) for one in points])
    least = weight.sum() * (len(points) - 2 * f) / len(points)
    best, smallest = weight / weight.sum(), math.inf
    while True:
        shares = weight / weight.sum()
        centred = points - shares @ points
        values, vectors = np.linalg.eigh((centred * shares[:, None]).T @ centred)
        size = values[-1] / math.sqrt(weight.sum())
        if size < smallest:
            best, smallest = shares, size
        outlying = (centred @ vectors[:, -1]) ** 2
        weight = weight * (1 - outlying / outlying[weight > 0].max())
        weight[weight < 1e-9] = 0.0
        if weight.sum() <= least:
            return best


def radius(points: np.ndarray, size: int) -> float:  # type: ignore[type-arg]
    """The distance within which half of the points have `size` points, themselves included."""
    each = (sorted(float(np.linalg.norm(other - one)) for other in points)[size - 1] for one in points)
    return sorted(each)[(len(points) - 1) // 2]


def rule_of_caf(rows: Tensor, f: int) -> np.ndarray:  # type: ignore[type-arg]
    weight = rules.parse("caf")(rows, f).weight
    assert weight is not None
    return weight.numpy()


def rounds(count: int, n: int = 9, d: int = 6, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, dtype=torch.float64, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("f", [1, 3])
def test_its_weights_are_those_of_a_naive_filter_on_rows_and_histories(f: int) -> None:
    rule, state, past = CAFHistory(memory=MEMORY), RuleContext().state, None
    for step, rows in enumerate(rounds(6)):
        (vector, weight), state = rule.step(rows, f, RuleContext(step, 0, state))
        x = rows.numpy()
        past = x if past is None else MEMORY * past + x
        size = len(x) - f
        points = x if step == 0 else np.hstack([0.5 * x / radius(x, size), past / radius(past, size)])
        expected = naive_weights(points, f, NEAR) if step > 0 else rule_of_caf(rows, f)
        assert weight is not None
        np.testing.assert_allclose(weight.numpy(), expected, atol=1e-6)
        np.testing.assert_allclose(vector.numpy(), expected @ x, atol=1e-6)
        np.testing.assert_allclose(state["history"].numpy(), past)


def test_a_lie_that_one_round_does_not_show_is_found_in_the_histories() -> None:
    """The liars' rows are honest rows, shifted by less than half of an honest row's own noise."""
    shares: dict[str, list[float]] = {"caf": [], "caf-history": []}
    shift = 0.4 * torch.ones(200) / math.sqrt(200) * math.sqrt(200)
    for name, found in shares.items():
        rule, state = rules.parse(name), RuleContext().state
        for step in range(60):
            generator = torch.Generator().manual_seed(step)
            rows = torch.randn(13, 200, generator=generator)
            rows[9:] += shift
            (_, weight), state = rule.step(rows, 4, RuleContext(step, 0, state))
            assert weight is not None
            found.append(float(weight[9:].sum()))
    assert sum(shares["caf-history"][-10:]) < 0.2 * sum(shares["caf"][-10:])


def test_no_past_moves_the_result_out_of_its_bound() -> None:
    """An adversary that has prepared any histories gains nothing beyond the stated bound."""
    n, f, d = 11, 5, 20
    generator = torch.Generator().manual_seed(3)
    rule = CAFHistory()
    for scale in (1e-3, 1.0, 1e3, 1e6):
        honest = torch.randn(n - f, d, generator=generator)
        mean = honest.mean(dim=0)
        for shift in (0.5, 3.0, 100.0):
            rows = torch.cat([honest, (mean + shift).expand(f, -1)])
            past = torch.cat([scale * torch.randn(n - f, d, generator=generator), torch.zeros(f, d)])
            vector = rule(rows, f, RuleContext(1, 0, {"history": past})).vector
            reach = float((honest - mean).norm(dim=1).max())
            assert float((vector - mean).norm()) <= rule.bound_factor(n, f) * reach


def test_a_row_that_is_not_finite_leaves_its_worker_s_history_alone() -> None:
    rule = CAFHistory(memory=MEMORY)
    first, second, third = rounds(3)
    _, state = rule.step(first, 2)
    bad = second.clone()
    bad[4, 1] = math.nan
    (_, weight), after = rule.step(bad, 2, RuleContext(1, 0, state))
    assert weight is not None and weight[4] == 0
    assert torch.equal(after["history"][4], state["history"][4])
    assert after["history"].isfinite().all()
    (_, weight), _ = rule.step(third, 2, RuleContext(2, 0, after))
    assert weight is not None and weight.isfinite().all()


def test_a_worker_that_was_never_there_has_an_empty_history() -> None:
    rows = rounds(1)[0]
    rows[2] = math.inf
    _, state = CAFHistory().step(rows, 2)
    assert not state["history"][2].any()


def test_searching_in_the_span_finds_what_whole_rows_give() -> None:
    """The histories are part of the adversary's model of the rule."""
    generator = torch.Generator().manual_seed(5)
    honest = torch.randn(9, 5000, generator=generator)
    past: RuleState = {"history": torch.randn(12, 5000, generator=generator)}
    state: dict[str, Tensor] = {}
    context = RuleContext(1, 0, past)
    attacks.parse("searched")(honest, 3, rule="caf-history", rule_context=context, state=state)
    assert "by_columns" not in state


@pytest.mark.slow
def test_copies_count_as_one_and_so_almost_half_of_the_workers_move_the_result_less() -> None:
    """The adversary searches against each rule: where copies have a vote each, it moves the result further."""
    moved = {}
    for rule in (CAFHistory(near=0.0), CAFHistory()):
        generator, state = torch.Generator().manual_seed(7), RuleContext().state
        for step in range(3):
            honest = torch.randn(17, 300, generator=generator)
            context = RuleContext(step, 0, state)
            lies = attacks.parse("searched")(honest, 14, rule=rule, rule_context=context)
            (vector, _), state = rule.step(torch.cat([honest, lies]), 14, context)
        moved[rule.near] = float((vector - honest.mean(dim=0)).norm())
    assert moved[0.5] < 0.8 * moved[0.0], moved


def test_copies_of_an_old_mean_gain_nothing_by_lying_in_the_middle() -> None:
    """Copies at the centre make the variance small when most of the weight is gone; then they must not count."""
    rule, state = CAFHistory(), RuleContext().state
    generator = torch.Generator().manual_seed(0)
    means, shares = [], []
    for step in range(30):
        honest = torch.randn(14, 400, generator=generator) + 0.05 * step
        means.append(honest.mean(dim=0))
        rows = torch.cat([honest, means[max(0, step - 2)].expand(12, -1)])
        (_, weight), state = rule.step(rows, 12, RuleContext(step, 0, state))
        assert weight is not None
        shares.append(float(weight[14:].sum()))
    assert max(shares[1:]) < 0.15, shares  # the first round has no past
