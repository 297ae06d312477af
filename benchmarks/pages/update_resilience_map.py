"""Rewrite docs/zoo.md, its heat-maps and its CSV file after `gyroscope sweep map`.

python -m benchmarks.pages.update_resilience_map runs/map
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.pages import DOCS, markers
from gyroscope.experiments import resilience_map
from gyroscope.experiments.resilience_map import BYZANTINE, WORKERS
from gyroscope.report import map_report
from gyroscope.report.map_report import MapPair, columns, drop_in, panels, points, short
from gyroscope.report.text_tables import markdown_table
from gyroscope.runs.config import NO_ATTACK

_SHOWN = 12


def main(folder: Path, docs: Path = DOCS) -> None:
    maps = MapPair(folder)
    markers.replace(
        docs / "zoo.md",
        {
            "verdicts": map_report.verdicts(maps),
            "size": size(maps),
            "best": best_table(maps),
            "placements": placements(maps),
            "tables": whole_tables(maps),
            "infeasible": infeasible_list(),
        },
    )
    map_report.write_csv(maps, docs / "zoo" / "zoo.csv")
    map_report.draw(maps, docs / "zoo")


def size(maps: MapPair) -> str:
    """Return how large the map is, in words."""
    found = [len(cell.drops) for result in maps.best.defences for cell in result.cells.values()]
    missing = found.count(0)
    remark = f" {missing} cells (marked ?) are not measured yet." if missing else ""
    return (
        f"The map has {len(found):,} cells: {len(resilience_map.defences())} defences (those of them that exist for "
        f"f), with both placements of momentum, against {len(resilience_map.attack_specs())} attacks and none; f = "
        f"{' and '.join(map(str, BYZANTINE))} of {WORKERS} workers; {sum(found):,} runs and "
        f"{sum(map(len, maps.best.baselines.values()))} unattacked averages to compare with.{remark}"
    )


def placements(maps: MapPair) -> str:
    """Return how often momentum at the workers has the smaller worst case, in words."""
    lines = []
    for f in BYZANTINE:
        found = {(r.defence, r.placement): r for r in maps.best.ranking(f)}
        gains = []
        for defence in resilience_map.defences():
            server, workers = (found.get((defence.name, place)) for place in ("server", "workers"))
            # A mean over more seeds has the smaller worst case, so only common seeds count.
            if server and workers and (seeds := server.seeds & workers.seeds):
                gains.append(server.worst_over(seeds) - workers.worst_over(seeds))
        if gains:
            lines.append(
                f"With f = {f}, {sum(gain > 0 for gain in gains)} of {len(gains)} defences have a smaller worst case "
                f"with momentum at the workers; the middle one gains {points(sorted(gains)[len(gains) // 2])}."
            )
    return " ".join(lines)


def best_table(maps: MapPair) -> str:
    """Return the best few for each f, and what their order goes by."""
    right = ("f", "seeds", "worst case (points)", "mean over the attacks", "unattacked")
    header = [
        "f", "defence", "momentum at the", "seeds", "worst case (points)", "to", "mean over the attacks", "unattacked"
    ]  # fmt: skip
    shown = {f: maps.best.ranking(f)[:_SHOWN] for f in BYZANTINE}
    rows = [
        [str(f), f"`{r.defence}`{' (trusts)' if r.trusting else ''}", r.placement, str(len(r.seeds)),
         f"{r.worst.drop:.1f}", f"`{r.worst.cell.attack}`", f"{r.mean:.1f}", short(r.cells[NO_ATTACK].drop)]
        for f, results in shown.items()
        for r in results
    ]  # fmt: skip
    order = "Sorted by f, then by the worst case."
    if any(len({len(result.seeds) for result in results}) > 1 for results in shown.values()):
        order = (
            "Sorted by f; then the finalists, who ran with more seeds, by their worst case over all of these; then the "
            "others, by the worst case with the seeds that all have. So a smaller figure may stand below larger ones "
            "that rest on more seeds: with its own seeds alone those were smaller still."
        )
    return f"{order}\n\n{markdown_table(header, rows, right)}"


def whole_tables(maps: MapPair) -> str:
    """Return every drop, a table per f and placement, folded."""
    header = ["defence", "worst", *(f"`{column}`" for column in columns()[1:])]
    parts = []
    for f, place in panels():
        rows = []
        for r in maps.of(f, place):
            worst = f"{r.worst.drop:.1f}" if r.seeds else "?"
            rows.append([f"`{r.defence}`", worst, *(short(drop_in(r, column)) for column in columns()[1:])])
        table = markdown_table(header, rows, right=header[1:])
        title = f"f = {f}, momentum at the {place}"
        parts.append(f"<details><summary>{title}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def infeasible_list() -> str:
    """Return the defences that were not run, because they do not exist for an f."""
    lines = [f"- f = {f}: `{defence}`. {reason}" for defence, f, reason in resilience_map.infeasible()]
    return "\n".join(lines) or "- nothing"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
