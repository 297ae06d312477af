"""Rewrite the tables and the figure of docs/beyond/asynchronous.md.

    python -m benchmarks.pages.update_asynchronous        # see --help

The runs stay in --out; the script does not repeat a complete one. All of them take about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from benchmarks.pages import DOCS, markers
from gyroscope.experiments.grid import parse_seeds
from gyroscope.research.asynchronous import study_runs, study_tables

FIGURE = "asynchronous"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--task", default="mnist", help="mnist, or digits, which needs no download (default: %(default)s)"
    )
    parser.add_argument("--seeds", default="1-2", help="(default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs/asynchronous"), help="(default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--no-runs", action="store_true", help="make tables and figure of the runs that are there")
    options = parser.parse_args()
    todo = study_runs.study_runs(options.task, parse_seeds(options.seeds))
    for left, name in () if options.no_runs else study_runs.run_all(todo, options.out, options.jobs):
        print(f"{left} left: {name}", flush=True)
    runs = study_tables.load(todo, options.out)
    with tempfile.TemporaryDirectory() as folder:
        picture = study_tables.figure(runs, Path(folder) / FIGURE)[0]
        shutil.copy(picture, DOCS / "beyond" / picture.name)
    markers.replace(
        DOCS / "beyond" / "asynchronous.md",
        {
            "staleness": study_tables.staleness_table(runs),
            "speeds": study_tables.speeds_table(runs),
            "attacks": study_tables.attacks_table(runs),
            "dampening": study_tables.dampening_table(runs),
        },
    )


if __name__ == "__main__":
    main()
