"""The resilience map in words, as tables, as heat-maps and as CSV. Every figure and every name is computed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyroscope.experiments import resilience, zoo
from gyroscope.experiments.grid import BASELINE, PLACES
from gyroscope.experiments.resilience import Map, Standing
from gyroscope.report.figures import use_agg
from gyroscope.report.page import write_whole
from gyroscope.runs.config import NO_ATTACK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = 12
_DARK = 0.55
"""From this part of the scale on, figures are white on dark."""


class Maps:
    """The map by both measures, from a folder of runs."""

    def __init__(self, folder: str | Path) -> None:
        runs = resilience.read(folder)
        self.best, self.final = Map(runs, resilience.best), Map(runs, resilience.final)

    @property
    def anything(self) -> bool:
        """Whether there is a single drop to show."""
        return any(cell.drops for standing in self.best.standings for cell in standing.cells.values())

    def of(self, f: int, placement: str) -> list[Standing]:
        """The defences with this f and placement, the best one first; those without all their runs last."""
        ranked = [standing for standing in self.best.ranking(f) if standing.placement == placement]
        rest = [s for s in self.best.standings if (s.f, s.placement, s.complete) == (f, placement, False)]
        return ranked + rest


def verdicts(maps: Maps) -> str:
    """Which defence loses least in the worst case, for each f: a paragraph each."""
    return "\n\n".join(_verdict(maps, f) for f in zoo.BYZANTINE)


def _verdict(maps: Maps, f: int) -> str:
    everyone = maps.best.ranking(f)
    ranking = [standing for standing in everyone if not standing.trusting]
    head = f"**f = {f} of {zoo.WORKERS}:** "
    if not ranking:
        return f"{head}not measured: {_lacking(maps)}."
    first, others = ranking[0], ranking[1:]
    attacks = len(first.attacked)
    noise = maps.best.noise(f)
    tried = {(s.defence, s.placement) for s in ranking if s.seeds >= first.seeds}  # nobody wins by one lucky seed
    candidates = [s for s in maps.final.standings if s.f == f and (s.defence, s.placement) in tried]
    by_final = min(candidates, key=lambda s: (s.worst_over(first.seeds), s.mean))
    text = (
        f"{head}**{_name(first)} loses least in the worst case over all {attacks} attacks: "
        f"{_points(first.worst.drop)} of maximum accuracy, to `{first.worst.entry.attack}`.** "
    )
    text += _compared(ranking, maps.best.standings, f)
    undefended = [s.worst.drop for s in ranking if s.defence == BASELINE]
    if undefended:
        text += f" Without a defence the worst attack costs {_points(max(undefended))}."
    text += f" {_noise_text(noise)}"
    if noise.known and others:
        text += f" {_near_text(first, others, noise)}"
    same = (by_final.defence, by_final.placement) == (first.defence, first.placement)
    text += f" By final instead of maximum accuracy {'it, too,' if same else _name(by_final)} loses least: "
    text += f"{_points(by_final.worst.drop)}, to `{by_final.worst.entry.attack}`."
    if everyone[0].trusting:
        best = everyone[0]
        text += (
            f" Where there is a worker known to be honest, or samples at the server, {_name(best)} loses less: "
            f"{_points(best.worst.drop)}, to `{best.worst.entry.attack}`."
        )
    return text


def _lacking(maps: Maps) -> str:
    """Why nothing can be said."""
    if not any(maps.best.baselines.values()):
        return "the unattacked averages to compare with are missing (gyroscope sweep zoo --only average-none-f_0)"
    return "no defence has met every attack with a seed that the unattacked averages have, too"


def _compared(ranking: Sequence[Standing], standings: Sequence[Standing], f: int) -> str:
    """The runner-up, and among how many that is said, where it is not all."""
    there = sum(standing.f == f and not standing.trusting for standing in standings)
    text = "No other has met all of them: there is nothing to compare it with."
    if len(ranking) > 1:
        second = ranking[1]
        text = f"The runner-up, {_name(second)}, loses {_points(second.worst.drop)}, to `{second.worst.entry.attack}`."
    if len(ranking) < there:
        text += f" (Of {there} defences and placements {len(ranking)} are measured.)"
    return text


def _noise_text(noise: resilience.Noise) -> str:
    runs = "one seed per cell" if noise.seeds == 1 else f"{noise.seeds} seeds per cell of the best"
    if not noise.known:
        return f"This rests on {runs}; how far drops scatter from seed to seed is not known."
    if noise.of_attacked:
        where = "their drops scatter"
    else:
        where = "the differences of two unattacked runs (attacked ones certainly more) scatter"
    return (
        f"This rests on {runs}: {where} by {noise.deviation:.1f} points from seed to seed, so that two worst "
        f"cases less than {noise.indistinct:.1f} points apart cannot be told apart."
    )


def _near_text(first: Standing, others: Sequence[Standing], noise: resilience.Noise) -> str:
    near = [s for s in others if s.worst.drop - first.worst.drop <= noise.between(len(first.seeds), len(s.seeds))]
    if not near:
        return "No other defence is that near."
    number = "1 other defence is" if len(near) == 1 else f"{len(near)} other defences are"
    return f"{number} too near to the first to be told apart from it, those with one seed included."


def size(maps: Maps) -> str:
    """How large the map is."""
    found = [len(cell.drops) for standing in maps.best.standings for cell in standing.cells.values()]
    missing = sum(drops == 0 for drops in found)
    remark = f" {missing} cells (marked ?) are not measured yet." if missing else ""
    return (
        f"The map has {len(found):,} cells: {len(zoo.defences())} defences (those of them that exist for f), with both "
        f"placements of momentum, against {len(zoo.attack_specs())} attacks and none; f = "
        f"{' and '.join(map(str, zoo.BYZANTINE))} of {zoo.WORKERS} workers; {sum(found):,} runs and "
        f"{sum(map(len, maps.best.baselines.values()))} unattacked averages to compare with.{remark}"
    )


def placements(maps: Maps) -> str:
    """How often each placement has the smaller worst case."""
    lines = []
    for f in zoo.BYZANTINE:
        found = {(s.defence, s.placement): s for s in maps.best.ranking(f)}
        both = [d.name for d in zoo.defences() if all((d.name, place) in found for place in PLACES)]
        gains = []
        for name in both:
            server, workers = found[name, "server"], found[name, "workers"]
            seeds = server.seeds & workers.seeds  # a mean over more seeds has the smaller worst case
            if seeds:
                gains.append(server.worst_over(seeds) - workers.worst_over(seeds))
        if gains:
            lines.append(
                f"With f = {f}, {sum(gain > 0 for gain in gains)} of {len(gains)} defences have a smaller worst case "
                f"with momentum at the workers; the middle one gains {_points(sorted(gains)[len(gains) // 2])}."
            )
    return " ".join(lines)


def best_table(maps: Maps) -> str:
    """The best few for each f, and what their order goes by."""
    header = [
        "f",
        "defence",
        "momentum at the",
        "seeds",
        "worst case (points)",
        "to",
        "mean over the attacks",
        "unattacked",
    ]
    lines = [f"| {' | '.join(header)} |", "|---:|---|---|---:|---:|---|---:|---:|"]
    finals = False
    for f in zoo.BYZANTINE:
        shown = maps.best.ranking(f)[:_SHOWN]
        finals = finals or len({len(standing.seeds) for standing in shown}) > 1
        for standing in shown:
            worst, mark = standing.worst, " (trusts)" if standing.trusting else ""
            cells = [
                str(f), f"`{standing.defence}`{mark}", standing.placement, str(len(standing.seeds)),
                f"{worst.drop:.1f}", f"`{worst.entry.attack}`", f"{standing.mean:.1f}", _cell(standing, NO_ATTACK),
            ]  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    order = "Sorted by f, then by the worst case."
    if finals:
        order = (
            "Sorted by f; then the finalists, who ran with more seeds, by their worst case over all of these; then the "
            "others, by the worst case with the seeds that all have. So a smaller figure may stand below larger ones "
            "that rest on more seeds: with its own seeds alone those were smaller still."
        )
    return f"{order}\n\n" + "\n".join(lines)


def whole_tables(maps: Maps) -> str:
    """Every drop, a table per f and placement, folded."""
    parts = []
    for f in zoo.BYZANTINE:
        for place in PLACES:
            attacks = [NO_ATTACK, *zoo.attack_specs()]
            lines = [
                f"| defence | worst | {' | '.join(f'`{attack}`' for attack in attacks)} |",
                "|---|" + "---:|" * (1 + len(attacks)),
            ]
            for standing in maps.of(f, place):
                worst = f"{standing.worst.drop:.1f}" if standing.complete else "?"
                cells = " | ".join(_cell(standing, attack) for attack in attacks)
                lines.append(f"| `{standing.defence}` | {worst} | {cells} |")
            title = f"f = {f}, momentum at the {place}"
            parts.append(f"<details><summary>{title}</summary>\n\n" + "\n".join(lines) + "\n\n</details>")
    return "\n\n".join(parts)


def infeasible_list() -> str:
    """What was not run, because it does not exist."""
    lines = [f"- f = {entry.f}: `{entry.defence}`. {entry.reason}" for entry in zoo.infeasible()]
    return "\n".join(lines) or "- nothing"


def write_csv(maps: Maps, path: Path) -> Path:
    """A line per defence, placement, f and measure, a column per attack: drops in points, empty where not measured."""
    attacks = [NO_ATTACK, *zoo.attack_specs()]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["measure", "f", "momentum", "defence", "seeds", "worst", "worst_attack", *attacks])
    for name, one in (("maximum", maps.best), ("final", maps.final)):
        for s in one.standings:
            ends = [f"{s.worst.drop:.2f}", s.worst.entry.attack] if s.complete else ["", ""]
            drops = ["" if math.isnan(s.cells[attack].drop) else f"{s.cells[attack].drop:.2f}" for attack in attacks]
            seeds = min(len(cell.drops) for cell in s.cells.values())
            writer.writerow([name, s.f, s.placement, s.defence, seeds, *ends, *drops])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue().encode())
    return path


def draw(maps: Maps, folder: Path) -> list[Path]:
    """A heat-map per f and placement: defences by attacks, the drop in figures in every cell."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_heat_map(maps.of(f, place), f, place, folder) for f in zoo.BYZANTINE for place in PLACES]


