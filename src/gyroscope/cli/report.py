"""`gyroscope report`: figures, tables, verdicts and a page from a folder of runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError, RunDirectoryError

FORMATS = ("html", "md", "csv", "figures")


def add(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="one HTML page, tables and figures from a folder of runs",
        description="Reads every ended run below DIR, checks the paper's claims against them, and writes DIR/report/.",
    )
    command.add_argument("folder", metavar="DIR", help="a folder of run directories, as reproduce and sweep write it")
    command.add_argument("--format", default="html,md,csv", metavar="LIST",
                         help=f"what to write, of {', '.join(FORMATS)} (default: %(default)s)")  # fmt: skip
    command.add_argument("--out", metavar="DIR", help="where to write (default: DIR/report)")
    command.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    formats = [name.strip() for name in options.format.split(",") if name.strip()]
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"unknown format {name!r}: choose of {', '.join(FORMATS)}")
    write(Path(options.folder), formats, Path(options.out) if options.out else None)
    return 0


def write(folder: Path, formats: Sequence[str], out: Path | None = None) -> None:
    """Write the report, and print where it is and how many claims hold."""
    from gyroscope.experiments import claims, results
    from gyroscope.report import page, paper_figures, summary_tables
    from gyroscope.runs.progress import overall

    runs = results.load(folder)
    if not runs:
        raise RunDirectoryError(
            f"there is no ended run below {folder}: run gyroscope reproduce, sweep or train first, and resume what was "
            "interrupted"
        )
    out = out or folder / "report"
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    verdicts = claims.judge(claims.CLAIMS, runs)
    counts = {name: sum(verdict.verdict == name for verdict in verdicts) for name in claims.VERDICTS}
    if counts[claims.UNMEASURED] == len(verdicts):
        verdicts = []  # a user's own sweep, not the paper's
    if "html" in formats:
        page.write_page(runs, verdicts, out / "index.html")
    if "md" in formats:
        summary_tables.write_markdown(runs, verdicts, out / "report.md")
    if "csv" in formats:
        summary_tables.write_csv(runs, out / "summary.csv")
    if "figures" in formats:
        with overall() as advance:
            paper_figures.write_all(runs, out / "figures", advance)
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{len(runs)} runs" + (f"; of the paper's {len(verdicts)} claims: {said}" if verdicts else ""))
    print(f"report: {out / 'index.html' if 'html' in formats else out}   ({time.monotonic() - started:.0f} s)")
