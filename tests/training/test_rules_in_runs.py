"""Rules that keep state, draw at random or compare with trusted samples, in a run that is interrupted."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from launching import gyroscope
from torch import nn

import gyroscope as gy
from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope.rules import parse
from gyroscope.runs.training import Run, load_task
from gyroscope.simulation import trusted

FILES = ("config.toml", "metrics.csv", "evaluations.csv", "workers.csv", "model.pt")
RULES = [
    "centered-clipping",
    "safeguard:short=3,long=7",
    "nnm+bucketing+random:krum/centered-clipping",
    "round-robin:zeno/arc+centered-clipping:tau=1.0",
    "fltrust",
]


def config(rule: str, **changes: object) -> gy.Config:
    values: dict[str, object] = {
        "rule": rule, "attack": "little", "byzantine": 2, "workers": 13, "steps": 24, "threads": 1, "evaluate_every": 8,
    }  # fmt: skip
    return gy.Config(**{**values, "trusted": 20 if "trusted" in parse(rule).uses else 0, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
def test_an_interrupted_run_continues_to_the_same_bytes(rule: str, tmp_path: Path) -> None:
    gy.train(config(rule), out=tmp_path / "whole")
    asked = itertools.count(1)
    stopped = gy.train(config(rule), out=tmp_path / "parts", stop=lambda: next(asked) == 9)
    assert stopped.status == "interrupted" and stopped.step == 9
    asked = itertools.count(1)
    assert gy.resume(tmp_path / "parts", stop=lambda: next(asked) == 5).step == 14
    assert gy.resume(tmp_path / "parts").status == "complete"
    for name in FILES:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("rule", [*RULES, "nnm+bulyan", "clip:norm=2.0+average"])
def test_a_run_learns_with_it_under_attack(rule: str) -> None:
    result = gy.train(config(rule, attack="empire", steps=60))
    assert result.status == "complete" and result.max_accuracy > 0.6


def test_automatic_factors_search_against_the_rules_state() -> None:
    """The adversary knows the state: it finds other factors than against the same rule at its first round."""
    auto, rule = "little:factor=auto", "centered-clipping:tau=0.5"
    runs = [gy.train(config(rule, attack=auto, steps=steps)).metrics["attack_norm"].iloc[-1] for steps in (1, 6)]
    again = gy.train(config(rule, attack=auto, steps=6)).metrics["attack_norm"].iloc[-1]
    assert runs[1] == again != runs[0]


# -- the server's own samples ------------------------------------------------------------------------------------------


def run_of(rule: str, **changes: object) -> Run:
    resolved = config(rule, **changes).resolve()
    return Run(resolved, load_task(resolved))


@pytest.mark.parametrize("place", ["workers", "server", "server-kept", "none"])
@pytest.mark.parametrize("clip", [0.5, float("inf")], ids=["clipped", "whole"])
def test_the_trusted_gradient_is_what_an_honest_worker_with_those_samples_would_send(place: str, clip: float) -> None:
    run = run_of("fltrust", clip=clip, l2=0.1, momentum=place, mu=0.5, trusted=30)
    task = load_task(run.config)
    chosen = torch.randperm(len(task.train), generator=random_streams.generator(1, "trusted"))[:30]
    assert len(set(chosen.tolist())) == 30
    inputs, targets = task.train.inputs[chosen], task.train.targets[chosen]
    expected = torch.zeros_like(run.parameters)
    assert run.round_config.trusted is not None
    for step in range(3):
        loss = F.nll_loss(run.model(inputs), targets)
        gradients = torch.autograd.grad(loss, list(run.model.parameters()))
        gradient = torch.cat([one.reshape(-1) for one in gradients]) + 0.1 * run.parameters
        gradient *= min(1.0, clip / float(gradient.norm()))
        past = {"workers": expected, "server-kept": expected}.get(place)
        expected = gradient if past is None else 0.5 * past + gradient
        torch.testing.assert_close(run.round_config.trusted.gradient(step), expected, rtol=1e-4, atol=1e-6)
        run.parameters.sub_(0.1 * expected)


def test_only_a_rule_that_compares_has_the_gradient_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    real = trusted.TrustedSamples.gradient

    def counted(self: trusted.TrustedSamples, step: int) -> torch.Tensor:
        steps.append(step)
        return real(self, step)

    monkeypatch.setattr(trusted.TrustedSamples, "gradient", counted)
    gy.train(config("krum", steps=3))
    assert not steps
    gy.train(config("zeno", steps=3))
    assert steps == [0, 1, 2]


def test_the_workers_batches_stay_as_they_are() -> None:
    with_it, without = run_of("zeno"), run_of("krum")
    assert torch.equal(with_it.round_config.workers.sample(0)[1], without.round_config.workers.sample(0)[1])


def test_a_model_with_batch_norm_dropout_and_augmentation_has_one_too() -> None:
    inputs, targets = torch.randn(60, 6), torch.arange(60) % 3
    noisy = gy.Split(inputs, targets, lambda batch, stream: batch + torch.rand(batch.shape, generator=stream))
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3), nn.LogSoftmax(dim=1))
    task = gy.Task(model, noisy, (inputs, targets))
    settings = gy.Config(rule="fltrust", trusted=10, workers=4, batch=5, steps=4, lr=0.1)
    first, second = (gy.train(settings, task=task).metrics for _ in range(2))
    assert first.equals(second)


@pytest.mark.parametrize("rule", ["fltrust", "nnm+zeno", "random:krum/zeno"])
def test_without_samples_a_rule_that_compares_is_refused_before_anything_is_written(rule: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"the rule {rule.replace('+', '.')} compares .* \(trusted = 100\), "):
        gy.train(config(rule, trusted=0), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rule", ["krum", "nnm+median", "random:krum/median"])
def test_samples_that_no_rule_looks_at_are_allowed_in_a_configuration_and_refused_as_an_option(
    rule: str, tmp_path: Path
) -> None:
    """A grid may hold them for some of its rules; an option without effect is a mistake."""
    gy.train(config(rule, trusted=20, steps=2), out=tmp_path / "run")
    assert gy.resume(tmp_path / "run").status == "complete"
    finished = gyroscope("train", "--rule", rule, "--trusted", 20, "--out", tmp_path / "refused")
    assert finished.code == 2 and "--trusted 20 would change nothing" in finished.err
    assert not (tmp_path / "refused").exists()


def test_more_samples_than_there_are_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot hold 9999 samples where there are 1438 to train with"):
        gy.train(config("zeno", trusted=9999), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="trusted must be at least 0"):
        gy.Config(trusted=-1)


def test_momentum_elsewhere_leaves_the_servers_own_accumulated() -> None:
    """Worker processes accumulate by themselves; the trusted gradient needs the same momentum."""
    run = run_of("fltrust", momentum="workers")
    assert run.round_config.trusted is not None
    assert run.round_config.trusted.momentum is not None
