"""The result of a run, as Python sees it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gyroscope._core.errors import ConfigError
from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.config import ResolvedCommon
from gyroscope.simulation.metrics import Number
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass
class Result:
    """The result of a run: its status, its tables, and the trained model. `train` and `resume` return it.

    Example:
        >>> import gyroscope as gy
        >>> result = gy.train(gy.Config(rule="median", attack="empire", byzantine=5, steps=20))
        >>> result.status, result.step, len(result.metrics)
        ('complete', 20, 20)
        >>> result.final_accuracy <= result.max_accuracy
        True
    """

    config: ResolvedCommon
    """The complete configuration."""
    status: str
    """`complete`, `diverged` (parameters became non-finite), or `interrupted`."""
    step: int
    """How many rounds were played."""
    model: nn.Module = dataclasses.field(repr=False)
    """The model with its last parameters."""
    directory: Path | None
    """The run directory; None where none was asked for."""
    tables: dict[str, list[dict[str, Number]]] = dataclasses.field(repr=False)
    """The rows of the run directory's tables, by file name; the properties below return them as pandas has them."""
    reason: str = ""
    """Why the run was interrupted, where nobody asked for it."""
    metric: TaskMetric = ACCURACY
    """What `best` and `final` are values of."""

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row per step (documentation: What is recorded)."""
        return self.frame(run_dir.METRICS)

    @property
    def evaluations(self) -> pandas.DataFrame:
        """The task's metric and the loss on the test set, a row every `evaluate_every` steps."""
        return self.frame(run_dir.EVALUATIONS)

    @property
    def weights(self) -> pandas.DataFrame:
        """Each worker's share in each aggregate, Byzantine workers last; empty for rules without shares."""
        return self.frame(run_dir.WEIGHTS)

    @property
    def best(self) -> float:
        """The best value of the task's metric over all evaluations."""
        return self.metric.best(self._values())

    @property
    def final(self) -> float:
        """The task's metric at the last evaluation."""
        return self._values()[-1]

    @property
    def max_accuracy(self) -> float:
        """The highest accuracy of all evaluations. Only for tasks whose metric is accuracy."""
        return self._accuracy(self.best)

    @property
    def final_accuracy(self) -> float:
        """The accuracy of the last evaluation. Only for tasks whose metric is accuracy."""
        return self._accuracy(self.final)

    def best_text(self) -> str:
        """Return `best` with its name: `maximum accuracy 97.50%`."""
        return self.metric.best_text(self.best)

    def _values(self) -> list[float]:
        values = [row[self.metric.name] for row in self.tables[run_dir.EVALUATIONS]]
        return [math.nan if value is None else float(value) for value in values]

    def _accuracy(self, value: float) -> float:
        if self.metric != ACCURACY:
            raise ConfigError(
                f"this run has no accuracy: its metric is {self.metric.name}. Read result.best and .final"
            )
        return value

    def frame(self, table: str) -> pandas.DataFrame:
        """Return a table of the run directory; the results of variants have properties for tables of their own."""
        with extra("lab", "the table of a result"):
            import pandas

        frame: pandas.DataFrame = pandas.DataFrame(self.tables.get(table, []))
        return frame
