"""`gyroscope report`: figures, tables, verdicts and a page from a folder of runs."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError, RunDirectoryError, UnknownNameError

if TYPE_CHECKING:
    from gyroscope.report.figures import FigureOptions
    from gyroscope.report.heat_maps import Axes

FORMATS = ("html", "md", "csv", "figures", "latex", "seeds", "comparisons")
"""What can be written; `figures` with or without the others."""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "report",
        help="one HTML page, tables and figures from a folder of runs",
        description="Reads every ended run below DIR, checks the paper's claims against them, and writes DIR/report/.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("folder", metavar="DIR", help="a folder of run directories, as reproduce and sweep write it")
    command.add_argument("--format", default="html,md,csv", metavar="LIST",
                         help=f"what to write, of {', '.join(FORMATS)} (default: %(default)s)")  # fmt: skip
    command.add_argument("--out", metavar="DIR", help="where to write (default: DIR/report)")
    drawn = command.add_argument_group("figures")
    drawn.add_argument("--figure-size", metavar="WxH", help="width and height in inches, such as 3.5x2.6")
    drawn.add_argument("--title", metavar="TEXT", help="in place of each figure's own title; '' for none")
    drawn.add_argument("--heat-map", metavar="ROWS,COLUMNS",
                       help="the two settings of heat-maps (default: rule,attack, or the first that vary)")  # fmt: skip
    drawn.add_argument("--accuracies", metavar="LOW-HIGH", help="the range of the axis, in percent (default: 0-100)")
    command.set_defaults(run=_report)


_EPILOG = """\
what each format writes:
  html          index.html: one page with claims, charts and tables, which opens without a network
  md, csv       report.md, summary.csv: a line per setup, over its seeds
  seeds         seeds.csv: a line per run
  comparisons   comparisons.csv: every two rules, placements of momentum or values of another setting, where all else
                is equal, seed by seed: mean difference of the best value, its 95 % confidence interval and the p-value
                of a paired t-test
  latex         report.tex: the table of setups for \\input (with booktabs); settings that all share are in a comment;
                pivot.tex: rules as rows, attacks as columns, the best of a column in bold; a table of the maxima
                and one of the final values for each value of the other settings that differ (task, n, f, lr, ...)
  figures       figures/: the paper's figures, and heat-maps of the settings that vary, as PNG, PDF and SVG

example:
    gyroscope report runs/mine --format html,latex,seeds,comparisons
    gyroscope report runs/mine --format html,figures --heat-map rule,momentum
"""


def _report(options: argparse.Namespace) -> int:
    from gyroscope.report import heat_maps

    formats = [name.strip() for name in options.format.split(",") if name.strip()]
    for name in formats:
        if name not in FORMATS:
            raise UnknownNameError("format", name, FORMATS)
    axes = heat_maps.parse_axes(options.heat_map)
    write(Path(options.folder), formats, Path(options.out) if options.out else None, _figure_options(options), axes)
    return 0


def _figure_options(options: argparse.Namespace) -> FigureOptions:
    from gyroscope.report.figures import FigureOptions

    size = _pair(options.figure_size, "x", "--figure-size", "3.5x2.6", 0.5, 100)
    accuracies = _pair(options.accuracies, "-", "--accuracies", "80-100", 0, 100)
    if accuracies and accuracies[0] >= accuracies[1]:
        raise ConfigError(f"--accuracies {options.accuracies}: write the smaller number first, as in 80-100")
    return FigureOptions(size, options.title, accuracies or (0.0, 100.0))


def _pair(
    text: str | None, between: str, name: str, example: str, low: float, high: float
) -> tuple[float, float] | None:
    """Return the two numbers of an option."""
    if text is None:
        return None
    try:
        first, second = (float(part) for part in text.split(between))
    except ValueError:
        raise ConfigError(f"cannot read {name} {text!r}: write {example}") from None
    if not (low <= first <= high and low <= second <= high):
        raise ConfigError(f"{name} {text}: both numbers must be from {low:g} to {high:g}")
    return first, second


def write(
    folder: Path,
    formats: Sequence[str],
    out: Path | None = None,
    drawn: FigureOptions | None = None,
    axes: Axes | None = None,
    quiet: bool = False,
) -> None:
    """Write the report, and print where it is and how many claims hold.

    Args:
        folder: where the runs are.
        formats: what to write, of FORMATS.
        out: where to write; `report` in the folder without it.
        drawn: how figures look.
        axes: the two settings of heat-maps.
        quiet: show no progress.

    Raises:
        RunDirectoryError: the folder has no run that has ended.
    """
    from gyroscope.experiments import claims, results
    from gyroscope.report import heat_maps, latex_tables, page, paper_figures, paper_tables, summary_tables
    from gyroscope.runs.progress import overall
    from gyroscope.runs.run_dir import disk_errors

    runs = results.load(folder, lambda path, why: print(f"left out: {path}: {why}", file=sys.stderr))
    if not runs:
        raise RunDirectoryError(
            f"there is no ended run below {folder}: run gyroscope reproduce, sweep or train first, and resume what was "
            "interrupted"
        )
    out = out or folder / "report"
    started = time.monotonic()
    verdicts = claims.judge(claims.CLAIMS, runs)
    if all(verdict.verdict == claims.UNMEASURED for verdict in verdicts):
        verdicts = []  # a user's own sweep, not the paper's
    tables: dict[str, Callable[[], object]] = {
        "html": lambda: page.write_page(runs, verdicts, out / "index.html", axes=axes),
        "md": lambda: summary_tables.write_markdown(runs, verdicts, out / "report.md"),
        "csv": lambda: summary_tables.write_csv(runs, out / "summary.csv"),
        "seeds": lambda: paper_tables.write_seeds(runs, out / "seeds.csv"),
        "comparisons": lambda: paper_tables.write_comparisons(runs, out / "comparisons.csv"),
        "latex": lambda: (
            latex_tables.write_latex(runs, out / "report.tex"),
            latex_tables.write_pivots(runs, out / "pivot.tex"),
        ),
    }
    with disk_errors(out, "report"):
        out.mkdir(parents=True, exist_ok=True)
        for name, write_table in tables.items():
            if name in formats:
                write_table()
        if "figures" in formats:
            with contextlib.nullcontext(lambda *_: None) if quiet else overall() as advance:
                paper_figures.write_all(runs, out / "figures", advance, drawn)
                heat_maps.write_all(runs, out / "figures", advance, drawn, axes)
    print(f"{len(runs)} runs" + (f"; of the paper's {claims.summary(verdicts)}" if verdicts else ""))
    print(f"report: {out / 'index.html' if 'html' in formats else out}   ({time.monotonic() - started:.0f} s)")
