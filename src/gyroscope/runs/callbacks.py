"""What a training loop calls while it runs: progress on the terminal, TensorBoard, anything of one's own."""

from __future__ import annotations

from collections.abc import Mapping

from gyroscope.simulation.metrics import Number

Row = Mapping[str, Number]


class Callback:
    """Told of everything that happens in a run. Subclasses override what they need; nothing here changes the run."""

    def begin(self, title: str, step: int, steps: int) -> None:
        """The run goes on from `step`, up to `steps`."""

    def step(self, row: Row) -> None:
        """A round was played; `row` holds its measures (docs/measures.md), or step and lr if it was not measured."""

    def evaluated(self, row: Row) -> None:
        """The model was evaluated: step, accuracy, correct, samples."""

    def end(self) -> None:
        """The run has ended, or was interrupted, or has failed."""


class Callbacks(Callback):
    """Several callbacks as one, called in order."""

    def __init__(self, *callbacks: Callback) -> None:
        self.callbacks = callbacks

    def begin(self, title: str, step: int, steps: int) -> None:
        for callback in self.callbacks:
            callback.begin(title, step, steps)

    def step(self, row: Row) -> None:
        for callback in self.callbacks:
            callback.step(row)

    def evaluated(self, row: Row) -> None:
        for callback in self.callbacks:
            callback.evaluated(row)

    def end(self) -> None:
        for callback in self.callbacks:
            callback.end()
