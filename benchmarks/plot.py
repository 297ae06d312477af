"""Draw a benchmark: the time of the rules beside other libraries', and how it grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks import growth, rules
from benchmarks.results import Line
from gyroscope.report.figures import save_for_page
from gyroscope.rules import RULES

_INK, _OURS, _THEIRS = "#333333", "#0b6e8a", "#c9b79c"
_STYLES = {"mean": ("#888888", ":", "o"), "median": (_OURS, "-", "s"), "krum": ("#b5532a", "--", "^"),
           "bulyan": ("#6a4c93", "-.", "D")}  # fmt: skip


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the figure as PNG and as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    (small, large), (workers, parameters) = figure.subplots(2, 2, height_ratios=(1.15, 1))
    _bars(small, lines, rules.SMALL)
    _bars(large, lines, rules.LARGE)
    _in_workers(workers, lines)
    _in_parameters(parameters, lines)
    save_for_page(figure, path, dpi=130)


def _bars(axes, lines: Sequence[Line], shape: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    """Draw all times at one size, shortest first, on a logarithmic scale."""
    times: dict[str, float] = {}
    for entry in lines:
        if entry.part == "rules" and (entry.n, entry.d) == shape and entry.ours_ms and entry.other_ms:
            name, _, other = entry.what.partition(" / ")
            times[name], times[other] = entry.ours_ms, entry.other_ms
    ordered = sorted(times, key=times.__getitem__, reverse=True)
    ours = {*RULES, *rules.COMPOSED}
    bars = axes.barh(
        ordered,
        [times[name] for name in ordered],
        color=[_OURS if name in ours else _THEIRS for name in ordered],
        hatch=["" if name in ours else "//" for name in ordered],
        edgecolor="white",
    )
    axes.bar_label(bars, [f" {times[name]:,.3g} ms" for name in ordered], color=_INK, fontsize=8)
    if times:
        axes.set_xscale("log")
        axes.set_xlim(right=4 * max(times.values()))
        for label, name in zip(axes.get_yticklabels(), ordered, strict=True):
            label.set_fontweight("bold" if name in ours else "normal")
    axes.set_title(f"{shape[0]} workers, {shape[1]:,} parameters (ours in bold)", fontsize=11)
    axes.set_xlabel("milliseconds (shorter is better)")
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _in_workers(axes, lines: Sequence[Line]) -> None:  # type: ignore[no-untyped-def]
    for name, (words, promise) in growth.PROMISES.items():
        points = [(entry.n or 0, entry.value) for entry in lines if entry.unit == "ns/column" and _rule(entry) == name]
        if not points:
            continue
        colour, style, marker = _STYLES[name]
        axes.plot(*zip(*points, strict=True), style, color=colour, marker=marker, label=name)
        start, value = next((n, value) for n, value in points if n == 25)
        axes.plot(
            [n for n, _ in points], [value * promise(n) / promise(start) for n, _ in points],
            color=colour, alpha=0.35, linewidth=4, label=f"{words}, through n = 25",
        )  # fmt: skip
    _logarithmic(axes, "workers n", "nanoseconds per parameter", f"growth in n (d = {growth.COLUMNS:,})")


def _in_parameters(axes, lines: Sequence[Line]) -> None:  # type: ignore[no-untyped-def]
    for name, (colour, style, marker) in _STYLES.items():
        points = [(entry.d, entry.value) for entry in lines if entry.part == "growth in d" and _rule(entry) == name]
        if points:
            label = "torch.mean(dim=0)" if name == "mean" else name
            axes.plot(*zip(*points, strict=True), style, color=colour, marker=marker, label=label)
    _logarithmic(axes, "parameters d", "milliseconds", f"growth in d (n = {growth.ROWS})")


def _logarithmic(axes, across: str, up: str, title: str) -> None:  # type: ignore[no-untyped-def]
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_lines():
        axes.legend(fontsize=8, frameon=False)


def _rule(entry: Line) -> str:
    return re.split(r"[,:]", entry.what)[0]
