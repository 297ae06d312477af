"""Heat-maps of a user's grid: which axes, panels and figures, what the cells hold, and that nothing is cut off."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy
import pytest

from gyroscope._core.errors import ConfigError
from gyroscope.cli import main
from gyroscope.experiments.results import RunResult
from gyroscope.report import heat_maps
from gyroscope.report.figures import FigureOptions, cell_colours
from gyroscope.simulation.task_metric import known_metric


def only(runs: Sequence[RunResult], **settings: object) -> list[RunResult]:
    return [run for run in runs if all(getattr(run.config, name) == value for name, value in settings.items())]


def test_rule_by_attack_with_a_panel_per_placement_and_a_figure_per_rate(runs: list[RunResult]) -> None:
    found = heat_maps.heat_maps(runs)
    assert [one.name for one in found] == ["heat-map-digits-rule-attack-lr_0.2", "heat-map-digits-rule-attack-lr_0.05"]
    one = found[0]
    assert one.rows == ["krum", "median", "bulyan", "average"] and one.columns == [
        "little",
        "empire",
        "nan",
        "no attack",
    ]
    assert [panel.title for panel in one.panels] == ["momentum at the server", "momentum at the workers"]
    for place, panel in zip(("server", "workers"), one.panels, strict=True):
        for y, rule in enumerate(one.rows):
            for x, attack in enumerate(one.columns):
                attack = "none" if attack == "no attack" else attack
                best = [100 * run.best for run in only(runs, rule=rule, attack=attack, momentum=place, lr="0.2")]
                assert panel.values[y][x] == pytest.approx(statistics.fmean(best) if best else math.nan, nan_ok=True)
    assert one.text(math.nan) == "–" and one.text(97.34) == "97.3"


def test_the_axes_can_be_chosen(runs: list[RunResult]) -> None:
    some = only(runs, attack="little")
    (one,) = heat_maps.heat_maps(some, ("lr", "rule"))
    assert one.rows == ["lr 0.2", "lr 0.05"] and one.columns == ["krum", "median", "bulyan"]
    assert [panel.title for panel in one.panels] == ["momentum at the server", "momentum at the workers"]
    (one,) = heat_maps.heat_maps(only(some, lr="0.2"))  # what varies first
    assert one.axes == ("rule", "momentum") and len(one.panels) == 1 and one.panels[0].title == ""


def test_one_setting_makes_no_heat_map_unless_it_is_asked_for(runs: list[RunResult]) -> None:
    some = only(runs, attack="little", lr="0.2", momentum="server")
    assert heat_maps.heat_maps(some) == [] == heat_maps.heat_maps(some, ("lr", "momentum"))
    assert heat_maps.heat_maps(some, ("rule", "attack"))[0].columns == ["little"]
    assert heat_maps.heat_maps([]) == []


def test_the_unattacked_belong_to_every_number_of_byzantine_workers(runs: list[RunResult]) -> None:
    def with_f(run: RunResult, f: int) -> RunResult:
        return dataclasses.replace(run, config=dataclasses.replace(run.config, byzantine=f, declared_byzantine=f))

    some = only(runs, lr="0.2", momentum="server")
    attacked = [run for run in some if run.config.attack != "none"]
    (one,) = heat_maps.heat_maps([*some, *(with_f(run, 3) for run in attacked)])
    assert [panel.title for panel in one.panels] == ["f = 3", "f = 5"]
    assert numpy.array_equal(one.panels[0].values, one.panels[1].values, equal_nan=True)


def test_bright_is_better_and_every_text_can_be_read() -> None:
    values = [[math.nan, 1.0], [math.inf, 10.0]]
    loss = known_metric("loss", "lower", False)
    one = heat_maps.HeatMap("", "", ("rule", "attack"), ["a", "b"], ["c", "d"], [heat_maps.Panel("", values)], loss)
    ((missing, best), (infinite, worst)) = one.shades()[0]
    assert math.isnan(missing) and (best, infinite, worst) == (1.0, 0.0, 0.0)
    assert one.text(math.inf) == "∞"
    assert cell_colours(0.0, heat_maps.SCALE)[1] == "white" and cell_colours(1.0, heat_maps.SCALE)[1] == "black"
    assert cell_colours(math.nan, heat_maps.SCALE) == (None, "black")


@pytest.mark.parametrize("size", [None, (7.0, 5.0)])
def test_nothing_is_cut_off(runs: list[RunResult], size: tuple[float, float] | None) -> None:
    one = heat_maps.heat_maps(runs)[0]
    long = dataclasses.replace(one, rows=["bucketing+geometric-median", *one.rows[1:]], columns=["m" * 25] * 4)
    figure = heat_maps.figure(long, FigureOptions(size))
    figure.draw_without_rendering()
    whole = figure.bbox
    for axes in figure.axes:
        for text in (*axes.get_xticklabels(), *axes.get_yticklabels(), axes.title, *figure.texts):
            box = text.get_window_extent()
            assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y0 >= whole.y0 and box.y1 <= whole.y1, text


@pytest.mark.slow
def test_the_command_draws_them_beside_the_papers(folder: Path, tmp_path: Path) -> None:
    arguments = ["report", str(folder), "--out", str(tmp_path), "--format", "figures", "--heat-map", "f,rule"]
    assert main(arguments) == 0
    drawn = {path.name for path in (tmp_path / "figures").glob("heat-map-*")}
    assert {Path(name).suffix for name in drawn} == {".png", ".pdf", ".svg"}
    assert "heat-map-digits-byzantine-rule-attack_little-lr_0.2.png" in drawn
    assert (tmp_path / "figures" / "digits-little-f_5.png").exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rule", "write two settings"),
        ("rule,attak", "did you mean 'attack'"),
        ("rule,seed", "take a key of config.toml but the seed"),
        ("f,byzantine", "the same setting"),
    ],
)
def test_axes_that_cannot_be_read(text: str, why: str) -> None:
    assert heat_maps.parse_axes(None) is None
    with pytest.raises(ConfigError, match=why):
        heat_maps.parse_axes(text)