def _heat_map(standings: Sequence[Standing], f: int, place: str, folder: Path) -> Path:
    use_agg()
    from matplotlib import pyplot

    columns = ["worst", NO_ATTACK, *zoo.attack_specs()]
    drops = [[_drop(standing, column) for column in columns] for standing in standings]
    size = (2.6 + 0.46 * len(columns), 1.9 + 0.25 * len(standings))
    figure, axes = pyplot.subplots(figsize=size, layout="constrained")
    _paint(axes, drops)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(standings)), [standing.defence for standing in standings])
    axes.axvline(0.5, color="black", linewidth=1.5)
    axes.set_title(f"Points of maximum accuracy lost: f = {f} of {zoo.WORKERS}, momentum at the {place}")
    path = folder / f"zoo-f_{f}-{place}.png"
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def _paint(axes: Axes, drops: Sequence[Sequence[float]]) -> None:
    """Grey by the square root of the drop, so that a few points show; the figures do not depend on it."""
    shades = [[math.sqrt(min(max(drop, 0.0), 90.0) / 90.0) if drop == drop else 0.0 for drop in row] for row in drops]
    axes.imshow(shades or [[0.0]], cmap="Greys", vmin=0, vmax=1, aspect="auto")
    for y, row in enumerate(drops):
        for x, drop in enumerate(row):
            text = "?" if math.isnan(drop) else _short(drop)
            axes.text(x, y, text, ha="center", va="center", fontsize=8,
                      color="white" if shades[y][x] > _DARK else "black")  # fmt: skip


def _drop(standing: Standing, column: str) -> float:
    if column == "worst":
        return standing.worst.drop if standing.complete else math.nan
    return standing.cells[column].drop


def _short(drop: float) -> str:
    """Two digits: `0.4`, `2.3`, `47`, and no minus before a zero."""
    text = f"{drop:.1f}" if abs(drop) < 9.95 else f"{drop:.0f}"
    return "0.0" if text == "-0.0" else text


def _cell(standing: Standing, attack: str) -> str:
    drop = standing.cells[attack].drop
    return "?" if math.isnan(drop) else _short(drop)


def _name(standing: Standing) -> str:
    return f"`{standing.defence}` with momentum at the {standing.placement}"


def _points(drop: float) -> str:
    return f"{drop:.1f} points"
