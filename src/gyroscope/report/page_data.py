"""Prepare everything that the page shows as one structure that JSON can hold."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from gyroscope.experiments.claims import VERDICTS, ClaimVerdict
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.report import page_layout as layout
from gyroscope.report import page_series as series
from gyroscope.report.page_summary import Summary, summarise
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

_ENVIRONMENT = ("processor", "platform", "python", "torch", "numpy", "threads", "cuda", "gyroscope", "commit")


def prepare(runs: Sequence[RunResult], verdicts: Sequence[ClaimVerdict], title: str) -> dict[str, Any]:
    """Return the page's data: plain lists, dictionaries, text and finite numbers."""
    lines = table_lines(runs)
    fields = layout.varying(line.setup for line in lines)
    charts = {
        "accuracy": layout.accuracy_blocks(lines, fields),
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
        "environment": environment(runs),
        "verdicts": {word: sum(verdict.verdict == word for verdict in verdicts) for word in VERDICTS},
        "claims": [{name: value for name, value in vars(verdict).items() if name != "check"} for verdict in verdicts],
        "extras": fields,
        "setups": [_setup(line, fields) for line in lines],
        "charts": charts,
        "styles": layout.styles(labels),
    }


def table_lines(runs: Sequence[RunResult]) -> list[Summary]:
    """Return the accuracy table's lines, in the paper's order."""
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


def _setup(line: Summary, fields: Sequence[str]) -> dict[str, Any]:
    setup, config = line.setup, line.setup.config
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
        "best": series.significant(line.best, 6),
        "final": series.significant(line.final, 6),
        "drop": series.significant([line.drop], 6)[0],
        "toml": configuration(setup),
        "accuracy": series.curve([run.evaluations for run in setup.runs], "accuracy", scale=100.0),
        "ratio": series.curve(metrics, "ratio_sent", band="range"),
        "bound": next(iter(series.significant(bounds, 6)), None),
        "straightness": series.curve(metrics, "straightness"),
        "heat": series.heat_map([run.weights for run in setup.runs], config.byzantine),
        "ends": [
            {
                "seed": run.config.seed,
                "step": run.step,
                "x": int(run.evaluations["step"].iloc[-1]),
                "y": series.significant([100 * run.final_accuracy], 6)[0],
            }
            for run in setup.runs  # where the curves of diverged runs stop
            if run.status == run_dir.DIVERGED and len(run.evaluations)
        ],
    }
