"""Every column of metrics.csv recomputed from its meaning, in numpy and float64, from the vectors of the round."""

from __future__ import annotations

import dataclasses
import math

import numpy
import pytest
import torch
from torch import nn

import gyroscope as gy
from gyroscope._linalg.moments import CachedMoments
from gyroscope.runs.callbacks import Callback, Row
from gyroscope.runs.training import Run
from gyroscope.simulation import metrics
from gyroscope.simulation.metrics import COLUMNS
from gyroscope.simulation.round import Round, play_round

STEPS = 5
SETTINGS = {
    "krum, momentum at the workers": {"rule": "krum", "attack": "gaussian", "byzantine": 2, "momentum": "workers"},
    "krum, nesterov at the workers": {"rule": "krum", "attack": "little", "byzantine": 2, "nesterov": True},
    "median, momentum at the server": {"rule": "median", "attack": "empire", "byzantine": 2, "momentum": "server"},
    "bulyan, no momentum": {"rule": "bulyan", "attack": "gaussian", "byzantine": 1, "momentum": "none"},
    "average, no attack": {"rule": "average", "momentum": "workers", "mu": 0.5},
    "krum with fewer declared than there are": {
        "rule": "krum", "attack": "sign-flip", "byzantine": 3, "declared_byzantine": 1, "lr": "0.3,2:0.05",
    },
}  # fmt: skip


def tiny_task() -> gy.Task:
    stream = torch.Generator().manual_seed(1)
    inputs = torch.randn(60, 4, generator=stream)
    targets = torch.randint(3, (60,), generator=stream)
    return gy.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.LogSoftmax(dim=1)),
        train=(inputs, targets),
        test=(inputs, targets),
    )


@pytest.fixture(params=SETTINGS)
def history(request: pytest.FixtureRequest) -> tuple[gy.Config, list[dict[str, object]], list[Round], list[object]]:
    """Return the configuration, the rows of the table, the rounds, and the parameters before and after each step."""
    task = tiny_task()
    config = gy.Config(workers=9, batch=3, steps=STEPS, **SETTINGS[request.param]).resolve(task)
    table = gy.train(config, task=task).tables["metrics.csv"]
    run = Run(config, task)
    rounds, parameters = [], [run.parameters.double().numpy().copy()]
    for step in range(STEPS):
        played = play_round(run.round_config, run.round_state, step, run.schedule.at(step))
        copies = {"attack": played.attack.clone()}  # the round's memory is used again
        copies |= {name: CachedMoments(getattr(played, name).rows.clone()) for name in ("sampled", "sent")}
        rounds.append(dataclasses.replace(played, **copies))
        parameters.append(run.parameters.double().numpy().copy())
    return config, table, rounds, parameters  # type: ignore[return-value]


def norm(vector: numpy.ndarray) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in vector))


def cosine(left: numpy.ndarray | None, right: numpy.ndarray | None) -> float | None:
    if left is None or right is None:
        return None
    return float(left @ right) / (norm(left) * norm(right))


def deviation(rows: numpy.ndarray) -> float:
    return math.sqrt(rows.var(axis=0, ddof=1).sum())


def bound(config: gy.Config) -> float | None:
    n, f = config.workers, config.declared_byzantine
    assert n is not None and f is not None
    if config.rule == "median":
        return 1 / (n - f)
    if config.rule in ("krum", "bulyan"):
        kappa = n - f + (f * (n - f - 2) + f**2 * (n - f - 1)) / (n - 2 * f - 2)
        return 1 / (2 * kappa)
    return None


def decreases(means: list[numpy.ndarray], sigmas: list[float], mu: float) -> bool:
    """The paper's decrease condition at the last step, by its sums over all of them."""
    t = len(means) - 1
    if t == 0:
        return True  # the ratios of both placements are the same there
    momentum = sum(mu ** (t - 1 - u) * means[u] for u in range(t))
    omega2 = sum(mu ** (2 * (t - 1 - u)) * sigmas[u] ** 2 for u in range(t))
    straightness = 2 * sum(mu ** (t - v) * float(means[t] @ means[v]) for v in range(t))
    ratio = sigmas[t] ** 2 / norm(means[t]) ** 2
    return straightness >= mu**2 * norm(momentum) ** 2 * (omega2 / norm(momentum) ** 2 / ratio - 1)


