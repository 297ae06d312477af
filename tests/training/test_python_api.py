"""The library as its users call it: own tasks of every kind, frames, seeds."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path

import numpy
import pandas
import pytest
import torch
import torch.nn.functional as F
from launching import custom_task
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import gyroscope as gy
from gyroscope.runs.callbacks import Callback, Row

STREAM = torch.Generator().manual_seed(7)
CENTRES = torch.randn(3, 6, generator=STREAM) * 3
TARGETS = torch.arange(120) % 3
INPUTS = CENTRES[TARGETS] + torch.randn(120, 6, generator=STREAM)


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(dim=1))


def config(**values: object) -> gy.Config:
    return gy.Config(**{"workers": 5, "batch": 8, "steps": 20, "lr": "0.1", "evaluate_every": 5, **values})  # type: ignore[arg-type]


class Pairs(Dataset):  # type: ignore[type-arg]
    """What people write themselves: a tensor and a plain int."""

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return INPUTS[index], int(TARGETS[index])


def test_a_run_returns_frames() -> None:
    result = gy.train(gy.Config(rule="krum", attack="little", byzantine=3, workers=11, steps=12))
    assert result.status == "complete" and result.step == 12 and result.directory is None
    assert isinstance(result.metrics, pandas.DataFrame) and len(result.metrics) == 12
    assert list(result.evaluations["step"]) == [0, 5, 10, 12]
    assert result.weights.shape == (12, 12)
    assert result.max_accuracy == result.evaluations["accuracy"].max()
    assert result.final_accuracy == result.evaluations["accuracy"].iloc[-1]
    assert result.config.lr == "0.2" and result.config.declared_byzantine == 3
    with torch.no_grad():
        assert result.model(torch.zeros(2, 64)).shape == (2, 10)


def test_a_rule_without_weights_gives_an_empty_frame() -> None:
    assert gy.train(config(rule="median"), task=gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS))).weights.empty


@pytest.mark.parametrize(
    "data",
    [(INPUTS, TARGETS), [INPUTS, TARGETS], gy.Split(INPUTS, TARGETS), TensorDataset(INPUTS, TARGETS), Pairs()],
    ids=["tuple", "list", "Split", "TensorDataset", "own Dataset"],
)
def test_every_form_of_data_gives_the_same_run(data: object) -> None:
    wanted = gy.train(config(), task=gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS)))
    got = gy.train(config(), task=gy.Task(linear, data, data))
    assert got.tables == wanted.tables
    assert got.max_accuracy > 0.9


@pytest.mark.parametrize(
    "data",
    [
        (INPUTS.numpy(), TARGETS.numpy()),
        (INPUTS, TARGETS[:-1]),
        (INPUTS[:0], TARGETS[:0]),
        iter([]),
        type("Stream", (IterableDataset,), {"__iter__": lambda self: iter([])})(),
        [1, 2, 3],
    ],
    ids=["numpy arrays", "unequal", "empty", "iterator", "IterableDataset", "no pairs"],
)
def test_data_that_cannot_be_used_is_a_data_error_or_works(data: object) -> None:
    with contextlib.suppress(gy.errors.DataError):
        gy.train(config(steps=1), task=gy.Task(linear, data, data))


def test_a_module_is_the_start_of_every_run_and_training_does_not_change_it() -> None:
    module = linear()
    before = copy.deepcopy(module.state_dict())
    task = gy.Task(module, (INPUTS, TARGETS), (INPUTS, TARGETS))
    first, second = (gy.train(config(seed=seed, lr="1e-9", steps=1), task=task) for seed in (1, 2))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert first.evaluations["correct"][0] == second.evaluations["correct"][0]
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    trained = gy.train(config(), task=task)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert trained.model is not module and trained.max_accuracy > 0.9
    assert module.training, "not even its mode"


def test_a_factory_starts_each_seed_elsewhere() -> None:
    task = gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS))
    models = [gy.train(config(seed=seed, lr="1e-9", steps=1), task=task).model for seed in (1, 1, 2)]
    weights = [model[0].weight for model in models]
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2], atol=1e-3)


def test_batch_norm_and_dropout_train_and_learn() -> None:
    result = gy.train(gy.Config(workers=7, rule="krum", attack="little", byzantine=2, steps=40), task=custom_task())
    assert result.status == "complete"
    assert result.max_accuracy > 0.6
    assert not result.model.training


def test_the_caller_s_randomness_is_left_alone() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    gy.train(config(steps=3), task=custom_task())
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("attack", ["gaussian", "little"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(attack: str) -> None:
    settings = {"rule": "krum", "attack": attack, "byzantine": 1}
    task = gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS))
    torch.manual_seed(1)
    first = gy.train(config(**settings), task=task)
    torch.manual_seed(2)
    again = gy.train(config(**settings), task=task)
    other = gy.train(config(**settings, seed=2), task=task)
    assert again.tables == first.tables
    assert torch.equal(again.model[0].weight, first.model[0].weight)
    assert (other.metrics["loss"] != first.metrics["loss"]).all()


def test_a_custom_run_is_resumed_with_its_task_and_not_without(tmp_path: Path) -> None:
    task = gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS))
    whole = gy.train(config(), task=task, out=tmp_path / "whole")
    asked = iter([False] * 6 + [True])
    part = gy.train(config(), task=task, out=tmp_path / "run", stop=lambda: next(asked))
    assert (part.status, part.step) == ("interrupted", 7)
    with pytest.raises(gy.errors.ConfigError, match="custom"):
        gy.resume(tmp_path / "run")
    result = gy.resume(tmp_path / "run", task=task)
    assert result.status == "complete"
    assert result.tables == whole.tables, "the frames hold the steps before the interruption, too"
    assert (tmp_path / "run" / "model.pt").read_bytes() == (tmp_path / "whole" / "model.pt").read_bytes()
    read = gy.resume(tmp_path / "run", task=task)
    assert read.tables == whole.tables and read.step == 20
    torch.testing.assert_close(read.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)


def test_a_run_directory_is_free_again_after_a_failure_inside_a_run(tmp_path: Path) -> None:
    def fail(outputs: Tensor, targets: Tensor) -> Tensor:
        raise RuntimeError("my own bug")

    with pytest.raises(RuntimeError, match="my own bug"):
        gy.train(config(), task=gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS), fail), out=tmp_path / "run")
    task = gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS))
    assert gy.train(config(), task=task, out=tmp_path / "run", overwrite=True).status == "complete"


def test_own_losses_and_regression_like_shapes_work() -> None:
    def smooth(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, label_smoothing=0.1)

    task = gy.Task(lambda: nn.Linear(6, 3), (INPUTS, TARGETS), (INPUTS, TARGETS), smooth)
    assert gy.train(config(), task=task).max_accuracy > 0.9


def test_callbacks_are_called_of_every_step_and_evaluation() -> None:
    told: list[object] = []

    class Diary(Callback):
        def begin(self, title: str, step: int, steps: int) -> None:
            told.append(("begin", step, steps))

        def step(self, row: Row) -> None:
            told.append(row["step"])

        def evaluated(self, row: Row) -> None:
            told.append(("evaluated", row["step"]))

        def end(self) -> None:
            told.append("end")

    gy.train(config(steps=3, evaluate_every=2), task=gy.Task(linear, (INPUTS, TARGETS), (INPUTS, TARGETS)),
             callbacks=[Diary()])  # fmt: skip
    assert told == [
        ("begin", 0, 3), ("evaluated", 0), 0, 1, ("evaluated", 2), 2, ("evaluated", 3), "end",
    ]  # fmt: skip


def test_a_declared_number_may_differ_from_the_real_one() -> None:
    blind = gy.train(gy.Config(rule="krum", attack="little", byzantine=5, declared_byzantine=0, steps=10))
    told = gy.train(gy.Config(rule="krum", attack="little", byzantine=5, steps=10))
    wary = gy.train(gy.Config(rule="krum", declared_byzantine=5, steps=10))
    assert blind.config.declared_byzantine == 0 and told.config.declared_byzantine == 5
    assert (blind.weights.drop(columns="step") > 0).sum(axis=1).eq(21).all(), "n - f - 2 of 23 rows, with f = 0"
    assert (told.weights.drop(columns="step") > 0).sum(axis=1).eq(16).all()
    assert blind.metrics["ratio_bound"][0] > told.metrics["ratio_bound"][0] == wary.metrics["ratio_bound"][0]
    assert wary.metrics["attack_norm"].isna().all() and numpy.isclose(wary.metrics["byzantine_share"], 0).all()


def test_the_first_line_of_the_docs_works() -> None:
    rows = torch.randn(51, 10)
    assert gy.rules.make("krum")(rows, f=12).vector.shape == (10,)
