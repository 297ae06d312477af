"""Tasks of users' own that do not fit together: some are mended, the others are errors that say what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gyroscope as gy

STREAM = torch.Generator().manual_seed(7)
LABELS = torch.arange(60) % 3
INPUTS = torch.randn(3, 6, generator=STREAM)[LABELS] * 3 + torch.randn(60, 6, generator=STREAM)


def linear() -> nn.Module:
    """A model that is computed worker by worker."""
    return nn.Linear(6, 3)


def chain() -> nn.Module:
    """A model whose gradients kernels compute, for all workers at once."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def train(
    inputs: Any = INPUTS, labels: Any = LABELS, model: Any = linear, loss: Any = F.cross_entropy, **settings: Any
) -> gy.Result:
    config = gy.Config(**{"workers": 5, "batch": 8, "steps": 3, "lr": 0.1, "evaluate_every": 1, **settings})
    return gy.train(config, task=gy.Task(model, (inputs, labels), (inputs, labels), loss))


# -- what is converted -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [linear, chain])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16])
def test_labels_of_any_integer_type_give_the_same_run(model: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    assert train(labels=LABELS.to(dtype), model=model).tables == train(model=model).tables


@pytest.mark.parametrize("model", [linear, chain])
def test_float64_inputs_give_the_same_run(model: Callable[[], nn.Module]) -> None:
    assert train(inputs=INPUTS.double(), model=model).tables == train(model=model).tables
    assert train(inputs=INPUTS.numpy().astype("float64"), model=model).tables == train(model=model).tables


def test_float32_inputs_go_into_a_float64_model() -> None:
    result = train(model=lambda: linear().double())
    assert next(result.model.parameters()).dtype == torch.float64 and result.status == "complete"


def test_a_regression_with_float64_targets_trains() -> None:
    wanted = INPUTS.sum(dim=1, keepdim=True)
    result = train(labels=wanted.double(), model=lambda: nn.Linear(6, 1), loss=F.mse_loss, lr=0.01, steps=30)
    assert result.final < result.evaluations["mse"][0]


def test_data_frames_and_lists_give_the_same_run() -> None:
    wanted = train().tables
    assert train(pandas.DataFrame(INPUTS.numpy()), pandas.Series(LABELS.numpy())).tables == wanted
    assert train(INPUTS.tolist(), LABELS.tolist()).tables == wanted


def test_numbers_of_numpy_are_numbers() -> None:
    given = gy.Config(seed=numpy.int64(3), lr=numpy.float32(0.5), mu=numpy.float64(0.5), workers=numpy.int32(5))  # type: ignore[arg-type]
    assert given == gy.Config(seed=3, lr=0.5, mu=0.5, workers=5)
    with pytest.raises(gy.errors.ConfigError, match="seed must be a whole number"):
        gy.Config(seed=numpy.float64(1.5))  # type: ignore[arg-type]


# -- what is refused -------------------------------------------------------------------------------------------------


def check_refused(*says: str, out: Path | None = None, **task: Any) -> None:
    with pytest.raises(gy.errors.GyroscopeError) as problem:
        train(**task)
    for part in says:
        assert part in str(problem.value)


@pytest.mark.parametrize("model", [linear, chain])
@pytest.mark.parametrize("wrong", [-1, 3, 2**40])
def test_a_label_out_of_range_is_named(model: Callable[[], nn.Module], wrong: int) -> None:
    labels = LABELS.clone()
    labels[17] = wrong
    says = ("1 of the 60 training labels", f"the first is {wrong}", "3 outputs", "0 to 2", "Number the classes from 0")
    check_refused(*says, labels=labels, model=model)
    check_refused(*says, labels=labels, model=model, loss=nn.CrossEntropyLoss())


def test_a_label_of_the_test_set_out_of_range_is_named() -> None:
    task = gy.Task(linear, (INPUTS, LABELS), (INPUTS, LABELS + 1), F.cross_entropy)
    with pytest.raises(gy.errors.DataError, match="20 of the 60 test labels are out of range, the first is 3"):
        gy.train(gy.Config(steps=1), task=task)


def test_a_label_out_of_range_is_named_behind_a_loss_of_one_s_own() -> None:
    check_refused("labels of a batch", "the first is 3", labels=LABELS + 1, loss=lambda x, y: F.cross_entropy(x, y))


@pytest.mark.parametrize(("loss", "ignored"), [(F.cross_entropy, -100), (nn.CrossEntropyLoss(ignore_index=-1), -1)])
def test_labels_that_the_loss_leaves_out_are_no_mistake(loss: Any, ignored: int) -> None:
    labels = LABELS.clone()
    labels[::7] = ignored
    assert train(labels=labels, loss=loss).status == "complete"


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda x, y: F.cross_entropy(x, y, reduction="none"), "must return one number"),
        (nn.CrossEntropyLoss(reduction="none"), "got a tensor of shape (2,)"),
        (lambda x, y: F.cross_entropy(x, y).item(), "leave out .item()"),
        (lambda x, y: F.cross_entropy(x.detach(), y), "torch can differentiate"),
        (F.mse_loss, "mse_loss cannot compare outputs (2, 3) of float32 with targets (2,) of int64"),
        (F.binary_cross_entropy_with_logits, "binary_cross_entropy_with_logits cannot compare"),
    ],
)
def test_a_loss_that_cannot_be_used_is_named(loss: Any, says: str) -> None:
    check_refused(says, loss=loss)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"inputs": INPUTS[:, :5]}, "the model cannot take the training inputs, a batch (2, 5) of float32"),
        ({"inputs": INPUTS.to(torch.uint8)}, "inputs.float()"),
        ({"inputs": LABELS, "labels": INPUTS}, "the model cannot take the training inputs"),
        ({"inputs": [["a", "b"]] * 60}, "the inputs cannot become a tensor"),
        ({"inputs": [[1.0], [1.0, 2.0]], "labels": [0, 1]}, "the inputs cannot become a tensor"),
        ({"inputs": 3.0}, "got 0 inputs and 60 targets"),
        ({"model": nn.ReLU}, "no parameters to train"),
        ({"model": lambda: nn.Linear(6, 3).requires_grad_(False)}, "no parameters to train"),
        ({"model": lambda: nn.BatchNorm1d(6, affine=False)}, "no parameters to train"),
        ({"model": lambda: "linear"}, "must be a torch.nn.Module"),
        ({"model": "linear"}, "must be a torch.nn.Module"),
        ({"device": "mps"}, "'mps' cannot be used"),
        ({"model": nn.Linear}, "give the task model=lambda: Linear(...)"),
        ({"model": lambda: nn.LazyLinear(3)}, "parameters without values"),
        ({"model": lambda: nn.Linear(6, 3, device="meta")}, "parameters without values"),
        ({"model": lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), "batch": 1}, "set batch to 2 or more"),
        ({"loss": None}, "pass one such as F.cross_entropy"),
        ({"loss": nn.CrossEntropyLoss}, "write CrossEntropyLoss()"),
        ({"threads": 99_999}, "threads must be at most 1,024"),
        ({"rule": None}, "rule must be text"),
        ({"lr": [0.1]}, "lr must be text or a number"),
        ({"task": gy.Task(linear, (INPUTS, LABELS), (INPUTS, LABELS))}, "pass it to gy.train(config, task=...)"),
    ],
)
def test_a_task_that_cannot_be_used_is_refused(task: dict[str, Any], says: str) -> None:
    check_refused(says, **task)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (DataLoader(TensorDataset(INPUTS, LABELS)), "such as its .dataset"),
        (TensorDataset(INPUTS[:0], LABELS[:0]), "TensorDataset of length 0"),
        ([(torch.zeros(6), 0), (torch.zeros(5), 1)], "got (6,) at sample 0 and (5,) at sample 1"),
        ([(torch.zeros(6), "cat")], "the targets cannot become a tensor"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_refused(data: Any, says: str) -> None:
    with pytest.raises(gy.errors.DataError) as problem:
        gy.train(gy.Config(steps=1), task=gy.Task(linear, data, data))
    assert says in str(problem.value)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"metric": 3}, "a metric is a name (accuracy, loss, perplexity, mse) or a gy.TaskMetric"),
        ({"train": gy.Split(INPUTS, LABELS, lambda inputs: inputs)}, "write def prepare(inputs, stream)"),  # type: ignore[arg-type, misc]
    ],
)
def test_a_part_of_a_task_that_cannot_be_used_is_refused(changed: dict[str, Any], says: str) -> None:
    task = gy.Task(**{"model": linear, "train": (INPUTS, LABELS), "test": (INPUTS, LABELS), **changed})
    with pytest.raises(gy.errors.GyroscopeError) as problem:
        gy.train(gy.Config(steps=1), task=task)
    assert says in str(problem.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"callbacks": [print]}, "derived from gyroscope.runs.callbacks.Callback"),
        ({"callbacks": print}, "callbacks must be a list"),
        ({"stop": True}, "stop must be a function"),
    ],
)
def test_arguments_of_the_wrong_kind_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(gy.errors.ConfigError, match=says):
        gy.train(gy.Config(steps=1), **arguments)


