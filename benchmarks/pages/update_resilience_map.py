"""Rewrite docs/zoo.md, its heat-maps and its CSV file after `gyroscope sweep map`.

python -m benchmarks.pages.update_resilience_map runs/zoo
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pages import DOCS, markers
from gyroscope.report import map_report


def main(folder: Path, docs: Path = DOCS) -> None:
    maps = map_report.MapPair(folder)
    markers.replace(
        docs / "zoo.md",
        {
            "verdicts": map_report.verdicts(maps),
            "size": map_report.size(maps),
            "best": map_report.best_table(maps),
            "placements": map_report.placements(maps),
            "tables": map_report.whole_tables(maps),
            "infeasible": map_report.infeasible_list(),
        },
    )
    map_report.write_csv(maps, docs / "zoo" / "zoo.csv")
    map_report.draw(maps, docs / "zoo")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
