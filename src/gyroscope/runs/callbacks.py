"""`Callback`: what a training loop calls while it runs, such as a progress bar or a TensorBoard writer."""

from __future__ import annotations

from collections.abc import Mapping

from gyroscope.simulation.metrics import Number

Row = Mapping[str, Number]


class Callback:
    """Observe a run. Subclasses override the methods that they need; no method can change the run."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """Handle the start of the loop at `step`, which ends after `steps`; `title` says in one line what runs."""

    def step(self, row: Row) -> None:
        """Handle a round: `row` holds its measures, or step and lr if it was not measured.

        The page What is recorded of the documentation explains the measures.
        """

    def evaluated(self, row: Row) -> None:
        """Handle an evaluation: `row` holds step, the metric by its name, samples and test_loss."""

    def remark(self, text: str) -> None:
        """Handle a message to show from now on, such as which workers are missing; empty for none."""

    def end(self) -> None:
        """Handle the end of the loop: the run has ended, was interrupted, or has failed."""
