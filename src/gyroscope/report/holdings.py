"""A picture of who holds what: workers by labels, the area of a dot being the number of samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from gyroscope.report.figures import use_agg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INCHES = 0.36
"""Of a worker's column and a label's row; the largest dot nearly fills them."""
_LARGEST = (0.85 * _INCHES * 72) ** 2
_INK = "#0072B2"


def draw(labels: Tensor, held: Tensor, title: str, path: Path) -> Path:
    """Draw the (workers, labels) numbers of samples, with each worker's total above, into a file of any usual kind."""
    use_agg()
    from matplotlib import pyplot

    workers, kinds = held.shape
    width, height = max(5.0, 1.2 + _INCHES * workers), max(3.5, 2.6 + _INCHES * kinds)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(width, height), sharex=True, layout="constrained", height_ratios=[1, max(1.5, _INCHES * kinds)]
    )
    above.bar(range(workers), held.sum(dim=1).tolist(), width=0.7, color=_INK, edgecolor="black", linewidth=0.5)
    above.set_ylabel("samples")
    above.grid(axis="y", alpha=0.3)
    above.set_title(title)
    _dots(below, labels, held)
    figure.align_ylabels()
    figure.savefig(path, dpi=150, metadata={"CreationDate": None} if path.suffix == ".pdf" else None)
    pyplot.close(figure)
    return path


def _dots(axes: Axes, labels: Tensor, held: Tensor) -> None:
    workers, kinds = held.shape
    axes.set_xlim(-0.6, workers - 0.4)
    axes.set_ylim(-0.6, kinds - 0.4)
    most = int(held.max())
    where = held.nonzero()
    areas = _LARGEST * held[where[:, 0], where[:, 1]] / most
    axes.scatter(
        where[:, 0].tolist(), where[:, 1].tolist(), areas.tolist(), color=_INK, edgecolor="black", linewidth=0.5
    )
    axes.set_xlabel(f"worker   (a dot's area is a number of samples; the largest has {most:,})")
    axes.set_ylabel("label")
    every = -(-workers // 30)
    axes.set_xticks(range(0, workers, every))
    axes.set_yticks(range(kinds), [str(label) for label in labels.tolist()])
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
