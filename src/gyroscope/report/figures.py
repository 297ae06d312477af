"""Draw with matplotlib, readable without colour: every curve has its own dashes and marker."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.optional import extra

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart, each with a dash pattern and a marker of its own.
_STYLES: dict[str, dict[str, Any]] = {
    "no attack": {"color": "#000000", "linestyle": "-", "marker": ""},
    "krum": {"color": "#D55E00", "linestyle": "--", "marker": "o"},
    "median": {"color": "#0072B2", "linestyle": "-.", "marker": "s"},
    "bulyan": {"color": "#009E73", "linestyle": (0, (3, 1, 1, 1)), "marker": "^"},
    "bulyan, rescoring": {"color": "#CC79A7", "linestyle": (0, (5, 1)), "marker": "D"},
    "server": {"color": "#D55E00", "linestyle": "--", "marker": "o"},
    "workers": {"color": "#0072B2", "linestyle": "-", "marker": "s"},
}
_OTHER_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#E69F00", "linestyle": ":", "marker": "v"},
    {"color": "#56B4E9", "linestyle": (0, (1, 1)), "marker": "P"},
    {"color": "#8A6D00", "linestyle": (0, (5, 2, 1, 2)), "marker": "X"},
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """A column of the tables of one setup's runs, a frame per seed."""

    label: str
    runs: Sequence[pandas.DataFrame]
    column: str = "accuracy"
    scale: float = 1.0

    def summary(self) -> tuple[Any, Any, Any]:
        """Return (steps, mean, standard deviation) over the seeds."""
        by_step = column_by_step(self.runs, self.column)
        mean, deviation = by_step.mean(), by_step.std(ddof=1).fillna(0.0)
        return mean.index.to_numpy(), self.scale * mean.to_numpy(), self.scale * deviation.to_numpy()


def column_by_step(frames: Sequence[pandas.DataFrame], column: str) -> Any:
    """Group the values of a column over all seeds by step."""
    import pandas

    return pandas.concat([frame[["step", column]] for frame in frames]).groupby("step")[column]


def draw(axes: Axes, curves: Sequence[Curve], *, positive: bool = False) -> None:
    """Draw each curve's mean as a line and one standard deviation over the seeds as a band.

    With `positive` the band stays above zero, as a logarithmic axis needs it.
    """
    others = 0
    for curve in curves:
        style = _STYLES.get(curve.label)
        if style is None:
            style, others = _OTHER_STYLES[others % len(_OTHER_STYLES)], others + 1
        steps, mean, deviation = curve.summary()
        lower = mean - deviation
        if positive:
            lower = lower.clip(min=mean / 10)
        axes.plot(
            steps, mean, label=curve.label, markevery=max(1, len(steps) // 10), markersize=4, linewidth=1.4, **style
        )
        axes.fill_between(steps, lower, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.margins(x=0)


@dataclasses.dataclass(frozen=True)
class FigureOptions:
    """How figures differ from what they are by default."""

    size: tuple[float, float] | None = None
    """Width and height in inches."""
    title: str | None = None
    """In place of the figure's own title; empty for none."""
    accuracies: tuple[float, float] = (0.0, 100.0)
    """The range of the axis of accuracies, in percent."""

    def apply(self, figure: Figure) -> Figure:
        """Change size and title of a figure."""
        if self.size is not None:
            figure.set_size_inches(*self.size)
        if self.title is not None:
            if len(figure.axes) == 1:
                figure.axes[0].set_title("")
            figure.suptitle(self.title)
        return figure


_LETTERS_PER_INCH = 9
"""Of a title."""


def wrapped(title: str, inches: float) -> str:
    """Return a title in as many lines as it needs in a panel of this width."""
    return textwrap.fill(title, max(10, int(_LETTERS_PER_INCH * inches)))


def accuracy_figure(
    panels: Sequence[tuple[str, Sequence[Curve]]],
    title: str = "",
    columns: int = 2,
    options: FigureOptions | None = None,
) -> Figure:
    """Draw (title, curves of accuracies) panels in a grid with common axes and one legend."""
    options = options or FigureOptions()
    rows, columns = -(-len(panels) // columns), min(columns, len(panels))
    figure, grid = new_figure(rows, columns, size=options.size)
    width = figure.get_size_inches()[0] / columns
    flat = grid.flatten()
    for axes, (name, curves) in zip(flat, panels, strict=False):
        draw(axes, [dataclasses.replace(curve, scale=100.0) for curve in curves])
        axes.set_title(wrapped(name, width))
        axes.set_ylim(*options.accuracies)
    for axes in flat[len(panels) :]:
        axes.set_visible(False)
    for line in grid:
        line[0].set_ylabel("accuracy on the test set (%)")
    flat[len(panels) - 1].legend(loc="lower right")
    if title:
        figure.suptitle(title)
    return figure


_DARK = 0.5
"""The brightness of a cell below which its text is white."""


def cell_colours(shade: float, scale: str) -> tuple[str | None, str]:
    """Return the colour of a cell of a heat-map, None for NaN, and that of a text that can be read on it."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if math.isnan(shade):
        return None, "black"
    red, green, blue, _ = colour = colormaps[scale](shade)
    return to_hex(colour), "white" if 0.299 * red + 0.587 * green + 0.114 * blue < _DARK else "black"


def draw_heat_map(
    axes: Axes,
    shades: Sequence[Sequence[float]],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    scale: str,
) -> None:
    """Draw cells with a text in each, and the names of rows and columns at the left and on top.

    Args:
        axes: Where to draw.
        shades: A number from 0 to 1 per cell; NaN for a cell without a value, which is hatched.
        texts: What the cells say.
        rows: The names of the rows; none for a panel beside another one.
        columns: The names of the columns.
        scale: The name of matplotlib's colour map.
    """
    axes.imshow(shades or [[math.nan]], cmap=scale, vmin=0, vmax=1, aspect="auto")
    axes.patch.set(hatch="////", edgecolor="lightgrey")
    for y, line in enumerate(shades):
        for x, shade in enumerate(line):
            ink = cell_colours(shade, scale)[1]
            axes.text(x, y, texts[y][x], ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(rows)), rows)


def new_figure(
    rows: int = 1, columns: int = 1, share: bool = True, size: tuple[float, float] | None = None, **options: Any
) -> tuple[Figure, Any]:
    """Return an empty figure and its (rows, columns) array of axes, which share their scales if `share`.

    It needs neither a screen nor pyplot, which would keep the figure in memory.
    """
    with extra("lab", "drawing figures"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=size or (5 * columns, 0.4 + 3.4 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share, **options)


def save(figure: Figure, path: Path) -> list[Path]:
    """Write the figure as PNG, and as PDF and SVG, which are vectors. The suffix is added to the whole name."""
    return [save_as(figure, path.with_name(f"{path.name}.{kind}")) for kind in ("png", "pdf", "svg")]


def save_for_page(figure: Figure, path: Path, dpi: int = 150) -> list[Path]:
    """Write the figure of a page in docs/ twice: as PNG, which GitHub shows, and as SVG, which the site shows."""
    return [save_as(figure, path.with_suffix(suffix), dpi) for suffix in (".png", ".svg")]


def save_as(figure: Figure, path: Path, dpi: int = 150) -> Path:
    """Write the figure in the format of the path's suffix. The same runs give the same bytes: there is no date."""
    path.parent.mkdir(parents=True, exist_ok=True)
    import matplotlib

    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, dpi=dpi, metadata=dates.get(path.suffix))
    return path
