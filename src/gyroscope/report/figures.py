"""Figures with matplotlib, readable without colour: every curve has its own line style and marker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

# Okabe and Ito's palette, which colour-blind readers can tell apart, each with a dash pattern and a marker of its own.
_STYLES: dict[str, dict[str, Any]] = {
    "no attack": {"color": "#000000", "linestyle": "-", "marker": ""},
    "krum": {"color": "#D55E00", "linestyle": "--", "marker": "o"},
    "median": {"color": "#0072B2", "linestyle": "-.", "marker": "s"},
    "bulyan": {"color": "#009E73", "linestyle": (0, (3, 1, 1, 1)), "marker": "^"},
}
_OTHER = {"color": "#CC79A7", "linestyle": ":", "marker": "v"}


@dataclasses.dataclass(frozen=True)
class Curve:
    """One configuration's evaluations, a frame per seed."""

    label: str
    runs: Sequence[pandas.DataFrame]

    def summary(self) -> tuple[Any, Any, Any]:
        """(steps, mean accuracy, standard deviation) over the seeds."""
        import pandas

        by_step = pandas.concat(list(self.runs)).groupby("step")["accuracy"]
        mean, deviation = by_step.mean(), by_step.std(ddof=1).fillna(0.0)
        return mean.index.to_numpy(), mean.to_numpy(), deviation.to_numpy()


def draw_accuracy(axes: Axes, curves: Sequence[Curve], title: str) -> None:
    """Accuracy per step, mean as a line and one standard deviation over the seeds as a band."""
    for curve in curves:
        style = _STYLES.get(curve.label.split(":")[0], _OTHER)
        steps, mean, deviation = curve.summary()
        axes.plot(steps, 100 * mean, label=curve.label, markevery=max(1, len(steps) // 10), markersize=4, **style)
        axes.fill_between(
            steps, 100 * (mean - deviation), 100 * (mean + deviation), color=style["color"], alpha=0.15, linewidth=0
        )
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.margins(x=0)


def accuracy_figure(panels: Sequence[tuple[str, Sequence[Curve]]], title: str, path: Path) -> list[Path]:
    """Panels side by side, one per placement, written as PNG and as PDF."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, len(panels), figsize=(5 * len(panels), 3.8), sharey=True, layout="constrained", squeeze=False
    )
    for axes, (name, curves) in zip(grid[0], panels, strict=True):
        draw_accuracy(axes, curves, name)
    grid[0][0].set_ylabel("accuracy on the test set (%)")
    grid[0][-1].legend(loc="lower right")
    figure.suptitle(title)
    paths = [path.with_suffix(".png"), path.with_suffix(".pdf")]
    for target in paths:
        figure.savefig(target, dpi=150)
    pyplot.close(figure)
    return paths
