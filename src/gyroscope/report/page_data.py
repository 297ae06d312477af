"""Everything that the page shows, as one structure that JSON can hold."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, Protocol

from gyroscope.experiments import results
from gyroscope.report import page_layout as layout
from gyroscope.report import page_series as series
from gyroscope.report.page_summary import Moments, Summary, summarise
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

VERDICTS = ("holds", "does not hold", "not measured")
_ENVIRONMENT = ("processor", "platform", "python", "torch", "numpy", "threads", "cuda", "gyroscope", "commit")


class Verdict(Protocol):
    """What was found out about a claim of the paper."""

    @property
    def id(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def statement(self) -> str: ...
    @property
    def quantity(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def threshold(self) -> str: ...
    @property
    def measured(self) -> str: ...
    @property
    def verdict(self) -> str: ...
    @property
    def note(self) -> str: ...


_FIELDS = ("id", "place", "statement", "quantity", "paper", "threshold", "measured", "verdict", "note")


def prepare(runs: Sequence[results.RunResult], verdicts: Sequence[Verdict], title: str) -> dict[str, Any]:
    """The page's data: plain lists, dictionaries, text and finite numbers."""
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
        "claims": [{field: getattr(verdict, field) for field in _FIELDS} for verdict in verdicts],
        "extras": fields,
        "setups": [_setup(line, fields) for line in lines],
        "charts": charts,
        "styles": layout.styles(labels),
    }


def table_lines(runs: Sequence[results.RunResult]) -> list[Summary]:
    """The accuracy table's lines, in the paper's order."""
    return summarise(layout.in_order(results.group(runs)))


def environment(runs: Sequence[results.RunResult]) -> list[tuple[str, str]]:
    """Where the runs were made: every value that a fact has over all their sessions."""
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


def configuration(setup: results.SetupResult) -> str:
    """The TOML text that runs the setup again, with the seeds in a comment."""
    seeds = sorted(set(setup.seeds))
    text = dataclasses.replace(Config.from_mapping(setup.config.experiment()), seed=seeds[0]).to_toml()
    return text if len(seeds) == 1 else f"# seeds {', '.join(map(str, seeds))}\n{text}"


def _setup(line: Summary, fields: Sequence[str]) -> dict[str, Any]:
    setup, config = line.setup, line.setup.config
    metrics = [run.metrics for run in setup.runs]
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
        "extras": [_plain(getattr(config, field)) for field in fields],
        "seeds": sorted(set(setup.seeds)),
        "status": line.status,
        "diverged": line.diverged,
        "best": _moments(line.best),
        "final": _moments(line.final),
        "drop": _finite(line.drop),
        "toml": configuration(setup),
        "accuracy": series.curve([run.evaluations for run in setup.runs], "accuracy", scale=100.0),
        "ratio": series.curve(metrics, "ratio_sent", band="range"),
        "bound": _bound(setup),
        "straightness": series.curve(metrics, "straightness"),
        "heat": series.heat_map([run.weights for run in setup.runs], config.byzantine),
        "ends": _ends(setup),
    }


def _bound(setup: results.SetupResult) -> float | None:
    """The ratio below which the rule is proven resilient; the same at every step."""
    column = setup.runs[0].metrics["ratio_bound"].dropna()
    return _finite(float(column.iloc[0])) if len(column) else None


def _ends(setup: results.SetupResult) -> list[dict[str, Any]]:
    """Where the curves of diverged runs stop."""
    ends = []
    for run in setup.runs:
        if run.status == run_dir.DIVERGED and len(run.evaluations):
            ends.append(
                {
                    "seed": run.config.seed,
                    "step": run.step,
                    "x": int(run.evaluations["step"].iloc[-1]),
                    "y": _finite(100 * run.final_accuracy),
                }
            )
    return ends


def _moments(moments: Moments) -> list[float | None]:
    return [_finite(moments.mean), _finite(moments.deviation)]


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
