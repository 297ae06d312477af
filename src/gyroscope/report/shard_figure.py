"""Draw which worker holds which samples: workers by labels, the area of a dot being the number of samples."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from gyroscope.report.figures import new_figure, save_as

_INCHES = 0.36
"""The size of a worker's column and of a label's row; the largest dot nearly fills them."""
_LARGEST = (0.85 * _INCHES * 72) ** 2
_LOOK = {"color": "#0072B2", "edgecolor": "black", "linewidth": 0.5}


def draw(labels: Tensor, counts: Tensor, title: str, path: Path) -> Path:
    """Draw the (workers, labels) numbers of samples, with each worker's total above, into a file of any usual kind."""
    workers, kinds = counts.shape
    size = max(5.0, 1.2 + _INCHES * workers), max(3.5, 2.6 + _INCHES * kinds)
    figure, grid = new_figure(2, 1, share=False, size=size, height_ratios=[1, max(1.5, _INCHES * kinds)])
    totals, dots = grid[:, 0]
    totals.sharex(dots)
    totals.tick_params(labelbottom=False)
    totals.bar(range(workers), counts.sum(dim=1).tolist(), width=0.7, **_LOOK)
    totals.set_ylabel("samples")
    totals.grid(axis="y", alpha=0.3)
    totals.set_title(title)
    dots.set_xlim(-0.6, workers - 0.4)
    dots.set_ylim(-0.6, kinds - 0.4)
    most = int(counts.max())
    at_worker, at_label = counts.nonzero(as_tuple=True)
    areas = _LARGEST * counts[at_worker, at_label] / most
    dots.scatter(at_worker.tolist(), at_label.tolist(), areas.tolist(), **_LOOK)
    dots.set_xlabel(f"worker   (a dot's area is a number of samples; the largest has {most:,})")
    dots.set_ylabel("label")
    dots.set_xticks(range(0, workers, -(-workers // 30)))
    dots.set_yticks(range(kinds), [str(label) for label in labels.tolist()])
    dots.grid(alpha=0.25)
    dots.set_axisbelow(True)
    figure.align_ylabels()
    return save_as(figure, path)