def expected_rows(
    config: gy.Config, rounds: list[Round], parameters: list[numpy.ndarray]
) -> list[dict[str, float | bool | None]]:
    assert config.mu is not None and config.lr is not None
    mu, limit = config.mu, bound(config)
    means: list[numpy.ndarray] = []
    sigmas: list[float] = []
    expected: list[dict[str, float | bool | None]] = []
    before: dict[str, numpy.ndarray | None] = {}
    for t, played in enumerate(rounds):
        vectors_of = (played.sampled.rows, played.sent.rows, played.attack, played.update.aggregate.vector)
        sampled, sent, attack, aggregate = (x.double().numpy() for x in vectors_of)
        vectors = {
            "sampled": sampled.mean(axis=0),
            "sent": sent.mean(axis=0),
            "attack": attack.mean(axis=0) if len(attack) else None,
            "aggregate": aggregate,
        }
        deviations = {
            "sampled": deviation(sampled),
            "sent": deviation(sent),
            # The deviation of a single row does not exist.
            "attack": deviation(attack) if len(attack) > 1 else None,
            "aggregate": norm(aggregate - vectors["sent"]),
        }
        row: dict[str, float | bool | None] = {"step": t, "loss": float(played.losses.double().mean())}
        row["mu"] = config.mu
        row["lr"] = 0.05 if config.lr == "0.3,2:0.05" and t >= 2 else float(config.lr.split(",")[0])
        for name, vector in vectors.items():
            row[f"{name}_norm"] = None if vector is None else norm(vector)
            row[f"{name}_deviation"] = deviations[name]
            row[f"{name}_max"] = None if vector is None else float(numpy.abs(vector).max())
            row[f"cosine_{name}_previous"] = cosine(vector, before.get(name))
        for left, right in (
            ("sampled", "sent"), ("sampled", "attack"), ("sampled", "aggregate"), ("sent", "attack"),
            ("sent", "aggregate"), ("attack", "aggregate"),
        ):  # fmt: skip
            row[f"cosine_{left}_{right}"] = cosine(vectors[left], vectors[right])
        row["ratio_sampled"] = deviations["sampled"] ** 2 / norm(vectors["sampled"]) ** 2
        row["ratio_sent"] = deviations["sent"] ** 2 / norm(vectors["sent"]) ** 2
        row["ratio_bound"] = limit
        row["condition_holds"] = None if limit is None else row["ratio_sent"] < limit
        # The paper's sums over all steps so far, written out.
        means.append(vectors["sampled"])
        sigmas.append(deviations["sampled"])
        row["straightness"] = 2 * sum(mu ** (t - v) * float(means[t] @ means[v]) for v in range(t))
        omegas2 = [sum(mu ** (2 * (s - u)) * sigmas[u] ** 2 for u in range(s + 1)) for s in range(t + 1)]
        momenta = [sum(mu ** (s - u) * means[u] for u in range(s + 1)) for s in range(t + 1)]
        row["omega"] = math.sqrt(omegas2[t])
        row["lambda"] = norm(momenta[t])
        row["decrease_holds"] = decreases(means, sigmas, mu)
        row["at_workers"] = None  # a column of variants
        row["distance_from_start"] = norm(parameters[t + 1] - parameters[0])
        weight = played.update.weight
        row["byzantine_share"] = None if weight is None else float(weight[len(sampled) :].sum())
        expected.append(row)
        before = vectors
    return expected


