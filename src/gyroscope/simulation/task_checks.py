"""Mistakes in a task that torch would report from deep inside, or not at all: data, model and loss that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gyroscope._core import random_streams
from gyroscope._core.errors import DataError
from gyroscope.simulation.data.batches import Prepare, Split

Loss = Callable[[Any, Tensor], Tensor]

_TRIED = 2
"""Samples of the trial: two, so that a loss for each of them shows."""
_IGNORED = -100
"""The label that torch's losses leave out."""


def check(model: nn.Module, loss: Loss, data: Split, which: str) -> None:
    """Try model and loss on two samples, and compare all labels with the model's outputs.

    Args:
        model: the model, where the data are. Its mode and the caller's randomness are left as they are.
        loss: the task's loss.
        data: the samples.
        which: what they are called in an error: "training" or "test".

    Raises:
        DataError: the model cannot take the inputs, the loss cannot take the targets or is not one number, or a label
            is not one of the model's outputs.
    """
    if isinstance(loss, type) or not callable(loss):
        remedy = f"write {loss.__name__}()" if isinstance(loss, type) else "pass one such as F.cross_entropy"
        raise DataError(f"the loss must be a function of (outputs, targets), got {loss!r}: {remedy}")
    inputs, targets, training = data.inputs[:_TRIED], data.targets[:_TRIED], model.training
    model.eval()
    try:
        with random_streams.ambient(0, "trial", device=inputs.device):
            if data.prepare is not None:
                inputs = _prepared(data.prepare, inputs)
            outputs = _outputs(model, inputs, which)
            if loss in (F.nll_loss, F.cross_entropy) or isinstance(loss, (nn.NLLLoss, nn.CrossEntropyLoss)):
                _check_labels(loss, outputs, data.targets, f"{which} labels")
            loss_of(loss, outputs, targets)
    finally:
        model.train(training)


def training_outputs(model: nn.Module, inputs: Tensor) -> Any:
    """Return the model's outputs in training mode.

    Raises:
        DataError: batch-norm is given one sample.
    """
    try:
        return model(inputs)
    except ValueError as problem:
        if "more than 1 value per channel" not in str(problem):
            raise
        raise DataError(
            f"batch-norm needs at least 2 samples per worker and round, got batch = {len(inputs)}: set batch to 2 or "
            "more"
        ) from problem


def loss_of(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """Return the loss of a batch, which is one number.

    Raises:
        DataError: it is not one number, or outputs and targets do not go together.
    """
    try:
        value = loss(outputs, targets)
    except (IndexError, RuntimeError, TypeError, ValueError) as problem:
        _check_labels(loss, outputs, targets, "labels of a batch")
        if not _is_torch_s(loss):
            raise  # a mistake in somebody's own code, whose traceback says where
        raise DataError(
            f"the loss {_name(loss)} cannot compare outputs {_described(outputs)} with targets {_described(targets)}: "
            f"{_first_line(problem)}. Labels need outputs (B, C) and cross_entropy, or nll_loss after LogSoftmax; "
            "floating-point targets need outputs of their shape and a loss such as mse_loss"
        ) from problem
    if not isinstance(value, Tensor):
        raise DataError(
            f"the loss {_name(loss)} must return a tensor with one number, got {type(value).__name__}: leave out "
            ".item() or float(), which torch cannot differentiate"
        )
    if value.numel() != 1:
        raise DataError(
            f"the loss {_name(loss)} must return one number, the mean over the batch, got a tensor of shape "
            f"{tuple(value.shape)} for targets {tuple(targets.shape)}: use reduction='mean', or return its .mean()"
        )
    return value.reshape(())


def _prepared(prepare: Prepare, inputs: Tensor) -> Tensor:
    try:
        return prepare(inputs, random_streams.generator(0, "trial"))
    except TypeError as problem:
        if "positional argument" not in str(problem) and "not callable" not in str(problem):
            raise
        raise DataError(
            f"prepare must be a function of a batch of inputs and a torch.Generator: {problem}. What to do: write "
            "def prepare(inputs, stream)"
        ) from problem


def _outputs(model: nn.Module, inputs: Tensor, which: str) -> Any:
    try:
        return model(inputs)
    except (IndexError, RuntimeError, ValueError) as problem:
        remedy = f"compare the shape of a sample, {tuple(inputs.shape[1:])}, with the model's first layer"
        if not inputs.is_floating_point():
            remedy += ", and convert integers where it needs floating-point numbers: inputs.float()"
        raise DataError(
            f"the model cannot take the {which} inputs, a batch {_described(inputs)}: {_first_line(problem)}. What to "
            f"do: {remedy}"
        ) from problem


def _check_labels(loss: Loss, outputs: Any, targets: Tensor, which: str) -> None:
    """Raise a DataError where a label is not the number of an output. Outputs that are no classes are left alone."""
    if not isinstance(outputs, Tensor) or outputs.dim() != targets.dim() + 1 or targets.is_floating_point():
        return
    classes = outputs.shape[1]
    ignored = getattr(loss, "ignore_index", _IGNORED)
    wrong = targets[((targets < 0) & (targets != ignored)) | (targets >= classes)]
    if wrong.numel():
        raise DataError(
            f"{wrong.numel():,} of the {targets.numel():,} {which} are out of range, the first is {int(wrong[0])}: the "
            f"model has {classes} outputs, so labels are 0 to {classes - 1} ({ignored} leaves a sample out). Number "
            "the classes from 0, or give the model an output for each"
        )


def _is_torch_s(loss: Loss) -> bool:
    return (getattr(loss, "__module__", None) or "").partition(".")[0] == "torch"


def _name(loss: Loss) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"of type {type(value).__name__}"
    return f"{tuple(value.shape)} of {str(value.dtype).removeprefix('torch.')}"


def _first_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0].rstrip(".")
