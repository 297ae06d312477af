"""`searched` and `split`: the search finds what a naive one finds, in whichever coordinates it works."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gyroscope import attacks, rules
from gyroscope._core.errors import ConfigError
from gyroscope.attacks import _compressed_rule

F = 4


def honest_rows(d: int, h: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(d)
    return torch.randn(d, generator=generator) * 0.3 + torch.randn(h, d, generator=generator)


def distance(rule: str, honest: Tensor, byzantine: Tensor) -> float:
    result = rules.parse(rule)(torch.cat([honest, byzantine]), F).vector
    return float((result - honest.mean(dim=0)).norm())


@pytest.mark.parametrize("rule", ["krum", "caf", "median", "nnm+trimmed-mean", "flame", "geometric-median"])
def test_it_does_at_least_the_damage_of_a_naive_grid(rule: str) -> None:
    honest = honest_rows(50)
    mean = honest.mean(dim=0)
    radius = float((honest - mean).norm(dim=1).square().mean().sqrt())
    naive = max(
        distance(rule, honest, (mean + factor * radius * direction / direction.norm()).expand(F, -1))
        for direction in (-mean, -honest.std(dim=0))
        for factor in torch.linspace(0.1, 4, 40).tolist()
    )
    found = distance(rule, honest, attacks.parse("searched")(honest, F, rule=rule))
    assert found >= 0.98 * naive


@pytest.mark.parametrize("rule", ["krum", "caf", "nnm+caf", "flame"])
@pytest.mark.parametrize("goal", ["distance", "against", "drift"])
def test_the_span_of_the_rows_gives_what_whole_rows_give(monkeypatch: Any, rule: str, goal: str) -> None:
    honest = honest_rows(5000)
    spec = f"searched:goal={goal}"
    state: dict[str, Tensor] = {}
    in_span = attacks.parse(spec)(honest, F, rule=rule, state=state)
    assert "by_columns" not in state
    monkeypatch.setattr(_compressed_rule, "COLUMNS", 10_000)
    whole = attacks.parse(spec)(honest, F, rule=rule)
    torch.testing.assert_close(in_span, whole, rtol=1e-3, atol=1e-3)


def test_a_rule_that_looks_at_columns_is_searched_by_columns() -> None:
    honest, state = honest_rows(5000), dict[str, Tensor]()
    rows = attacks.parse("searched:goal=against")(honest, F, rule="median", state=state)
    assert "by_columns" in state
    mean = honest.mean(dim=0)
    result = rules.parse("median")(torch.cat([honest, rows]), F).vector
    assert float(result @ mean) < 0.8 * float(rules.parse("median")(honest, F).vector @ mean)


def test_a_rule_s_state_is_part_of_the_search() -> None:
    """Centred clipping starts at its last result: the adversary that ignores it would misjudge the damage."""
    honest, rule = honest_rows(60), rules.parse("centered-clipping")
    _, kept = rule.step(honest + 5, F)
    context = rules.RuleContext(step=1, state=kept)
    rows = attacks.parse("searched")(honest, F, rule=rule, rule_context=context)
    mean = honest.mean(dim=0)
    found, harmless = (rule(torch.cat([honest, sent]), F, context).vector for sent in (rows, mean.expand(F, -1)))
    assert float((found - mean).norm()) > float((harmless - mean).norm())


@pytest.mark.parametrize("drift", ["std", "mean", "signs"])
def test_a_drift_keeps_its_direction_in_all_rounds(drift: str) -> None:
    attack, state = attacks.parse(f"searched:goal=drift,drift={drift},formation=together"), dict[str, Tensor]()
    offsets = []
    for step in range(4):
        honest = honest_rows(50 + 0) + 0.2 * torch.randn(9, 50, generator=torch.Generator().manual_seed(step))
        rows = attack(honest, F, rule="caf", state=state, step=step)
        offset = rows[0] - honest.mean(dim=0)
        offsets.append(offset / offset.norm())
    for offset in offsets[1:]:
        torch.testing.assert_close(offset, offsets[0], rtol=1e-3, atol=1e-4)


def test_home_pushes_the_parameters_back() -> None:
    attack, state = attacks.parse("searched:goal=drift,drift=home,formation=together"), dict[str, Tensor]()
    honest, start = honest_rows(50), torch.zeros(50)
    attack(honest, F, rule="caf", state=state, parameters=start)
    moved = torch.randn(50, generator=torch.Generator().manual_seed(1))
    rows = attack(honest, F, rule="caf", state=state, step=1, parameters=moved)
    offset = rows[0] - honest.mean(dim=0)
    assert float(torch.nn.functional.cosine_similarity(offset, moved - start, dim=0)) > 0.999
    with pytest.raises(ConfigError, match="give parameters=vector"):
        attack(honest, F, rule="caf")


def test_split_sends_each_attack_s_rows_in_groups() -> None:
    honest = honest_rows(20)
    rows = attacks.parse("split:attacks=(little/empire/zero)")(honest, F)
    little, empire = (attacks.parse(name)(honest, F) for name in ("little", "empire"))
    assert torch.equal(rows, torch.cat([little[:2], empire[:1], torch.zeros(1, 20)]))
    assert torch.equal(attacks.parse("split:attacks=(little/empire/zero)")(honest, 1), little[:1])
