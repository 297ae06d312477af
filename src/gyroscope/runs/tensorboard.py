"""The scalars of a run for TensorBoard, which is optional."""

from __future__ import annotations

from pathlib import Path

from gyroscope._core.errors import ConfigError, MissingExtraError
from gyroscope.runs import run_dir
from gyroscope.runs.callbacks import Callback, Row


def check_tensorboard(out: str | Path | None) -> None:
    """Raise where scalars for TensorBoard cannot be written."""
    if out is None:
        raise ConfigError("--tensorboard needs a run directory to write to: name one with --out")
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(
            "--tensorboard needs the tensorboard package: pip install 'gyroscope[tensorboard]'"
        ) from problem


class TensorBoard(Callback):
    """Write every number of a run as a scalar, into the run directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / run_dir.BOARD

    def begin(self, title: str, step: int, steps: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.path), purge_step=step)

    def step(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step" and value is not None:
                self.writer.add_scalar(name, float(value), int(row["step"] or 0))

    def evaluated(self, row: Row) -> None:
        self.step(row)

    def end(self) -> None:
        self.writer.close()
