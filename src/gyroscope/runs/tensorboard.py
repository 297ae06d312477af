"""The scalars of a run for TensorBoard, which is optional."""

from __future__ import annotations

from pathlib import Path

from gyroscope._core.errors import ConfigError
from gyroscope._core.optional import extra
from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback, Row


class TensorBoard(Callback):
    """Write every number of a run as a scalar into its run directory."""

    def __init__(self, directory: str | Path | None) -> None:
        """Raise a GyroscopeError where there is no run directory or no tensorboard package."""
        if directory is None:
            raise ConfigError("--tensorboard needs a run directory to write to: name one with --out")
        with extra("tensorboard", "--tensorboard"):
            import torch.utils.tensorboard  # noqa: F401
        self.path = Path(directory) / run_dir.BOARD

    def begin(self, title: str, step: int, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.path), purge_step=step)

    def step(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step" and value is not None:
                self.writer.add_scalar(name, float(value), int(row["step"] or 0))

    evaluated = step

    def end(self) -> None:
        self.writer.close()
