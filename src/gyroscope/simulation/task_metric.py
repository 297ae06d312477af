"""`TaskMetric`: what is measured on the test set, its name, and whether more of it is better."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from torch import Tensor

from gyroscope._core.errors import ConfigError, DataError, UnknownNameError
from gyroscope.simulation.metrics import COLUMNS

Scores = Callable[[Tensor, Tensor], Tensor]
"""Maps (outputs, targets) of a batch to a score for each prediction; the metric is their mean."""


@dataclasses.dataclass(frozen=True)
class TaskMetric:
    """A measure of a model on the test set: the mean of a score over all predictions, or a function of the test loss.

    Args:
        name: the name in tables, bars and figures, and of the column of evaluations.csv.
        better: whether "higher" or "lower" values are better.
        scores: maps (outputs, targets) of a batch to a score for each prediction: at most one per element of targets.
        of_loss: maps the mean test loss to the metric, where there are no scores.
        percent: whether the metric is a share, from 0 to 1, that people read in percent.

    Raises:
        ConfigError: the name is no column's name, `better` is neither word, or there is not one of the two functions.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> error = gy.TaskMetric("mae", "lower", lambda outputs, targets: (outputs - targets).abs())
        >>> data = torch.randn(60, 3), torch.randn(60, 1)
        >>> task = gy.Task(lambda: torch.nn.Linear(3, 1), data, data, torch.nn.functional.mse_loss, metric=error)
        >>> result = gy.train(gy.Config(steps=10, workers=5), task=task)
        >>> result.best <= result.final
        True
    """

    name: str
    better: Literal["higher", "lower"]
    scores: Scores | None = None
    of_loss: Callable[[float], float] | None = None
    percent: bool = False

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ConfigError(f"a metric is better when it is 'higher' or 'lower', got {self.better!r}")
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", self.name):
            raise ConfigError(
                f"a metric's name is the name of a column, so it has letters, digits and underscores only, got "
                f"{self.name!r}"
            )
        if (self.scores is None) == (self.of_loss is None):
            raise ConfigError(f"the metric {self.name} needs either scores or of_loss: give one of them")

    @property
    def scale(self) -> float:
        """The factor from a value to the number that people read."""
        return 100.0 if self.percent else 1.0

    @property
    def words(self) -> str:
        """The name in a sentence."""
        return self.name.replace("_", " ")

    @property
    def unit(self) -> str:
        return " %" if self.percent else ""

    @property
    def extreme(self) -> str:
        """The word for the best value of a run."""
        return "maximum" if self.better == "higher" else "minimum"

    def best(self, values: Iterable[float]) -> float:
        """Return the best of the values that are numbers; NaN if there is none."""
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return math.nan
        return max(known) if self.better == "higher" else min(known)

    def cost(self, reference: float, value: float) -> float:
        """Return how much worse the value is than the reference, in the numbers that people read."""
        if reference == value or math.isnan(reference) or math.isnan(value):
            return 0.0  # also where both are infinite
        return self.scale * (reference - value if self.better == "higher" else value - reference)

    def columns(self) -> tuple[str, ...]:
        """Return the columns of evaluations.csv; the metric is the second one."""
        counts, more = (("correct", "samples"), ("predicted_classes",)) if self == ACCURACY else (("samples",), ())
        return tuple(dict.fromkeys(("step", self.name, *counts, "test_loss", *more)))

    def batch_total(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Return the sum of the scores of a batch, in float64, and how many they are.

        Raises:
            DataError: outputs, targets and metric do not go together.
        """
        assert self.scores is not None
        scores = self.scores(outputs, targets)
        if not isinstance(scores, Tensor) or scores.dim() == 0:
            raise DataError(
                f"the metric {self.name} must give a tensor with a score for each prediction, not their mean, got "
                f"{'one number' if isinstance(scores, Tensor) else type(scores).__name__}"
            )
        if scores.numel() > targets.numel():  # fewer are right where some targets do not count
            raise DataError(
                f"the metric {self.name} gives {scores.numel()} scores {tuple(scores.shape)} for {targets.numel()} "
                f"targets {tuple(targets.shape)} and outputs {tuple(outputs.shape)}, and must give at most one per "
                "target: make the shapes equal where they broadcast, such as outputs.reshape(targets.shape), or take "
                "the mean of a target's scores"
            )
        return scores.double().sum(), scores.numel()

    @property
    def points(self) -> str:
        """What differences are counted in."""
        return "points" if self.percent else "units"

    @property
    def axis(self) -> str:
        """The label of a figure's axis."""
        return f"{self.words} on the test set{' (%)' * self.percent}"

    def number(self, scaled: float) -> str:
        """Return a number that people read, already scaled: 97.5 or 1.734."""
        return f"{scaled:.1f}" if self.percent else f"{scaled:.4g}"

    def text(self, value: float) -> str:
        """Return the value as people read it: 97.50% or 1.734."""
        return f"{value:.2%}" if self.percent else f"{value:.4g}"

    def summary(self, best: float, final: float) -> str:
        """Return one line on a run: `maximum accuracy 97.50%, final accuracy 97.10%`."""
        return f"{self.best_text(best)}, final {self.words} {self.text(final)}"

    def best_text(self, best: float) -> str:
        return f"{self.extreme} {self.words} {self.text(best)}"


