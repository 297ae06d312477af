"""Prepare everything that the page shows as one structure that JSON can hold."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gyroscope.experiments.claims import VERDICTS, ClaimVerdict
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report import page_layout as layout
from gyroscope.report.figures import cell_colours, column_by_step
from gyroscope.report.heat_maps import SCALE, Axes, HeatMap, heat_maps
from gyroscope.report.page_summary import Summary, summarise
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

if TYPE_CHECKING:
    import pandas

MAX_POINTS = 300
"""The most points of a curve that the page holds, but for the last one."""
MAX_COLUMNS = 100
"""The most columns of a heat-map."""
_ENVIRONMENT = ("processor", "platform", "python", "torch", "numpy", "threads", "cuda", "gyroscope", "commit")


def prepare(
    runs: Sequence[RunResult], verdicts: Sequence[ClaimVerdict], title: str, axes: Axes | None = None
) -> dict[str, Any]:
    """Return the page's data: plain lists, dictionaries, text and finite numbers."""
    lines = table_lines(runs)
    fields = layout.varying(line.setup for line in lines)
    charts = {
        "measured": layout.measured_blocks(lines, fields),
        "ratio": layout.placement_blocks(lines, fields, "ratio"),
        "straightness": layout.placement_blocks(lines, fields, "straightness"),
    }
    labels = (label for blocks in charts.values() for block in blocks for label in block["labels"])
    return {
        "title": title,
        "runs": len(runs),
        "seeds": sorted({run.config.seed for run in runs}),
        "tasks": list(dict.fromkeys(line.setup.config.task for line in lines)),
        "diverged": sum(line.diverged for line in lines),
        "common": layout.common_text([line.setup for line in lines]),
        "environment": environment(runs),
        "verdicts": {word: sum(verdict.verdict == word for verdict in verdicts) for word in VERDICTS},
        "claims": [{name: value for name, value in vars(verdict).items() if name != "check"} for verdict in verdicts],
        "extras": fields,
        "setups": [_setup(line, fields) for line in lines],
        "charts": charts,
        "heat_maps": [_heat_map(one) for one in heat_maps(runs, axes)],
        "styles": layout.styles(labels),
    }


def table_lines(runs: Sequence[RunResult]) -> list[Summary]:
    """Return the lines of the table of setups, in the paper's order."""
    return summarise(layout.in_order(group(runs)))


def environment(runs: Sequence[RunResult]) -> list[tuple[str, str]]:
    """Return where the runs were made: every value that a fact has over all their sessions."""
    seen: dict[str, dict[str, None]] = {key: {} for key in _ENVIRONMENT}
    for run in runs:
        try:
            sessions = json.loads((run.path / run_dir.ENVIRONMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        for session in sessions:
            for key in _ENVIRONMENT:
                if session.get(key) is not None:
                    seen[key][str(session[key])] = None
    return [(key, ", ".join(values)) for key, values in seen.items() if values]


def configuration(setup: SetupResult) -> str:
    """Return the TOML text that runs the setup again, with the seeds in a comment."""
    seeds = sorted(set(setup.seeds))
    text = dataclasses.replace(Config.from_mapping(setup.config.experiment()), seed=seeds[0]).to_toml()
    return text if len(seeds) == 1 else f"# seeds {', '.join(map(str, seeds))}\n{text}"


def _heat_map(one: HeatMap) -> dict[str, Any]:
    """Return a heat-map with the colours of its cells; a cell without a value has none."""
    cells = [
        [
            [dict(zip(("text", "fill", "ink"), (one.text(v), *cell_colours(s, SCALE)), strict=True)) for v, s in row]
            for row in (zip(*lines, strict=True) for lines in zip(panel.values, shades, strict=True))
        ]
        for panel, shades in zip(one.panels, one.shades(), strict=True)
    ]
    panels = [{"title": panel.title, "cells": each} for panel, each in zip(one.panels, cells, strict=True)]
    return {"title": one.title, "axes": one.axes, "rows": one.rows, "columns": one.columns, "panels": panels}


def _setup(line: Summary, fields: Sequence[str]) -> dict[str, Any]:
    setup, config, metric = line.setup, line.setup.config, line.setup.metric
    metrics = [run.metrics for run in setup.runs]
    extras = [getattr(config, field) for field in fields]
    bounds = metrics[0]["ratio_bound"].dropna().iloc[:1]  # the same at every step
    return {
        "label": layout.full_label(setup, fields),
        "task": config.task,
        "attack": config.attack,
        "byzantine": config.byzantine,
        "workers": config.workers,
        "rule": config.rule,
        "lr": layout.rate_text(config.lr),
        "rate": -layout.rate_rank(config.lr)[0],
        "momentum": config.momentum,
        "extras": [str(value) if isinstance(value, float) and not math.isfinite(value) else value for value in extras],
        "seeds": sorted(set(setup.seeds)),
        "status": line.status,
        "diverged": line.diverged,
        "best": significant(line.best[:2], 6),
        "final": significant(line.final[:2], 6),
        "drop": significant([line.drop], 6)[0],
        "toml": configuration(setup),
        "metric": {"words": metric.words, "percent": metric.percent, "extreme": metric.extreme},
        "measured": curve([run.evaluations for run in setup.runs], metric.name, scale=metric.scale),
        "ratio": curve(metrics, "ratio_sent", band="range"),
        "bound": next(iter(significant(bounds, 6)), None),
        "straightness": curve(metrics, "straightness"),
        "heat": heat_map([run.weights for run in setup.runs], config.byzantine),
        "ends": [
            {
                "seed": run.config.seed,
                "step": run.step,
                "x": int(run.evaluations["step"].iloc[-1]),
                "y": significant([metric.scale * run.final], 6)[0],
            }
            for run in setup.runs  # where the curves of diverged runs stop
            if run.status == run_dir.DIVERGED and len(run.evaluations)
        ],
    }


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
    by_step = column_by_step(frames, column)
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
    """Return each worker's share in the aggregate, over seeds and bins of steps; None for rules without shares."""
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
