"""`RobustAggregator`: the rule, its state, and momentum at the server, against explicit sums."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import DTYPES, normal, seeds
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import ConfigError, InfeasibleError, RowsError, UnknownNameError
from gyroscope.momentum import PLACEMENTS, RobustAggregator, WorkerMomentum
from gyroscope.rules import Average, Krum, Rule

factors = st.floats(0, 0.999)
QUICK = gy.Config(task="digits", rule="krum", workers=7, declared_byzantine=2, steps=12, lr="0.1", evaluate_every=4)


def directions(
    placement: str, gradients: list[Tensor], rule: Rule, f: int = 0, mu: float = 0.9, nesterov: bool = False
) -> list[Tensor]:
    """The updates' directions over several steps, as in a loop of one's own."""
    server = RobustAggregator(rule, f, momentum=placement, mu=mu, nesterov=nesterov)
    workers = [WorkerMomentum(mu, nesterov=nesterov) for _ in gradients[0]]
    result = []
    for rows in gradients:
        if placement == "workers":
            rows = torch.stack([worker.update(row) for worker, row in zip(workers, rows, strict=True)])
        result.append(server.step(rows).vector)
    return result


def gradients_of(seed: int, count: int = 8, n: int = 5, d: int = 3) -> list[Tensor]:
    return [normal(n, d, seed + step) for step in range(count)]


@given(seed=seeds, mu=factors)
def test_at_the_server_the_rules_outputs_are_summed(seed: int, mu: float) -> None:
    gradients = gradients_of(seed)
    outputs = [Krum()(rows, 1).vector.tolist() for rows in gradients]
    for t, direction in enumerate(directions("server", gradients, Krum(), 1, mu)):
        assert direction.tolist() == pytest.approx(oracles.discounted(outputs[: t + 1], mu), abs=1e-12)


@given(seed=seeds)
def test_without_momentum_the_rule_is_all(seed: int) -> None:
    gradients = gradients_of(seed)
    got = directions("none", gradients, Krum(), 1)
    assert all(torch.equal(a, Krum()(rows, 1).vector) for a, rows in zip(got, gradients, strict=True))


@given(seed=seeds, mu=factors, nesterov=st.booleans())
def test_for_a_linear_rule_server_and_workers_are_the_same(seed: int, mu: float, nesterov: bool) -> None:
    gradients = gradients_of(seed)
    pairs = zip(
        *(directions(place, gradients, Average(), 0, mu, nesterov) for place in ("server", "workers")), strict=True
    )
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)


def test_for_krum_server_and_workers_differ() -> None:
    at_server, at_workers = (directions(place, gradients_of(1), Krum(), 1)[-1] for place in ("server", "workers"))
    assert not torch.allclose(at_server, at_workers)


@pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
@given(seed=seeds, mu=st.floats(0.01, 0.99))
def test_kept_by_the_server_is_the_same_as_at_the_workers(seed: int, mu: float, nesterov: bool) -> None:
    gradients = gradients_of(seed, 6, 7)
    kept, at_workers = (directions(place, gradients, Krum(), 2, mu, nesterov) for place in ("server-kept", "workers"))
    assert all(torch.equal(a, b) for a, b in zip(kept, at_workers, strict=True))


def test_a_run_with_momentum_kept_by_the_server_is_the_same_to_the_bit() -> None:
    kept, at_workers = (gy.train(dataclasses.replace(QUICK, momentum=name)) for name in ("server-kept", "workers"))
    for name, tensor in kept.model.state_dict().items():
        assert torch.equal(tensor, at_workers.model.state_dict()[name])
    assert kept.metrics.equals(at_workers.metrics)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_bad_row_counts_for_its_round_only(bad: float) -> None:
    server, rows = RobustAggregator("median", 1, momentum="server-kept", mu=0.5), torch.ones(3, 2)
    server.step(rows)
    broken = rows.clone()
    broken[1] = bad
    assert not bool((server.preview(broken)[1].abs() < 1e38).any())
    assert not bool((server.step(broken).rows[1].abs() < 1e38).any()), "the rule must see what was sent"
    shown = server.step(rows).rows
    assert shown[[0, 2]].tolist() == [[1.75, 1.75]] * 2
    if bad != 3e38:  # a finite row is a row: whoever sent it has it in its sum
        assert shown[1].tolist() == [1.5, 1.5]


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
def test_the_dtype_is_kept_and_the_rows_stay_as_they_are(name: str, dtype: torch.dtype) -> None:
    server = RobustAggregator("median", 1, momentum=name)
    for step in range(3):
        rows = normal(4, 3, step, dtype=dtype)
        before = rows.clone()
        update = server.step(rows)
        assert update.vector.dtype == update.rows.dtype == dtype and torch.equal(rows, before)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("rule", ["centered-clipping", "random:krum/median", "nnm+bucketing+median"])
def test_a_state_dict_goes_on_with_the_same_bits(name: str, rule: str) -> None:
    first, second = (RobustAggregator(rule, 1, momentum=name, seed=4) for _ in range(2))
    for step in range(3):
        first.step(normal(9, 3, step))
    second.load_state_dict(first.state_dict())
    for step in range(3, 6):
        assert torch.equal(first.step(normal(9, 3, step)).vector, second.step(normal(9, 3, step)).vector)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_run_goes_on_after_an_interruption_as_if_there_was_none(name: str, tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, momentum=name, byzantine=2, attack="little")
    whole = gy.train(config).model.state_dict()
    rounds = iter(range(5))
    gy.train(config, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    resumed = gy.resume(tmp_path / "run")
    assert resumed.status == "complete"
    assert all(torch.equal(tensor, resumed.model.state_dict()[name]) for name, tensor in whole.items())


def test_a_list_of_gradients_is_as_good_as_a_matrix() -> None:
    rows = normal(7, 4, 1)
    assert torch.equal(
        RobustAggregator("krum", 1).step(list(rows)).vector, RobustAggregator("krum", 1).step(rows).vector
    )


def test_a_trusted_gradient_reaches_the_rule() -> None:
    rows, trusted = normal(5, 3, 1), torch.ones(3, dtype=torch.float64)
    assert RobustAggregator("fltrust", 1).step(rows, trusted=trusted).vector.isfinite().all()
    with pytest.raises(ConfigError, match="compares the rows with a gradient"):
        RobustAggregator("fltrust", 1).step(rows)


def test_mistakes_are_told() -> None:
    with pytest.raises(ConfigError, match="nesterov needs a momentum"):
        RobustAggregator("krum", 1, momentum="none", nesterov=True)
    with pytest.raises(UnknownNameError, match="did you mean 'workers'"):
        RobustAggregator("krum", 1, momentum="worker")
    with pytest.raises(ConfigError, match="mu must be at least 0 and below 1"):
        RobustAggregator("krum", 1, momentum="server", mu=1.0)
    with pytest.raises(InfeasibleError, match="Krum needs n >= 2f"):
        RobustAggregator("krum", 3).step(normal(5, 2, 1))
    with pytest.raises(RowsError):
        RobustAggregator("krum", 1).step(torch.ones(3))
