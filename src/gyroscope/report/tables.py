"""The claims and the accuracies as Markdown, and the accuracies as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

from gyroscope.experiments.results import RunResult
from gyroscope.report import page_layout as layout
from gyroscope.report.page import write_whole
from gyroscope.report.page_data import VERDICTS, Verdict, table_lines
from gyroscope.report.page_summary import NO_ATTACK, Summary

SYMBOLS = {"holds": "✓", "does not hold": "✗", "not measured": "–"}


def write_markdown(runs: Sequence[RunResult], verdicts: Sequence[Verdict], path: str | Path) -> Path:
    """The claims and the accuracy table in GitHub's Markdown."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = ["# Report", f"{len(runs)} runs. Accuracies in percent, mean ± standard deviation over the seeds."]
    if verdicts:
        parts += ["## Claims", claims_table(verdicts)]
    parts += ["## Accuracies", accuracy_table(table_lines(runs))]
    write_whole(path, ("\n\n".join(parts) + "\n").encode())
    return path


def claims_table(verdicts: Sequence[Verdict]) -> str:
    """A line per claim, and above it how many hold."""
    counts = ", ".join(_counted(sum(v.verdict == word for v in verdicts), word) for word in VERDICTS)
    rows = [
        [
            f"{SYMBOLS.get(v.verdict, '')} {v.verdict}".strip(), v.id, v.statement, v.place, v.quantity, v.paper,
            v.threshold, v.measured, v.note,
        ]
        for v in verdicts
    ]  # fmt: skip
    header = ["verdict", "claim", "statement", "where", "quantity", "paper", "criterion", "measured", "note"]
    return f"{len(verdicts)} claims: {counts}.\n\n{_table(header, rows)}"


def _counted(count: int, verdict: str) -> str:
    plurals = {"holds": "hold", "does not hold": "do not hold"}
    return f"{count} {verdict if count == 1 else plurals.get(verdict, verdict)}"


def accuracy_table(lines: Sequence[Summary]) -> str:
    """A line per setup, in the paper's order."""
    fields = layout.varying(line.setup for line in lines)
    header = [
        "task", "attack", "f", "lr", "momentum", "rule", *fields, "maximum (%)", "final (%)", "drop (points)", "seeds",
        "status",
    ]  # fmt: skip
    rows = []
    for line in lines:
        c = line.setup.config
        rows.append(
            [
                c.task, c.attack if c.attack != NO_ATTACK else "–", str(c.byzantine), layout.rate_text(c.lr),
                c.momentum, c.rule, *(str(getattr(c, field)) for field in fields), str(line.best), str(line.final),
                line.drop_text, str(len(set(line.setup.seeds))), line.status,
            ]
        )  # fmt: skip
    return _table(header, rows, right=("f", "maximum (%)", "final (%)", "drop (points)", "seeds"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    rule = ["---:" if name in right else "---" for name in header]
    return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in [header, rule, *rows])


def _cell(text: str) -> str:
    """Text that stays in its cell and is not taken for HTML or Markdown."""
    flat = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", flat)


def write_csv(runs: Sequence[RunResult], path: str | Path) -> Path:
    """A row per setup: its configuration, the number of seeds, and what came of it. Accuracies are fractions."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.StringIO(newline="")
    writer: csv.DictWriter[str] | None = None
    for line in table_lines(runs):
        row = _csv_row(line)
        if writer is None:
            writer = csv.DictWriter(buffer, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    write_whole(path, buffer.getvalue().encode())
    return path


def _csv_row(line: Summary) -> dict[str, object]:
    settings = {key: value for key, value in line.setup.config.experiment().items() if key != "seed"}
    return {
        **settings,
        "seeds": len(set(line.setup.seeds)),
        "max_accuracy_mean": _fraction(line.best.mean),
        "max_accuracy_std": _fraction(line.best.deviation),
        "final_accuracy_mean": _fraction(line.final.mean),
        "final_accuracy_std": _fraction(line.final.deviation),
        "drop_points": "" if math.isnan(line.drop) else f"{line.drop:.4f}",
        "complete": len(line.setup.runs) - line.diverged,
        "diverged": line.diverged,
    }


def _fraction(percent: float) -> str:
    return "" if math.isnan(percent) else f"{percent / 100:.6f}"
