"""Workers that count unequally: weighted rules against their definitions, and what an adversary claims."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import gyroscope as gy
from gyroscope._core.clock import UNTIMED
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError
from gyroscope.momentum import RobustAggregator, worker_weights
from gyroscope.runs.training import Run

CONFIG = gy.Config(
    workers=9, byzantine=1, attack="little", rule="median", shards="quantity:alpha=1.0", worker_weights="sizes",
    steps=8, batch=8, threads=1,
)  # fmt: skip


def weighted_median(values: list[float], weights: list[int]) -> float:
    """The smallest value such that the values up to it have half of the weight; NaN above all."""
    key = [math.inf if math.isnan(value) else value for value in values]
    for value in sorted(key):
        if 2 * sum(weight for other, weight in zip(key, weights, strict=True) if other <= value) >= sum(weights):
            return value
    raise AssertionError


def weighted_trimmed_mean(values: list[float], weights: list[int], trim: int) -> float:
    """The mean over the weight axis from `trim` to the whole weight less `trim`."""
    total, begin = 0.0, 0
    for value, weight in sorted(zip(values, weights, strict=True), key=lambda pair: (math.isnan(pair[0]), pair[0])):
        kept = min(begin + weight, sum(weights) - trim) - max(begin, trim)
        total += kept * value if kept > 0 else 0.0
        begin += weight
    return total / (sum(weights) - 2 * trim)


counts = st.lists(st.integers(1, 6), min_size=5, max_size=9)


@given(counts, st.data())
def test_rules_with_weights_are_their_definitions(weights: list[int], data: st.DataObject) -> None:
    n = len(weights)
    values = st.lists(st.integers(-50, 50).map(float), min_size=n, max_size=n)
    columns = [data.draw(values) for _ in range(3)]
    f = data.draw(st.integers(0, 2))
    trim = sum(sorted(weights)[n - f :])
    rows = torch.tensor(columns, dtype=torch.float64).T.contiguous()
    average = RobustAggregator("average", 0, copies=weights).step(rows)
    right = [sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights) for column in columns]
    assert average.vector.tolist() == pytest.approx(right)
    assert average.weight is not None
    assert average.weight.tolist() == pytest.approx([weight / sum(weights) for weight in weights])
    if 2 * trim >= sum(weights):
        return
    for worker in data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=f)):
        rows[worker] = math.nan
    columns = rows.T.tolist()
    median = RobustAggregator("median", f, copies=weights).step(rows).vector
    assert median.tolist() == [weighted_median(column, weights) for column in columns]
    trimmed = RobustAggregator("trimmed-mean", f, copies=weights).step(rows).vector
    assert trimmed.tolist() == pytest.approx([weighted_trimmed_mean(column, weights, trim) for column in columns])


@given(counts, st.integers(0, 99))
def test_the_geometric_median_has_the_least_weighted_sum_of_distances(weights: list[int], seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(weights), 3, dtype=torch.float64, generator=stream)
    update = RobustAggregator("geometric-median", 0, copies=weights).step(rows)

    def total(place: Tensor) -> float:
        return float((torch.tensor(weights) * (rows - place).norm(dim=1)).sum())

    for _ in range(30):
        other = update.vector + 0.1 * torch.randn(3, dtype=torch.float64, generator=stream)
        assert total(update.vector) <= total(other) + 1e-6
    assert update.weight is not None and len(update.weight) == len(weights)
    assert float(update.weight.sum()) == pytest.approx(1.0)


# -- how much anybody counts -------------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=12))
def test_nobody_counts_more_than_three_times_the_median(claimed: list[float]) -> None:
    found = worker_weights.copies(claimed)
    middle = sorted(claimed)[(len(claimed) - 1) // 2]
    typical = found[claimed.index(middle)]
    assert all(1 <= count <= 3 * typical for count in found)
    for weight, count in zip(claimed, found, strict=True):
        wanted = min(max(weight / middle, 0.5), 3.0)
        assert abs(count / typical - wanted) <= 0.25 + 1e-9


def test_a_claim_moves_no_other_workers_weight() -> None:
    honest = [100.0, 120.0, 80.0, 50.0, 200.0, 100.0, 101.0]
    assert worker_weights.copies([*honest, 1e12])[:-1] == worker_weights.copies([*honest, 301.0])[:-1]
    assert worker_weights.copies([*honest, 1e12])[-1] == 6 and worker_weights.copies([7.0] * 4) == (1, 1, 1, 1)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [None, 4])
def test_a_run_weighs_its_workers_by_their_shards(sample: int | None) -> None:
    run = Run(dataclasses.replace(CONFIG, sample=sample).resolve(), gy.tasks.parse("digits").load())
    shards = run.round_config.workers.shards  # type: ignore[attr-defined]
    weights = list(worker_weights.copies([len(shard) for shard in shards]))
    assert len(set(weights)) > 2
    seen: list[Tensor] = []

    @dataclasses.dataclass(frozen=True)
    class Foreseeing(gy.attacks.Attack):
        name = "foreseeing"

        def rows(self, honest: Tensor, f: int, context: Any) -> Tensor:
            seen.append(context.outcome(torch.cat([honest, -honest[:f]])))
            return -honest[:f]

    run.round_config = dataclasses.replace(run.round_config, attack=Foreseeing())
    for _ in range(5):
        seen.clear()
        update = run.compute_round(UNTIMED).update
        run.step += 1
        columns = update.rows[:, ::500].T.tolist()
        assert update.vector[::500].tolist() == [weighted_median(column, weights) for column in columns]
        assert not seen or torch.equal(seen[0], update.vector), "the adversary foresees it"


def test_equal_weights_are_none() -> None:
    plain, weighed = (
        gy.train(dataclasses.replace(CONFIG, shards="iid", worker_weights=weights)) for weights in ("equal", "sizes")
    )
    assert plain.metrics.equals(weighed.metrics)


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"rule": "krum"}, ConfigError, "the rule krum has no form with weights.*average, median"),
        ({"rule": "nnm+median"}, ConfigError, "no form with weights"),
        ({"worker_weights": "1,2"}, ConfigError, "each of the 9 workers.*'1,2'"),
        ({"worker_weights": "1,1,1,1,1,1,1,1,nan"}, ConfigError, "positive number"),
        ({"worker_weights": "much"}, ConfigError, "'much'"),
        ({"sample": 5, "absent": "left-out"}, ConfigError, "absent = momentum"),
        ({"shards": "common"}, ConfigError, "here all hold all: set shards"),
        ({"worker_weights": "3,3,3,1,1,1,1,1,1", "declared_byzantine": 3}, InfeasibleError,
         "the 3 workers with the largest weights have 9 of 15 copies.*needs 19"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(settings: dict[str, object], kind: type[GyroscopeError], words: str) -> None:
    with pytest.raises(kind, match=words):
        gy.train(dataclasses.replace(CONFIG, **settings))  # type: ignore[arg-type]
