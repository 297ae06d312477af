"""Present the resilience map in words, as tables, as heat-maps and as CSV. Every figure and every name is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from gyroscope.experiments import resilience_map, resilience_ranking
from gyroscope.experiments.grid import BASELINE, PLACES
from gyroscope.experiments.resilience_map import BYZANTINE, WORKERS
from gyroscope.experiments.resilience_ranking import DefenceResult, ResilienceMap, SeedNoise
from gyroscope.report import text_tables
from gyroscope.report.figures import draw_heat_map, new_figure, save_for_page
from gyroscope.runs.config import NO_ATTACK


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
        rest = [r for r in self.best.defences if (r.f, r.placement) == (f, placement) and not r.seeds]
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
        f"{points(first.worst.drop)} of maximum accuracy, to `{first.worst.cell.attack}`.**"
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
        text.append(f"Without a defence the worst attack costs {points(max(undefended))}.")
    text.append(_noise_text(noise))
    if others and not math.isnan(noise.deviation):
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
    if math.isnan(noise.deviation):
        return f"This rests on {runs}; how far drops scatter from seed to seed is not known."
    unattacked = "the differences of two unattacked runs (attacked ones certainly more) scatter"
    where = "their drops scatter" if noise.of_attacked else unattacked
    return (
        f"This rests on {runs}: {where} by {noise.deviation:.1f} points from seed to seed, so that two worst "
        f"cases less than {noise.indistinct(noise.seeds, noise.seeds):.1f} points apart cannot be told apart."
    )


def _near_text(first: DefenceResult, others: Sequence[DefenceResult], noise: SeedNoise) -> str:
    near = sum(r.worst.drop - first.worst.drop <= noise.indistinct(len(first.seeds), len(r.seeds)) for r in others)
    if not near:
        return "No other defence is that near."
    number = "1 other defence is" if near == 1 else f"{near} other defences are"
    return f"{number} too near to the first to be told apart from it, those with one seed included."


def write_csv(maps: MapPair, path: Path) -> Path:
    """Write a line per defence, placement, f and measure, a column per attack: drops in points, empty if unmeasured."""
    attacks = columns()[1:]
    rows: list[list[object]] = [["measure", "f", "momentum", "defence", "seeds", "worst", "worst_attack", *attacks]]
    for name, one in (("maximum", maps.best), ("final", maps.final)):
        for r in one.defences:
            worst = [f"{r.worst.drop:.2f}", r.worst.cell.attack] if r.seeds else ["", ""]
            drops = ["" if math.isnan(r.cells[attack].drop) else f"{r.cells[attack].drop:.2f}" for attack in attacks]
            seeds = min(len(cell.drops) for cell in r.cells.values())
            rows.append([name, r.f, r.placement, r.defence, seeds, *worst, *drops])
    return text_tables.write_csv(path, rows)


def draw(maps: MapPair, folder: Path) -> list[Path]:
    """Draw a heat-map per f and placement: defences by attacks, the drop in figures in every cell."""
    return [path for f, place in panels() for path in _heat_map(maps.of(f, place), f, place, folder)]


def _heat_map(results: Sequence[DefenceResult], f: int, place: str, folder: Path) -> list[Path]:
    names = columns()
    figure, grid = new_figure(size=(2.6 + 0.46 * len(names), 1.9 + 0.25 * len(results)))
    axes = grid[0][0]
    drops = [[drop_in(result, column) for column in names] for result in results]
    # Grey by the square root of the drop, so that a few points show.
    shades = [
        [drop if math.isnan(drop) else math.sqrt(min(max(drop, 0.0), 90.0) / 90.0) for drop in row] for row in drops
    ]
    texts = [[short(drop) for drop in row] for row in drops]
    draw_heat_map(axes, shades, texts, [result.defence for result in results], names, "Greys")
    axes.axvline(0.5, color="black", linewidth=1.5)
    axes.set_title(f"Points of maximum accuracy lost: f = {f} of {WORKERS}, momentum at the {place}")
    return save_for_page(figure, folder / f"zoo-f_{f}-{place}.png", dpi=110)


def panels() -> list[tuple[int, str]]:
    """Return (f, placement) of each heat-map and table."""
    return [(f, place) for f in BYZANTINE for place in PLACES]


def columns() -> list[str]:
    """Return the columns of heat-maps and tables: the worst case, no attack, every attack."""
    return ["worst", NO_ATTACK, *resilience_map.attack_specs()]


def drop_in(result: DefenceResult, column: str) -> float:
    """Return the drop in a column; NaN where it was not measured."""
    if column == "worst":
        return result.worst.drop if result.seeds else math.nan
    return result.cells[column].drop


def short(drop: float) -> str:
    """Return two digits, `0.4`, `2.3` or `47`, without a minus before a zero; `?` for what was not measured."""
    if math.isnan(drop):
        return "?"
    text = f"{drop:.1f}" if abs(drop) < 9.95 else f"{drop:.0f}"
    return "0.0" if text == "-0.0" else text


def _name(result: DefenceResult) -> str:
    return f"`{result.defence}` with momentum at the {result.placement}"


def _worst(result: DefenceResult) -> str:
    return f"{points(result.worst.drop)}, to `{result.worst.cell.attack}`"


def points(drop: float) -> str:
    """Return a drop with its unit."""
    return f"{drop:.1f} points"