def test_every_column_is_what_it_is_said_to_be(history: tuple) -> None:
    config, table, rounds, parameters = history
    for got, wanted in zip(table, expected_rows(config, rounds, parameters), strict=True):
        assert set(got) == set(wanted) == set(COLUMNS)
        for name in COLUMNS:
            if wanted[name] is None or isinstance(wanted[name], bool | numpy.bool_):
                assert got[name] == wanted[name], name
            else:
                assert got[name] == pytest.approx(wanted[name], rel=2e-5, abs=2e-7), name


def test_both_outcomes_of_both_conditions_are_met() -> None:
    """Else a constant True would pass."""
    result = gy.train(gy.Config(rule="krum", attack="little", byzantine=5, steps=60))
    assert set(result.metrics["decrease_holds"]) == {True, False}
    assert set(result.metrics["at_workers"]) == {None}
    calm = gy.train(gy.Config(rule="median", workers=5, batch=500, steps=20, momentum="workers"))
    assert set(calm.metrics["condition_holds"]) >= {True}


def test_the_update_is_the_aggregate_with_momentum_after_it(history: tuple) -> None:
    """The round itself: parameters move by lr times the aggregate, or by its momentum at the server."""
    config, table, rounds, parameters = history
    momentum = numpy.zeros_like(parameters[0])
    for t, played in enumerate(rounds):
        aggregate = played.update.aggregate.vector.double().numpy()
        momentum = config.mu * momentum + aggregate
        direction = momentum if config.momentum == "server" else aggregate
        numpy.testing.assert_allclose(parameters[t + 1], parameters[t] - table[t]["lr"] * direction, atol=1e-5)


def test_honest_workers_send_momentum_only_if_it_is_theirs(history: tuple) -> None:
    config, _, rounds, _ = history
    momentum = 0.0
    for played in rounds:
        sampled = played.sampled.rows.double()
        momentum = sampled + config.mu * momentum
        sent = sampled + config.mu * momentum if config.nesterov else momentum
        wanted = sent if config.momentum == "workers" else sampled
        torch.testing.assert_close(played.sent.rows.double(), wanted, rtol=1e-5, atol=1e-6)


def test_a_single_honest_worker_has_no_deviation() -> None:
    result = gy.train(gy.Config(workers=1, batch=3, steps=2, lr="0.1"), task=tiny_task())
    row = result.tables["metrics.csv"][1]
    for name in ("sampled_deviation", "sent_deviation", "ratio_sampled", "ratio_sent"):
        assert row[name] is None, f"{name} does not exist: an empty cell, like the others"


def test_the_state_of_the_recursions_does_not_grow() -> None:
    task = tiny_task()
    run = Run(gy.Config(workers=5, batch=3, steps=9).resolve(task), task)
    sizes = []
    for step in range(9):
        played = play_round(run.round_config, run.round_state, step, run.schedule.at(step))
        _, state = metrics.measure(played, run.parameters, run.metrics_state, None)
        run.metrics_state = state
        kept = [state.start, state.trajectory.past, *state.previous.values()]
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in kept))
    assert sizes[-1] == sizes[1]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("every", [2, 3, 100])
def test_steps_that_are_measured_say_the_same_when_others_are_not(setting: str, every: int) -> None:
    task = tiny_task()
    config = gy.Config(workers=9, batch=3, steps=8, **SETTINGS[setting])
    whole = gy.train(config, task=task)
    some = gy.train(dataclasses.replace(config, measure_every=every), task=task)
    for table in ("metrics.csv", "workers.csv"):
        assert some.tables[table] == [row for row in whole.tables[table] if row["step"] % every == 0]
    assert some.tables["evaluations.csv"] == whole.tables["evaluations.csv"]


def test_callbacks_receive_the_steps_that_are_not_measured() -> None:
    steps = []

    class Watching(Callback):
        def step(self, row: Row) -> None:
            steps.append(row["step"])

    gy.train(gy.Config(workers=5, batch=3, steps=6, measure_every=4), task=tiny_task(), callbacks=[Watching()])
    assert steps == [0, 1, 2, 3, 4, 5]
