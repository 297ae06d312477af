"""Bring docs/zoo.md up to date: `python docs/update_zoo.py runs/zoo` after `gyroscope sweep zoo`.

Replaces what stands between the markers, draws the heat-maps and writes the CSV file. The words around them stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

import markers

from gyroscope.report import zoo

DOCS = Path(__file__).parent


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
