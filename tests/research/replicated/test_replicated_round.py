"""The round of several servers: against one server, against a naive oracle, and under fire."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from replicas import BAD, INPUTS, TARGETS, TASK, config, replicate
from test_model_exchange import plain_median

import gyroscope as gy
from gyroscope.cli import main
from gyroscope.momentum import RobustAggregator, Update
from gyroscope.research.replicated import ReplicatedResult, ReplicatedRun, drift, quorums
from gyroscope.research.replicated.replicated_config import ResolvedReplicatedConfig
from gyroscope.runs.training import Run

PLACEMENTS = ["workers", "server", "none"]
SEVERAL = {"servers": 6, "byzantine_servers": 1, "declared_byzantine": 2}


@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize(
    ("servers", "attack"),
    [*((servers, attack) for servers in (1, 4) for attack in ("none", "little", "gaussian", "label-flip")),
     (1, "equivocate")],
)  # fmt: skip
def test_with_complete_quorums_and_honest_servers_it_is_the_plain_simulation(
    momentum: str, attack: str, servers: int
) -> None:
    """To the bit, whatever the workers do who tell all servers the same: no honest server drifts from another."""
    settings = config(momentum=momentum, attack=attack, byzantine=0 if attack == "none" else 3, rule="krum")
    plain, several = Run(settings.resolve(TASK), TASK), replicate(settings, servers)
    for _ in range(8):
        assert plain.play_round() == several.play_round()
        assert torch.equal(plain.parameters, several.parameters)
        assert bool((several.servers.models == plain.parameters).all())
        assert several.servers.drift["drift_before"] == several.servers.drift["drift_after"] == 0


def test_a_configuration_without_lies_and_losses_gives_the_plain_run() -> None:
    plain, several = gy.train(config(), task=TASK), gy.train(config(servers=3), task=TASK)
    assert several.metrics.equals(plain.metrics) and several.evaluations.equals(plain.evaluations)
    assert "drift.csv" not in plain.tables and isinstance(several, ReplicatedResult)
    assert list(several.drift.columns) == list(drift.COLUMNS)
    assert (several.drift["drift_before"] == 0).all()


@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize("every", [1, 3])
def test_the_round_against_loops_written_from_the_algorithm(momentum: str, every: int) -> None:
    """6 servers of which one reverses updates, 9 workers of which two send `little`; each waits for n - f."""
    settings = config(
        momentum=momentum, attack="little", byzantine=2, **{**SEVERAL, "server_attack": "sign-flip"},
        exchange_every=every, clip=0.5, l2=0.01,
    ).resolve(TASK)  # fmt: skip
    assert isinstance(settings, ResolvedReplicatedConfig)
    run = ReplicatedRun(settings, TASK)
    oracle = Oracle(run.parameters.clone(), settings)
    for step in range(7):
        run.play_round()
        oracle.step(step)
        for server, model in enumerate(oracle.models):
            assert torch.allclose(run.servers.models[server].double(), model, rtol=1e-4, atol=1e-5)
    assert run.servers.drift["drift_before"] > 0  # type: ignore[operator]


class Oracle:
    """Algorithm 1 by loops, in float64: nothing of it but who is heard comes from the library."""

    def __init__(self, start: torch.Tensor, settings: ResolvedReplicatedConfig) -> None:
        self.settings = settings
        self.models = [start.double() for _ in range(5)]
        self.before = start.double()
        self.sums = [torch.zeros_like(self.before) for _ in range(7)]
        self.server_sums = [torch.zeros_like(self.before) for _ in range(5)]

    def hear(self, receiver: int, step: int, phase: str) -> torch.Tensor:
        own = receiver if phase == "servers" else None
        heard = quorums.draw(1, f"models to {phase}", receiver, step, 5, 4, own).tolist()
        lie = 2 * self.before - torch.stack(self.models).mean(dim=0)
        return torch.tensor(
            plain_median([self.models[s].tolist() for s in heard] + [lie.tolist()]), dtype=torch.float64
        )

    def gradient(self, worker: int, step: int, model: torch.Tensor) -> torch.Tensor:
        from gyroscope.simulation.data.batches import deal

        chosen = deal(1, step, range(worker, worker + 1), 180, 6)[0]
        parameters = model.clone().requires_grad_()
        weight, bias = parameters[:15].view(3, 5), parameters[15:]
        outputs = torch.log_softmax(INPUTS[chosen].double() @ weight.T + bias, dim=1)
        loss = -outputs[torch.arange(6), TARGETS[chosen]].mean() + 0.01 / 2 * parameters.square().sum()
        (gradient,) = torch.autograd.grad(loss, parameters)
        return gradient * min(1.0, 0.5 / float(gradient.norm()))

    def step(self, step: int) -> None:
        mu, where = 0.9, self.settings.momentum
        rows = []
        for worker in range(7):
            gradient = self.gradient(worker, step, self.hear(worker, step, "workers"))
            self.sums[worker] = gradient + (mu * self.sums[worker] if where == "workers" else 0)
            rows.append(self.sums[worker])
        honest = torch.stack(rows)
        lie = honest.mean(dim=0) - 1.5 * honest.std(dim=0)
        self.before = torch.stack(self.models).mean(dim=0)
        for server in range(5):
            heard = quorums.draw(1, "rows to servers", server, step, 7, 5).tolist()
            shown = [rows[worker].tolist() for worker in heard] + [lie.tolist()] * 2
            aggregate = torch.tensor(plain_median(shown), dtype=torch.float64)
            self.server_sums[server] = aggregate + (mu * self.server_sums[server] if where == "server" else 0)
            self.models[server] = self.models[server] - 0.1 * self.server_sums[server]
        if (step + 1) % self.settings.exchange_every == 0:
            self.models = [self.hear(server, step, "servers") for server in range(5)]


def test_partial_quorums_let_servers_drift_and_exchanges_hold_them_together() -> None:
    result = gy.train(config(servers=6, declared_byzantine_servers=1, declared_byzantine=2, steps=60), task=TASK)
    drifts = result.drift
    assert (drifts["drift_before"] > 0).all() and drifts["contraction"].mean() < 0.7
    assert drifts["relative_after"].max() < 2
    apart = gy.train(
        config(servers=6, declared_byzantine_servers=1, declared_byzantine=2, steps=60, exchange_every=61), task=TASK
    ).drift
    assert apart["contraction"].isna().all() and (apart["drift_after"] == apart["drift_before"]).all()
    assert apart["drift_after"].iloc[-1] > 4 * drifts["drift_after"].iloc[-20:].mean()


@pytest.mark.slow
@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize("value", [*BAD, "mixed"])
def test_byzantine_servers_and_workers_that_send_anything_stop_nothing(momentum: str, value: str) -> None:
    lies = {"attack": f"replicas:Vandal:value={value}", "byzantine": 2}
    servers = {**SEVERAL, "server_attack": f"replicas:Vandal:value={value}"}
    settings = config(**lies, **servers, momentum=momentum, steps=40, rule="krum", lr="0.05")
    result = gy.train(settings, task=TASK)
    honest = gy.train(config(workers=7, momentum=momentum, steps=40, lr="0.05"), task=TASK)
    assert result.status == "complete" and result.final_accuracy >= honest.final_accuracy - 0.05
    assert all(math.isfinite(value) for value in result.drift["drift_after"])
    assert result.drift["relative_after"].max() < 3


def test_equivocating_workers_pull_apart_servers_that_hear_everyone() -> None:
    """Only who tells each server another story can part them, and an exchange undoes it."""
    settings = config(byzantine=2, attack="replicas:TwoFaced:push=0.5")
    apart, exchanging = replicate(settings, 4, exchange_every=100), replicate(settings, 4)
    for _ in range(5):
        apart.play_round()
        exchanging.play_round()
    assert torch.equal(apart.servers.models[0], apart.servers.models[2])
    assert not torch.equal(apart.servers.models[0], apart.servers.models[1])
    assert exchanging.servers.drift["drift_before"] > 0 == exchanging.servers.drift["drift_after"]  # type: ignore[operator]


def test_equivocating_servers_part_the_workers_that_hear_them() -> None:
    settings = {**SEVERAL, "server_attack": "replicas:TwoFaced:push=0.5", "steps": 30, "lr": "0.05"}
    result = gy.train(config(**settings), task=TASK)
    assert result.status == "complete" and result.final_accuracy > 0.8
    assert (result.drift["drift_after"] > 0).all() and result.drift["relative_after"].max() < 3


def test_weights_belong_to_workers_also_where_some_are_not_heard() -> None:
    result = gy.train(
        config(**SEVERAL, server_attack="zero", attack="nan", byzantine=2, workers=12, rule="krum", steps=20), task=TASK
    )
    weights = result.weights.drop(columns="step").to_numpy()
    assert weights.shape == (20, 12) and weights.sum(axis=1) == pytest.approx(1)
    assert (weights[:, 10:] == 0).all()  # NaN is never taken
    assert (weights[:, :10] > 0).any(axis=0).all()  # and each honest worker is at times heard
    assert ((weights[:, :10] == 0).sum(axis=1) >= 2).all()  # of 10 honest, 8 are heard


@pytest.mark.parametrize("momentum", PLACEMENTS)
def test_same_seed_same_bits_also_when_resumed(momentum: str, tmp_path: Path) -> None:
    # Both remember: the workers' rows of rounds ago, the server's model of the round before.
    settings = config(**SEVERAL, server_attack="zero", attack="stale:delay=3", byzantine=2, momentum=momentum)
    gy.train(settings, task=TASK, out=tmp_path / "whole")
    rounds = iter(range(100))
    stopped = gy.train(settings, task=TASK, out=tmp_path / "parts", stop=lambda: next(rounds) == 6)
    assert stopped.status == "interrupted" and stopped.step == 7
    resumed = gy.resume(tmp_path / "parts", task=TASK)
    assert resumed.status == "complete" and len(resumed.drift) == 12
    for table in ("metrics.csv", "evaluations.csv", "workers.csv", "drift.csv"):
        assert (tmp_path / "whole" / table).read_bytes() == (tmp_path / "parts" / table).read_bytes()
    again = gy.resume(tmp_path / "whole", task=TASK)
    assert again.drift.equals(resumed.drift)


def test_a_worker_alone_computes_its_row() -> None:
    run = Run(config().resolve(TASK), TASK)
    workers = run.round_config.workers
    _, rows = workers.sample(3)
    for number in range(workers.count):
        _, row = workers.alone(number).sample(3)  # type: ignore[attr-defined]
        assert torch.allclose(row[0], rows[number], rtol=1e-5, atol=1e-7)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    given = "--steps 4 --rule krum --attack little --byzantine 2 --quiet --servers 6 --byzantine-servers 1"
    given += " --server-attack sign-flip"
    assert main(["train", *given.split(), "--workers", "11", "--out", str(out)]) == 0
    lines = (out / "drift.csv").read_text().splitlines()
    assert lines[0] == ",".join(drift.COLUMNS) and len(lines) == 5
    assert "server_quorum = 5" in (out / "config.toml").read_text()
    assert main(["train", *given.split(), "--workers", "8", "--out", str(tmp_path / "no")]) == 2
    assert "n >= 3f + 3 = 9 workers" in capsys.readouterr().err and not (tmp_path / "no").exists()


# -- a gradient that is not finite -------------------------------------------------------------------------------------

POISONED = 2, 4
"""The worker whose gradient is not finite, and the step at which it is not."""
Watch = Callable[..., dict[tuple[int, int], torch.Tensor]]


@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize("attack", ["none", "little", "label-flip"])
def test_with_complete_quorums_a_nan_does_what_it_does_with_one_server(
    momentum: str, attack: str, sampled: Watch
) -> None:
    """To the bit, in that round and in all later ones."""
    sampled(POISONED)
    settings = config(momentum=momentum, attack=attack, byzantine=0 if attack == "none" else 3, rule="krum")
    plain, several = Run(settings.resolve(TASK), TASK), replicate(settings, 4)
    for _ in range(8):
        assert plain.play_round() == several.play_round()
        assert bool((several.servers.models == plain.parameters).all())
    assert bool(plain.parameters.isfinite().all())


@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_in_no_sum_of_workers_or_servers(
    momentum: str, value: float, sampled: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partial quorums: every row sent and every server's direction, to the bit, are sums of what was finite."""
    seen, updates = sampled(POISONED, value=value), []
    step_of = RobustAggregator.step

    def recording(self: RobustAggregator, rows: torch.Tensor) -> Update:
        updates.append(step_of(self, rows))
        return updates[-1]

    monkeypatch.setattr(RobustAggregator, "step", recording)
    settings = config(**SEVERAL, server_attack="sign-flip", attack="little", byzantine=2, momentum=momentum)
    resolved = settings.resolve(TASK)
    assert isinstance(resolved, ResolvedReplicatedConfig)
    run = ReplicatedRun(resolved, TASK)
    sums, server_sums = torch.zeros(7, run.parameters.numel()), torch.zeros(5, run.parameters.numel())
    refused = 0
    for step in range(9):
        updates.clear()
        run.play_round()
        gradients = torch.stack([seen[worker, step] for worker in range(7)])
        finite = gradients.isfinite().all(dim=1, keepdim=True)
        assert bool(finite.all()) == (step != POISONED[1])
        sums = torch.where(finite, torch.add(gradients, sums, alpha=0.9), sums)
        sent = torch.where(finite, sums, gradients) if momentum == "workers" else gradients
        for server, update in enumerate(updates):
            heard = quorums.draw(1, "rows to servers", server, step, 7, 5)
            torch.testing.assert_close(update.rows[:-2], sent[heard], rtol=0, atol=0, equal_nan=True)
            assert bool(update.rows[-2:].isfinite().all()), "the attack is made of the rows that are finite"
            refused += not bool(sent[heard].isfinite().all())
        aggregates = torch.stack([update.aggregate.vector for update in updates])
        server_sums = torch.add(aggregates, server_sums, alpha=0.9) if momentum == "server" else aggregates
        assert torch.equal(torch.stack([update.vector for update in updates]), server_sums)
        assert bool(server_sums.isfinite().all() and run.servers.models.isfinite().all())
        assert math.isfinite(run.servers.drift["drift_after"])  # type: ignore[arg-type]
    assert 0 < refused < 5, "some servers have heard it and some have not"


@pytest.mark.parametrize("momentum", PLACEMENTS)
@pytest.mark.parametrize("stopped", [5, 6])
def test_a_run_resumes_to_the_same_bits_after_a_gradient_that_is_not_finite(
    momentum: str, stopped: int, sampled: Watch, tmp_path: Path
) -> None:
    sampled(POISONED)
    settings = config(**SEVERAL, server_attack="zero", attack="stale:delay=3", byzantine=2, momentum=momentum)
    gy.train(settings, task=TASK, out=tmp_path / "whole")
    rounds = itertools.count(1)
    part = gy.train(settings, task=TASK, out=tmp_path / "parts", stop=lambda: next(rounds) == stopped)
    assert part.status == "interrupted" and part.step == stopped
    assert gy.resume(tmp_path / "parts", task=TASK).status == "complete"
    for name in ("metrics.csv", "evaluations.csv", "workers.csv", "drift.csv", "model.pt"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name
