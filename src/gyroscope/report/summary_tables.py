"""Write the claims and what was measured as Markdown, and what was measured as CSV."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gyroscope._core.files import write_atomically
from gyroscope.experiments.claims import UNMEASURED, VERDICTS, ClaimVerdict, summary
from gyroscope.experiments.results import RunResult
from gyroscope.report import page_layout as layout
from gyroscope.report import text_tables
from gyroscope.report.page_data import table_lines
from gyroscope.report.page_summary import Summary
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.task_metric import ACCURACY, TaskMetric


def write_markdown(runs: Sequence[RunResult], verdicts: Sequence[ClaimVerdict], path: Path) -> Path:
    """Write the claims and the table of setups in GitHub's Markdown; what was not measured comes last."""
    parts = ["# Report", f"{len(runs)} runs. Mean ± standard deviation over the seeds; accuracies in percent."]
    lines = table_lines(runs)
    if shared := layout.common_text([line.setup for line in lines]):
        parts.append(f"All runs: {shared}.")
    measured = [verdict for verdict in verdicts if verdict.verdict != UNMEASURED]
    missing = [verdict for verdict in verdicts if verdict.verdict == UNMEASURED]
    if measured:
        parts += ["## Claims", f"{summary(verdicts)}.", claims_table(measured)]
    parts += ["## Results", accuracy_table(lines)]
    if missing:
        parts += ["## Claims that were not measured", claims_table(missing)]
    write_atomically(path, ("\n\n".join(parts) + "\n").encode())
    return path


def claims_table(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return a line per claim."""
    header = ["verdict", "claim", "statement", "where", "quantity", "paper", "criterion", "measured", "note"]
    rows = [
        [f"{VERDICTS[v.verdict]} {v.verdict}", v.id, v.statement, v.place, v.quantity, v.paper, v.threshold, v.measured,
         v.note]
        for v in verdicts
    ]  # fmt: skip
    return text_tables.markdown_table(header, rows, escape=True)


def accuracy_table(lines: Sequence[Summary]) -> str:
    """Return a line per setup, in the paper's order."""
    fields = layout.varying(line.setup for line in lines)
    mixed = any(line.setup.metric != ACCURACY for line in lines)
    right = ("maximum (%)", "final (%)", "drop (points)", "seeds")
    if mixed:
        right = ("best", "final", "drop", "seeds")
    header = ["task", "attack", "f", "lr", "momentum", "rule", *fields, *["metric"] * mixed, *right, "status"]
    rows = []
    for line in lines:
        c = line.setup.config
        attack = "–" if c.attack == NO_ATTACK else c.attack
        settings = [c.task, attack, str(c.byzantine), layout.rate_text(c.lr), c.momentum, c.rule]
        settings += [str(getattr(c, field)) for field in fields]
        settings += [f"{line.setup.metric.words} ({line.setup.metric.better} is better)"] * mixed
        seeds = str(len(set(line.setup.seeds)))
        rows.append([*settings, str(line.best), str(line.final), line.drop_text, seeds, line.status])
    return text_tables.markdown_table(header, rows, right=("f", *right), escape=True)


def write_csv(runs: Sequence[RunResult], path: Path) -> Path:
    """Write a row per setup: its configuration, the number of seeds, and the results. Accuracies are fractions."""
    lines = table_lines(runs)
    accurate = all(line.setup.metric == ACCURACY for line in lines)
    rows = [_csv_row(line, accurate) for line in lines]
    return text_tables.write_csv(path, [*(row.keys() for row in rows[:1]), *(row.values() for row in rows)])


def _csv_row(line: Summary, accurate: bool) -> dict[str, object]:
    """Return a setup's row; accurate: all setups of the table are measured by their accuracy."""
    metric = line.setup.metric
    best, final = ("max_accuracy", "final_accuracy") if accurate else ("best", "final")
    settings = {key: value for key, value in line.setup.config.experiment().items() if key != "seed"}
    return {
        **settings,
        "seeds": len(set(line.setup.seeds)),
        **({} if accurate else {"metric": metric.name, "better": metric.better}),
        f"{best}_mean": _plain(line.best.mean, metric),
        f"{best}_std": _plain(line.best.deviation, metric),
        f"{final}_mean": _plain(line.final.mean, metric),
        f"{final}_std": _plain(line.final.deviation, metric),
        "drop_points" if accurate else "drop": ""
        if math.isnan(line.drop)
        else f"{line.drop:.4f}"
        if accurate
        else f"{line.drop:.6g}",
        "complete": len(line.setup.runs) - line.diverged,
        "diverged": line.diverged,
    }


def _plain(scaled: float, metric: TaskMetric) -> str:
    if math.isnan(scaled):
        return ""
    return f"{scaled / metric.scale:.6f}" if metric.percent else f"{scaled:.6g}"
