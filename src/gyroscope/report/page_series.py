"""From the tables of several seeds to short lists of numbers that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas

MAX_POINTS = 300
MAX_COLUMNS = 100
"""The most points of a curve and the most columns of a heat-map that the page holds."""

Numbers = list[float | None]


def significant(values: Any, digits: int = 5) -> Numbers:
    """Numbers rounded to so many significant digits; None for what JSON cannot say (nan, inf)."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in map(float, values)]


def kept(count: int, limit: int = MAX_POINTS) -> tuple[list[int], int]:
    """Which of so many points to keep: every k-th, about `limit` of them, and the last. Returns them and k."""
    every = max(1, math.ceil(count / limit))
    indices = list(range(0, count, every))
    if count and indices[-1] != count - 1:
        indices.append(count - 1)
    return indices, every


def curve(
    frames: Sequence[pandas.DataFrame], column: str, band: str = "deviation", scale: float = 1.0
) -> dict[str, Any]:
    """A column per step over the seeds: mean and a band around it, thinned.

    band: `deviation` for one standard deviation to either side, `range` for the smallest and the largest value.
    A step that only some seeds reached has the mean of those. With a single seed there is no band.
    """
    import pandas

    by_step = pandas.concat([frame[["step", column]] for frame in frames]).groupby("step")[column]
    mean = by_step.mean() * scale
    indices, every = kept(len(mean))
    chosen: dict[str, Any] = {
        "x": [int(step) for step in mean.index.to_numpy()[indices]],
        "mean": significant(mean.to_numpy()[indices]),
        "every": every,
    }
    if len(frames) < 2:
        return chosen
    if band == "range":
        chosen["low"] = significant((by_step.min() * scale).to_numpy()[indices])
        chosen["high"] = significant((by_step.max() * scale).to_numpy()[indices])
    else:
        chosen["deviation"] = significant((by_step.std(ddof=1).fillna(0.0) * scale).to_numpy()[indices])
    return chosen


def heat_map(frames: Sequence[pandas.DataFrame], byzantine: int) -> dict[str, Any] | None:
    """Each worker's share in the aggregate, the mean over the seeds and over bins of steps; None without shares."""
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
