"""What the Byzantine workers would send if they followed the protocol: computed on demand, without side effects."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyroscope as gy
from gyroscope import attacks, momentum
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.flat_parameters import attach, trainable
from gyroscope.simulation.byzantine_gradients import ByzantineGradients, flip
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.workers import SimulatedWorkers

HERE = __name__
H, BYZANTINE, BATCH, SEED = 4, 2, 6, 5


def data(count: int = 90, classes: int = 10) -> Split:
    stream = torch.Generator().manual_seed(1)
    return Split(torch.randn(count, 8, generator=stream), torch.arange(count) % classes)


def workers(model: nn.Module | None = None, **options: object) -> SimulatedWorkers:
    torch.manual_seed(3)
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(8, 10), nn.LogSoftmax(dim=1))
    settings: dict[str, object] = {"count": H, "batch": BATCH, "seed": SEED, "clip": 1.0, "l2": 1e-3, **options}
    return SimulatedWorkers(model, F.nll_loss, data(), attach(model), **settings)  # type: ignore[arg-type]


def momentum_of() -> momentum.WorkerMomentum:
    return momentum.WorkerMomentum(0.9)


def gradient(of: SimulatedWorkers, worker: int, step: int, flipped: bool) -> Tensor:
    """Compute the gradient by a plain backward pass, at this worker's batch."""
    inputs, targets = of.batches(step, range(worker, worker + 1))
    of.model.zero_grad()
    with torch.enable_grad():
        loss = F.nll_loss(of.model(inputs[0]), 9 - targets[0] if flipped else targets[0])
    parts = torch.autograd.grad(loss, trainable(of.model))
    whole = torch.cat([part.reshape(-1) for part in parts]) + of.l2 * of.parameters
    return whole * min(1.0, of.clip / float(whole.norm()))


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("place", momentum.PLACEMENTS)
@pytest.mark.parametrize("batches", ["independent", "pass"])
def test_they_are_clipped_gradients_at_batches_of_their_own_with_the_placements_momentum(
    flipped: bool, place: str, batches: str
) -> None:
    honest = workers(batches=batches)
    own = ByzantineGradients(honest, BYZANTINE, momentum_of if place == "workers" else None)
    beside = honest.beside(BYZANTINE)
    memory = torch.zeros(BYZANTINE, honest.parameters.numel())
    for step in range(3):
        sampled = torch.stack([gradient(beside, H + number, step, flipped) for number in range(BYZANTINE)])
        memory = 0.9 * memory + sampled if place == "workers" else sampled
        got = own.at(step)(flipped)
        assert torch.allclose(got, memory, atol=1e-6)
        honest.parameters.sub_(0.1 * sampled[0])
    assert bool(own.state_dict()) == (place == "workers")


def test_asking_twice_accumulates_once_and_what_is_given_may_be_changed() -> None:
    own = ByzantineGradients(workers(), BYZANTINE, momentum_of)
    ask = own.at(0)
    first = ask(False)
    kept = first.clone()
    first.zero_()
    assert torch.equal(ask(False), kept) and not torch.equal(ask(True), kept)
    sampled = ByzantineGradients(workers(), BYZANTINE, None).at(1)(False)
    assert torch.allclose(own.at(1)(False), 0.9 * kept + sampled, atol=1e-6)


def test_they_change_neither_batch_norm_nor_any_random_stream() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 10), nn.BatchNorm1d(10), nn.Dropout(0.5), nn.LogSoftmax(dim=1))
    honest = workers(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    ByzantineGradients(honest, BYZANTINE, momentum_of).at(0)(True)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_labels_are_flipped_within_the_classes_of_the_task() -> None:
    assert flip(torch.tensor([0, 3, 2]))(torch.tensor([0, 1, 2, 3, -100])).tolist() == [3, 2, 1, 0, -100]
    with pytest.raises(ConfigError, match="whole numbers"):
        flip(torch.tensor([0.5]))


# -------------------------------------------------------------------------------------------- whole runs


@dataclasses.dataclass(frozen=True)
class Curious(attacks.Attack):
    """Sends zeros, and computes its own gradients every time."""

    seen: ClassVar[list[Tensor]] = []

    def rows(self, honest: Tensor, f: int, context: attacks.AttackContext) -> Tensor:
        self.seen.append(context.own_gradients(flipped=True))
        return torch.zeros(f, honest.shape[1])


def config(attack: str, **changes: object) -> gy.Config:
    settings: dict[str, object] = {
        "rule": "median",
        "byzantine": 2,
        "workers": 9,
        "steps": 12,
        "batch": 8,
        "threads": 1,
    }
    return gy.Config(attack=attack, **{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["workers", "server"])
def test_computing_them_changes_nothing_of_the_run(place: str) -> None:
    looked, blind = (gy.train(config(attack, momentum=place)) for attack in (f"{HERE}:Curious", "zero"))
    assert looked.tables == blind.tables


def test_other_attacks_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("computed for nothing")

    monkeypatch.setattr(ByzantineGradients, "_rows", never)
    assert gy.train(config("little")).status == "complete"
    with pytest.raises(AssertionError, match="for nothing"):
        gy.train(config("label-flip"))


def test_flipped_labels_harm_the_average_more_than_honest_work_does() -> None:
    changes = {"rule": "average", "byzantine": 4, "steps": 60}
    honest = gy.train(config("alternate:period=1000", **changes))
    flipped = gy.train(config("label-flip", **changes))
    assert honest.max_accuracy > flipped.final_accuracy + 0.05
    assert float(flipped.metrics["attack_deviation"].iloc[-1]) > 0


@pytest.mark.parametrize("place", ["workers", "server"])
@pytest.mark.parametrize(
    "attack",
    [
        "mimic:warmup=8",
        "stale:delay=5",
        "stale:delay=3,source=own",
        "label-flip",
        "rare:attack=(stranger:attacks=(mimic:warmup=2/label-flip)),chance=0.5",
        "alternate:attack=(stale:delay=2),period=2",
    ],
)
def test_an_attack_with_state_resumes_to_the_same_bits(attack: str, place: str, tmp_path: Path) -> None:
    wanted = gy.train(config(attack, momentum=place), out=tmp_path / "whole")
    calls = iter(range(100))
    gy.train(config(attack, momentum=place), out=tmp_path / "cut", stop=lambda: next(calls) == 4)
    assert (tmp_path / "cut" / "checkpoint.pt").exists()
    resumed = gy.resume(tmp_path / "cut")
    assert resumed.status == "complete" and resumed.step == wanted.step
    for name in ("metrics.csv", "evaluations.csv"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert all(torch.equal(a, b) for a, b in zip(wanted.model.parameters(), resumed.model.parameters(), strict=True))