def class_hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return for each target that is a class whether it has the largest output. Negative targets count for nothing.

    Args and Raises: as of `chosen_classes`.
    """
    return (chosen_classes(outputs, targets) == targets)[targets >= 0]


def chosen_classes(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the class with the largest output for each target.

    Args:
        outputs: a number per class: (B, C) for targets (B,); (B, C, ...), as `cross_entropy` takes them, or (B, ..., C)
            for targets (B, ...). Where both fit, the classes are in the second dimension.
        targets: the classes.

    Raises:
        DataError: the shapes do not fit.
    """
    if outputs.dim() == targets.dim() + 1 and not targets.is_floating_point():
        for dim in (1, -1):
            chosen = outputs.argmax(dim=dim)
            if chosen.shape == targets.shape:
                return chosen
    raise DataError(
        f"accuracy needs an output for each class, (B, C) for targets (B,) or (B, C, T) for targets (B, T), got "
        f"outputs {tuple(outputs.shape)} for {targets.dtype} targets {tuple(targets.shape)}: choose another metric, "
        "such as Task(metric='mse') for a regression, or 'loss'"
    )


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each prediction's squared error. (B,) and (B, 1) are the same; other shapes must be equal."""
    if [size for size in outputs.shape if size != 1] != [size for size in targets.shape if size != 1]:
        raise DataError(
            f"the mean squared error needs an output for each target, got outputs {tuple(outputs.shape)} for targets "
            f"{tuple(targets.shape)}"
        )
    return (outputs.reshape(targets.shape) - targets).square()


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


_RESERVED = {"step", "correct", "samples", "predicted_classes", *COLUMNS}
"""Names of other columns, and of TensorBoard's scalars."""
ACCURACY = TaskMetric("accuracy", "higher", class_hits, percent=True)
METRICS = {
    "accuracy": ACCURACY,
    "loss": TaskMetric("test_loss", "lower", of_loss=float),
    "perplexity": TaskMetric("perplexity", "lower", of_loss=_perplexity),
    "mse": TaskMetric("mse", "lower", squared_errors),
}


def metric_for(metric: TaskMetric | str | None, targets: Tensor) -> TaskMetric:
    """Return the metric that a task names; without a name, accuracy for classes and mse for other targets."""
    if isinstance(metric, TaskMetric):
        builtin = {each.name for each in METRICS.values()}
        if metric not in METRICS.values() and metric.name in {*_RESERVED, *builtin}:
            raise ConfigError(
                f"a metric of your own cannot have the name {metric.name!r}: another column has it. Choose another name"
            )
        return metric
    if metric is None:
        return METRICS["mse"] if targets.dtype.is_floating_point else ACCURACY
    if not isinstance(metric, str):
        raise ConfigError(f"a metric is a name ({', '.join(METRICS)}) or a gy.TaskMetric, got {metric!r}")
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    return METRICS[metric]


def known_metric(
    name: str, better: Literal["higher", "lower"] | None = None, percent: bool | None = None
) -> TaskMetric:
    """Return the metric of a recorded run, by the name of its column; others than the built-in ones cannot measure."""
    builtin = {metric.name: metric for metric in METRICS.values()}
    return builtin.get(name) or TaskMetric(name, better or "higher", squared_errors, percent=bool(percent))


def metric_text(row: Mapping[str, object]) -> str:
    """Return name and value of an evaluation, whose second column is the metric: `accuracy 97.50%`."""
    name = list(row)[1]
    value = row[name]
    metric = known_metric(name)
    return f"{metric.words} {metric.text(float(value))}" if isinstance(value, (int, float)) else ""
