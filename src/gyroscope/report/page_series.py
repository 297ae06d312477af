"""Reduce the tables of several seeds to short lists of numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas

MAX_POINTS = 300
"""The most points of a curve that the page holds, but for the last one."""
MAX_COLUMNS = 100
"""The most columns of a heat-map."""


def significant(values: Iterable[float], digits: int = 5) -> list[float | None]:
    """Round numbers to so many significant digits; None stands for what JSON lacks (NaN, infinity)."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in map(float, values)]


def curve(
    frames: Sequence[pandas.DataFrame], column: str, band: str = "deviation", scale: float = 1.0
) -> dict[str, Any]:
    """Return the mean of a column per step over the seeds and a band around it, thinned to every k-th step.

    Args:
        frames: One table per seed. A step that only some seeds reached has the mean of those.
        band: `deviation` for one standard deviation to either side, `range` for the smallest and the largest value.
            A single seed has no band.
    """
    import pandas

    by_step = pandas.concat([frame[["step", column]] for frame in frames]).groupby("step")[column]
    mean = by_step.mean()
    every = max(1, math.ceil(len(mean) / MAX_POINTS))
    kept = sorted({*range(0, len(mean), every), *range(len(mean))[-1:]})

    def thinned(values: pandas.Series[float]) -> list[float | None]:
        return significant((values * scale).to_numpy()[kept])

    chosen = {"x": [int(step) for step in mean.index.to_numpy()[kept]], "mean": thinned(mean), "every": every}
    if len(frames) < 2:
        return chosen
    if band == "range":
        return {**chosen, "low": thinned(by_step.min()), "high": thinned(by_step.max())}
    return {**chosen, "deviation": thinned(by_step.std(ddof=1).fillna(0.0))}


def heat_map(frames: Sequence[pandas.DataFrame], byzantine: int) -> dict[str, Any] | None:
    """Return each worker's share in the aggregate, averaged over the seeds and over bins of steps.

    None stands for a rule that has no shares.
    """
    import pandas

    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return None
    shares = pandas.concat(filled).groupby("step").mean().sort_index()
    width = math.ceil(len(shares) / MAX_COLUMNS)
    bins = np.arange(len(shares)) // width
    binned = shares.groupby(bins).mean()
    steps = pandas.Series(shares.index.to_numpy(dtype=float)).groupby(bins).mean()
    total = float(np.nanmean(shares.to_numpy().sum(axis=1)))
    taken = float(np.nanmean(shares.iloc[:, shares.shape[1] - byzantine :].to_numpy().sum(axis=1)))
    return {
        "x": significant(steps.to_numpy()),
        "z": [significant(row, 3) for row in binned.to_numpy().T],
        "width": width,
        "byzantine_share": significant([taken / total if total else math.nan])[0],
    }
