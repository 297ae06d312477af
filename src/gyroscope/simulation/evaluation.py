"""Measure a task's metric and loss on the whole test set, without touching the random streams of training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gyroscope._core import random_streams
from gyroscope._linalg import linear_layers
from gyroscope._linalg.flat_parameters import trainable
from gyroscope.simulation import task_checks
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric, chosen_classes, metric_for
from gyroscope.simulation.tasks import Task

_CPU_VALUES, _GPU_VALUES = 400_000, 8_000_000
"""Input values per batch. On a CPU a core's cache holds so many and the outputs of the first layer."""
_CHAIN = 4
"""How many times as many for chains of linear layers: their outputs are small, and the cost per batch matters."""


@dataclasses.dataclass(frozen=True)
class TaskTest:
    """What a task's models are measured by: samples, metric and loss."""

    samples: Split
    metric: TaskMetric
    loss: Callable[[Tensor, Tensor], Tensor]

    @classmethod
    def of(cls, task: Task, model: nn.Module | None = None) -> TaskTest:
        """Make the test of a task; with a model, where the model is and of its type.

        Raises:
            DataError: the samples cannot be used, or model and loss do not fit them.
        """
        samples = Split.of(task.test)
        if model is not None:
            samples = samples.to(trainable(model)[0])
            task_checks.check(model, task.loss, samples, "test")
        return cls(samples, metric_for(task.metric, samples.targets), task.loss)

    def row(self, step: int, model: nn.Module, seed: int) -> dict[str, Number]:
        """Evaluate the model after so many rounds; return the row of evaluations.csv."""
        found = evaluate(model, self, seed)
        known = {
            "step": step,
            "test_loss": found.loss,
            "samples": len(self.samples),
            "correct": round(found.value * found.predictions) if self.metric == ACCURACY and found.predictions else 0,
            "predicted_classes": found.classes,
            self.metric.name: found.value,
        }
        return {column: known[column] for column in self.metric.columns()}


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What was measured: the metric's value, the mean loss, and how many predictions the value is about."""

    value: float
    loss: float
    predictions: int
    classes: int = 0
    """How many different classes the model gives to some sample, where accuracy is measured: 1 if its output does not
    depend on its input."""


@torch.inference_mode()
def evaluate(model: nn.Module, test: TaskTest, seed: int = 0) -> Evaluation:
    """Measure metric and loss with the model in evaluation mode.

    Raises:
        DataError: outputs, targets and metric do not go together.
    """
    model.eval()
    stream = random_streams.generator(seed, "evaluation")
    samples, metric = test.samples, test.metric
    total = torch.zeros((), dtype=torch.float64, device=samples.targets.device)  # read once: no waiting for a GPU
    losses, weights, predictions = torch.zeros_like(total), torch.zeros_like(total), 0
    seen: Tensor | None = None
    outputs_of = linear_layers.forward(model)
    values = _CPU_VALUES if samples.inputs.device.type == "cpu" else _GPU_VALUES
    widest = samples.inputs[0].numel()
    if samples.targets.dim() > 1 and samples.prepare is None:  # a language model's outputs are larger than its inputs
        widest = max(widest, outputs_of(samples.inputs[:1]).numel())
    batch = max(1, values // max(1, widest)) * (1 if outputs_of is model else _CHAIN)
    for start in range(0, len(samples), batch):
        inputs, targets = samples.inputs[start : start + batch], samples.targets[start : start + batch]
        outputs = outputs_of(inputs if samples.prepare is None else samples.prepare(inputs, stream))
        # A mean over the targets that count: cross-entropy leaves out negative ones.
        counted = (targets >= 0).sum() if not targets.is_floating_point() else torch.full_like(total, targets.numel())
        losses += torch.where(counted > 0, task_checks.loss_of(test.loss, outputs, targets) * counted, 0.0)
        weights += counted
        if metric.of_loss is None:
            scored, count = metric.batch_total(outputs, targets)
            total += scored
            predictions += count
        if metric == ACCURACY:
            seen = torch.zeros(max(outputs.shape[1:]), dtype=torch.bool, device=total.device) if seen is None else seen
            seen[chosen_classes(outputs, targets)] = True
    loss = float(losses / weights)
    if metric.of_loss is not None:
        return Evaluation(metric.of_loss(loss), loss, len(samples))
    classes = 0 if seen is None else int(seen.sum())
    return Evaluation(float(total) / predictions if predictions else math.nan, loss, predictions, classes)
