"""The result of a run, as Python sees it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.config import ResolvedCommon
from gyroscope.simulation.metrics import Number

if TYPE_CHECKING:
    import pandas


@dataclasses.dataclass
class Result:
    """The result of a run: its status, its tables, and the trained model."""

    config: ResolvedCommon
    status: str
    """`complete`, `diverged` (parameters became non-finite), or `interrupted`."""
    step: int
    """How many rounds were played."""
    model: nn.Module = dataclasses.field(repr=False)
    directory: Path | None
    tables: dict[str, list[dict[str, Number]]] = dataclasses.field(repr=False)
    reason: str = ""
    """Why the run was interrupted, where nobody asked for it."""

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row per step; docs/measures.md explains the columns."""
        return self.frame(run_dir.METRICS)

    @property
    def evaluations(self) -> pandas.DataFrame:
        """Accuracy on the test set, a row every `evaluate_every` steps."""
        return self.frame(run_dir.EVALUATIONS)

    @property
    def weights(self) -> pandas.DataFrame:
        """Each worker's share in each aggregate, Byzantine workers last; empty for rules without shares."""
        return self.frame(run_dir.WEIGHTS)

    @property
    def max_accuracy(self) -> float:
        """The highest accuracy of all evaluations."""
        return max(float(row["accuracy"] or 0) for row in self.tables[run_dir.EVALUATIONS])

    @property
    def final_accuracy(self) -> float:
        """The accuracy of the last evaluation."""
        return float(self.tables[run_dir.EVALUATIONS][-1]["accuracy"] or 0)

    def frame(self, table: str) -> pandas.DataFrame:
        """Return a table of the run directory; the results of variants have properties for tables of their own."""
        with extra("lab", "the table of a result"):
            import pandas

        frame: pandas.DataFrame = pandas.DataFrame(self.tables.get(table, []))
        return frame