@pytest.mark.parametrize("given", [[1.0, 2.0], numpy.zeros(3), torch.zeros(3, dtype=torch.int64)])
def test_a_gradient_that_is_no_tensor_of_numbers_is_refused(given: Any) -> None:
    with pytest.raises(gy.errors.RowsError, match="a gradient must be a floating-point tensor"):
        gy.WorkerMomentum(0.9).update(given)


@pytest.mark.parametrize("rule", [3, None, gy.rules.Krum])
def test_what_is_no_rule_is_refused_wherever_a_rule_is_given(rule: Any) -> None:
    states = [linear().state_dict() for _ in range(5)]
    for use in (lambda: gy.RobustAggregator(rule, f=1), lambda: gy.aggregate(states, rule, f=1)):
        with pytest.raises(gy.errors.ConfigError, match="a rule is given by its spec"):
            use()


def test_paths_devices_and_numpy_s_numbers_are_taken() -> None:
    given = gy.Config(device=torch.device("cpu"), data_dir=Path("/data"))  # type: ignore[arg-type]
    assert given == gy.Config(device="cpu", data_dir="/data")
    assert gy.rules.make("median")(torch.randn(5, 3), f=numpy.int64(1)).vector.shape == (3,)


def test_an_error_in_a_user_s_own_code_keeps_its_traceback() -> None:
    def broken(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("my own bug")

    with pytest.raises(ValueError, match="my own bug"):
        train(loss=broken)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("digits",), "write gy.Config(task='digits')"),
        (({"rule": "krum"},), "got a dict: write gy.Config("),
        ((gy.Config(), "mnist"), "gy.Config(task='mnist')"),
        ((gy.Config(), nn.Linear(2, 2)), "task must be a gy.Task, got a Linear"),
    ],
)
def test_swapped_arguments_are_told_what_goes_where(arguments: tuple[Any, ...], says: str) -> None:
    config, *task = arguments
    with pytest.raises(gy.errors.ConfigError) as problem:
        gy.train(config, **({"task": task[0]} if task else {}))
    assert says in str(problem.value)


# -- what is said of a run -------------------------------------------------------------------------------------------


def test_a_loss_below_zero_is_said_once_with_a_remedy() -> None:
    with pytest.warns(UserWarning, match="never below zero.* end the model with LogSoftmax") as caught:
        assert train(loss=F.nll_loss, steps=20).status == "complete"
    assert len(caught) == 1


def test_a_loss_that_is_not_below_zero_is_not_spoken_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train()


@pytest.mark.parametrize("name", ["custom", "my task: the second", "digit"])
def test_what_a_run_of_a_python_task_needs_to_go_on_is_said(tmp_path: Path, name: str) -> None:
    from gyroscope.cli import main

    task = gy.Task(linear, (INPUTS, LABELS), (INPUTS, LABELS), F.cross_entropy, name=name)
    config, out = gy.Config(steps=5, workers=3), tmp_path / "run"
    gy.train(config, task=task, out=out, stop=lambda: True)
    with pytest.raises(gy.errors.ConfigError) as problem:
        gy.resume(out)
    assert f"gy.resume('{out}', task=...)" in str(problem.value) and repr(name) in str(problem.value)
    assert main(["train", "--resume", str(out)]) == 2
    assert gy.resume(out, task=task).status == "complete"
