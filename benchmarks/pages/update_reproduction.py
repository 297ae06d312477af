"""Rewrite docs/reproduction.md from a folder of runs, copy its figures and write its summary.csv.

python -m benchmarks.pages.update_reproduction runs/paper
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from benchmarks.pages import DOCS, markers
from gyroscope.experiments import claims, results
from gyroscope.report import paper_figures
from gyroscope.report.page_data import table_lines
from gyroscope.report.summary_tables import accuracy_table, write_csv

FIGURES = (
    "mnist-little-f_12",
    "mnist-little-f_24",
    "mnist-empire-f_12",
    "mnist-empire-f_24",
    "mnist-little-krum-f_12-lr_0.5-ratio",
    "mnist-little-krum-f_12-lr_0.02-ratio",
    "mnist-empire-krum-f_24-lr_0.5-ratio",
    "mnist-little-krum-f_12-lr_0.5-straightness",
    "mnist-little-krum-f_12-lr_0.02-straightness",
    "cifar10-little-f_5",
    "cifar10-little-f_11",
    "cifar10-empire-f_5",
    "cifar10-empire-f_11",
    "cifar10-empire-bulyan-f_5-lr_0.01-ratio",
    "cifar10-empire-bulyan-f_5-lr_0.001-ratio",
)


def main(folder: Path) -> None:
    runs = markers.runs_in(folder)
    markers.replace(
        DOCS / "reproduction.md", {"claims": claims_table(runs), "accuracies": accuracy_table(table_lines(runs))}
    )
    target = DOCS / "reproduction"
    target.mkdir(exist_ok=True)
    write_csv(runs, target / "summary.csv")
    drawn = folder / "report" / "figures"
    paper_figures.write_all(runs, drawn)
    for name in FIGURES:
        for path in (drawn / f"{name}.{kind}" for kind in ("png", "svg")):
            if path.exists():
                shutil.copy(path, target)


def claims_table(runs: list[results.RunResult]) -> str:
    """Return the claims as Markdown: the verdict first, the criterion and the place in the paper last."""
    verdicts = claims.judge(claims.CLAIMS, runs)
    lines = [
        f"Of {claims.summary(verdicts)}.",
        "",
        "| | claim | paper | measured | criterion | where |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {' '.join([claims.VERDICTS[v.verdict], v.verdict, *_size(v.note)])} | {v.statement} | {v.paper} "
        f"| {v.measured} | {v.threshold} | {v.place} |"
        for v in verdicts
    ]
    return "\n".join(lines)


def _size(note: str) -> list[str]:
    """Return the part of a claim's note that belongs beside its verdict, in brackets."""
    return [f"({part})" for part in note.split("; ") if part.startswith("at reduced size")]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
