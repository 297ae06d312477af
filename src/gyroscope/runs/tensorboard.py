"""The scalars of a run for TensorBoard, which is optional."""

from __future__ import annotations

from pathlib import Path

from gyroscope.runs import run_dir
from gyroscope._core.errors import ConfigError, MissingExtraError
from gyroscope.simulation.metrics import Number
from gyroscope.runs.run_dir import RunDirectory


def check(out: str | Path | None) -> None:
    """Whether scalars for TensorBoard can be written."""
    if out is None:
        raise ConfigError("--tensorboard needs a run directory to write to: name one with --out")
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as problem:
        raise MissingExtraError(
            "--tensorboard needs the tensorboard package: pip install 'gyroscope[tensorboard]'"
        ) from problem


class Board:
    """The same scalars for TensorBoard."""

    def __init__(self, directory: RunDirectory, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory.path / run_dir.BOARD), purge_step=step)

    def write(self, row: dict[str, Number]) -> None:
        for name, value in row.items():
            if name != "step" and value is not None:
                self.writer.add_scalar(name, float(value), int(row["step"] or 0))

    def close(self) -> None:
        self.writer.close()
