"""Rewrite docs/zoo.md, its heat-maps and its CSV file after `gyroscope sweep map`.

python -m benchmarks.pages.update_resilience_map runs/zoo
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pages import DOCS, markers
from gyroscope.report import zoo


def main(folder: Path, docs: Path = DOCS) -> None:
    maps = zoo.Maps(folder)
    markers.replace(
        docs / "zoo.md",
        {
            "verdicts": zoo.verdicts(maps),
            "size": zoo.size(maps),
            "best": zoo.best_table(maps),
            "placements": zoo.placements(maps),
            "tables": zoo.whole_tables(maps),
            "infeasible": zoo.infeasible_list(),
        },
    )
    zoo.write_csv(maps, docs / "zoo" / "zoo.csv")
    zoo.draw(maps, docs / "zoo")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
