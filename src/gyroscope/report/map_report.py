"""Present the resilience map in words, as tables, as heat-maps and as CSV. Every figure and every name is computed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from gyroscope._core.files import write_atomically
from gyroscope.experiments import resilience_map, resilience_ranking
from gyroscope.experiments.grid import BASELINE, PLACES
from gyroscope.experiments.resilience_map import BYZANTINE, WORKERS
from gyroscope.experiments.resilience_ranking import DefenceResult, ResilienceMap, SeedNoise
from gyroscope.report import markdown
from gyroscope.report.figures import new_figure, save_as
from gyroscope.runs.config import NO_ATTACK

_SHOWN = 12
_DARK = 0.55
"""From this part of the scale on, figures are white on dark."""


class MapPair:
    """The map by best and by final accuracy, from a folder of runs."""

    def __init__(self, folder: str | Path) -> None:
        runs = resilience_ranking.read(folder)
        self.best, self.final = ResilienceMap(runs, "best"), ResilienceMap(runs, "final")

    @property
    def measured(self) -> bool:
        """Whether there is a single drop to show."""
        return any(cell.drops for result in self.best.defences for cell in result.cells.values())

    def of(self, f: int, placement: str) -> list[DefenceResult]:
        """Return the defences with this f and placement, the best one first; those without all their runs last."""
        ranked = [result for result in self.best.ranking(f) if result.placement == placement]
        rest = [r for r in self.best.defences if (r.f, r.placement, r.complete) == (f, placement, False)]
        return ranked + rest


def verdicts(maps: MapPair) -> str:
    """Return a paragraph for each f: which defence loses least in the worst case."""
    return "\n\n".join(f"**f = {f} of {WORKERS}:** {_verdict(maps, f)}" for f in BYZANTINE)


def _verdict(maps: MapPair, f: int) -> str:
    everyone = maps.best.ranking(f)
    ranking = [result for result in everyone if not result.trusting]
    if not ranking:
        if any(maps.best.baselines.values()):
            return "not measured: no defence has met every attack with a seed that the unattacked averages have, too."
        return (
            "not measured: the unattacked averages to compare with are missing "
            "(gyroscope sweep map --only average-none-f_0)."
        )
    first, others = ranking[0], ranking[1:]
    noise = maps.best.noise(f)
    text = [
        f"**{_name(first)} loses least in the worst case over all {len(first.attacked)} attacks: "
        f"{_points(first.worst.drop)} of maximum accuracy, to `{first.worst.cell.attack}`.**"
    ]
    if others:
        text.append(f"The runner-up, {_name(others[0])}, loses {_worst(others[0])}.")
    else:
        text.append("No other has met all of them: there is nothing to compare it with.")
    there = sum(result.f == f and not result.trusting for result in maps.best.defences)
    if len(ranking) < there:
        text.append(f"(Of {there} defences and placements {len(ranking)} are measured.)")
    undefended = [result.worst.drop for result in ranking if result.defence == BASELINE]
    if undefended:
        text.append(f"Without a defence the worst attack costs {_points(max(undefended))}.")
    text.append(_noise_text(noise))
    if noise.known and others:
        text.append(_near_text(first, others, noise))
    tried = {(r.defence, r.placement) for r in ranking if r.seeds >= first.seeds}  # one lucky seed does not win
    candidates = [r for r in maps.final.defences if r.f == f and (r.defence, r.placement) in tried]
    by_final = min(candidates, key=lambda r: (r.worst_over(first.seeds), r.mean))
    same = (by_final.defence, by_final.placement) == (first.defence, first.placement)
    winner = "it, too," if same else _name(by_final)
    text.append(f"By final instead of maximum accuracy {winner} loses least: {_worst(by_final)}.")
    if everyone[0].trusting:
        text.append(
            f"Where there is a worker known to be honest, or samples at the server, {_name(everyone[0])} loses less: "
            f"{_worst(everyone[0])}."
        )
    return " ".join(text)


def _noise_text(noise: SeedNoise) -> str:
    runs = "one seed per cell" if noise.seeds == 1 else f"{noise.seeds} seeds per cell of the best"
    if not noise.known:
        return f"This rests on {runs}; how far drops scatter from seed to seed is not known."
    unattacked = "the differences of two unattacked runs (attacked ones certainly more) scatter"
    where = "their drops scatter" if noise.of_attacked else unattacked
    return (
        f"This rests on {runs}: {where} by {noise.deviation:.1f} points from seed to seed, so that two worst "
        f"cases less than {noise.indistinct:.1f} points apart cannot be told apart."
    )


def _near_text(first: DefenceResult, others: Sequence[DefenceResult], noise: SeedNoise) -> str:
    near = sum(r.worst.drop - first.worst.drop <= noise.between(len(first.seeds), len(r.seeds)) for r in others)
    if not near:
        return "No other defence is that near."
    number = "1 other defence is" if near == 1 else f"{near} other defences are"
    return f"{number} too near to the first to be told apart from it, those with one seed included."


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
                f"with momentum at the workers; the middle one gains {_points(sorted(gains)[len(gains) // 2])}."
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
         f"{r.worst.drop:.1f}", f"`{r.worst.cell.attack}`", f"{r.mean:.1f}", _short(r.cells[NO_ATTACK].drop)]
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
    return f"{order}\n\n{markdown.table(header, rows, right)}"


def whole_tables(maps: MapPair) -> str:
    """Return every drop, a table per f and placement, folded."""
    header = ["defence", "worst", *(f"`{column}`" for column in _columns()[1:])]
    parts = []
    for f, place in _panels():
        rows = []
        for r in maps.of(f, place):
            worst = f"{r.worst.drop:.1f}" if r.complete else "?"
            rows.append([f"`{r.defence}`", worst, *(_short(_drop(r, column)) for column in _columns()[1:])])
        table = markdown.table(header, rows, right=header[1:])
        title = f"f = {f}, momentum at the {place}"
        parts.append(f"<details><summary>{title}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def infeasible_list() -> str:
    """Return the defences that were not run, because they do not exist for an f."""
    lines = [f"- f = {f}: `{defence}`. {reason}" for defence, f, reason in resilience_map.infeasible()]
    return "\n".join(lines) or "- nothing"


def write_csv(maps: MapPair, path: Path) -> Path:
    """Write a line per defence, placement, f and measure, a column per attack: drops in points, empty if unmeasured."""
    attacks = _columns()[1:]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["measure", "f", "momentum", "defence", "seeds", "worst", "worst_attack", *attacks])
    for name, one in (("maximum", maps.best), ("final", maps.final)):
        for r in one.defences:
            worst = [f"{r.worst.drop:.2f}", r.worst.cell.attack] if r.complete else ["", ""]
            drops = ["" if math.isnan(r.cells[attack].drop) else f"{r.cells[attack].drop:.2f}" for attack in attacks]
            seeds = min(len(cell.drops) for cell in r.cells.values())
            writer.writerow([name, r.f, r.placement, r.defence, seeds, *worst, *drops])
    write_atomically(path, buffer.getvalue().encode())
    return path


def draw(maps: MapPair, folder: Path) -> list[Path]:
    """Draw a heat-map per f and placement: defences by attacks, the drop in figures in every cell."""
    return [_heat_map(maps.of(f, place), f, place, folder) for f, place in _panels()]


def _heat_map(results: Sequence[DefenceResult], f: int, place: str, folder: Path) -> Path:
    columns = _columns()
    figure, grid = new_figure(size=(2.6 + 0.46 * len(columns), 1.9 + 0.25 * len(results)))
    axes = grid[0][0]
    drops = [[_drop(result, column) for column in columns] for result in results]
    # Grey by the square root of the drop, so that a few points show.
    shades = [
        [0.0 if math.isnan(drop) else math.sqrt(min(max(drop, 0.0), 90.0) / 90.0) for drop in row] for row in drops
    ]
    axes.imshow(shades or [[0.0]], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for y, row in enumerate(drops):
        for x, drop in enumerate(row):
            colour = "white" if shades[y][x] > _DARK else "black"
            axes.text(x, y, _short(drop), ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(results)), [result.defence for result in results])
    axes.axvline(0.5, color="black", linewidth=1.5)
    axes.set_title(f"Points of maximum accuracy lost: f = {f} of {WORKERS}, momentum at the {place}")
    return save_as(figure, folder / f"zoo-f_{f}-{place}.png", dpi=110)


def _panels() -> list[tuple[int, str]]:
    return [(f, place) for f in BYZANTINE for place in PLACES]


def _columns() -> list[str]:
    return ["worst", NO_ATTACK, *resilience_map.attack_specs()]


def _drop(result: DefenceResult, column: str) -> float:
    if column == "worst":
        return result.worst.drop if result.complete else math.nan
    return result.cells[column].drop


def _short(drop: float) -> str:
    """Return two digits, `0.4`, `2.3` or `47`, without a minus before a zero; `?` for what was not measured."""
    if math.isnan(drop):
        return "?"
    text = f"{drop:.1f}" if abs(drop) < 9.95 else f"{drop:.0f}"
    return "0.0" if text == "-0.0" else text


def _name(result: DefenceResult) -> str:
    return f"`{result.defence}` with momentum at the {result.placement}"


def _worst(result: DefenceResult) -> str:
    return f"{_points(result.worst.drop)}, to `{result.worst.cell.attack}`"


def _points(drop: float) -> str:
    return f"{drop:.1f} points"
