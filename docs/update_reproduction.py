"""Bring docs/reproduction.md up to date with a folder of runs: `python docs/update_reproduction.py runs/paper`.

Replaces what stands between the markers, copies the main figures and writes the summary. The words around them stay.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import markers

from gyroscope.experiments import claims, results
from gyroscope.report import paper_figures
from gyroscope.report.page_data import table_lines
from gyroscope.report.tables import accuracy_table, write_csv

DOCS = Path(__file__).parent
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
)


def main(folder: Path) -> None:
    runs = results.load(folder)
    markers.replace(
        DOCS / "reproduction.md", {"claims": claims_table(runs), "accuracies": accuracy_table(table_lines(runs))}
    )
    target = DOCS / "reproduction"
    target.mkdir(exist_ok=True)
    write_csv(runs, target / "summary.csv")
    drawn = folder / "report" / "figures"
    paper_figures.write_all(runs, drawn)
    for name in FIGURES:
        if (drawn / f"{name}.png").exists():
            shutil.copy(drawn / f"{name}.png", target / f"{name}.png")


def claims_table(runs: list[results.RunResult]) -> str:
    """What a reader wants at a glance: the verdict first; where it stands and the criterion last."""
    verdicts = claims.judge(claims.CLAIMS, runs)
    symbols = {claims.HOLDS: "✓", claims.FAILS: "✗", claims.UNMEASURED: "–"}
    counts = ", ".join(f"{sum(v.verdict == word for v in verdicts)} {word}" for word in symbols)
    lines = [
        f"Of {len(verdicts)} claims: {counts}.",
        "",
        "| | claim | paper | measured | criterion | where |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {symbols[v.verdict]} {v.verdict} | {v.statement} | {v.paper} | {v.measured} | {v.threshold} | {v.place} |"
        for v in verdicts
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
