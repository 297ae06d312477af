"""The demo, run for real with one seed: its table, its figure, its run directories, and what they show."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pandas
import pytest
from launching import Finished, gyroscope


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    folder = tmp_path_factory.mktemp("demo")
    finished = gyroscope("demo", "--seeds", 1, "--out", "mine", cwd=folder)
    assert finished.code == 0, finished.err
    return folder / "mine", finished


def lines_of(finished: Finished) -> list[tuple[str, ...]]:
    """Return placement, rule, mean, deviation and loss from each line of the table."""
    line = r"(server|workers)\s+\S\s+(no attack|krum|median|bulyan)\s+\S\s+([\d.]+) ± ([\d.]+)\s+\S\s+(-?[\d.]*)"
    return re.findall(line, finished.out)


@pytest.mark.slow
def test_the_readme_s_table_is_what_the_demo_prints(tmp_path: Path) -> None:
    """Within 1.5 points: the last bits, which differ between processors, decide which rows Krum selects."""
    finished = gyroscope("demo", cwd=tmp_path)
    printed = {(place, rule): float(mean) for place, rule, mean, *_ in lines_of(finished)}
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    stated = re.findall(r"^\| \**(server|workers)\** \| (krum|median|bulyan) \| ([\d.]+) ± ", readme, re.MULTILINE)
    assert len(stated) == 6
    for place, rule, mean in stated:
        assert printed[place, rule] == pytest.approx(float(mean), abs=1.5), (place, rule)


def test_momentum_at_the_workers_loses_less_than_at_the_server_for_every_rule(demo: tuple[Path, Finished]) -> None:
    out, _ = demo
    best = {
        (rule, place): pandas.read_csv(out / f"{rule}-{place}-seed_1" / "evaluations.csv")["accuracy"].max()
        for rule in ("no-attack", "krum", "median", "bulyan")
        for place in ("server", "workers")
    }
    for rule in ("krum", "median", "bulyan"):
        lost = {place: best["no-attack", place] - best[rule, place] for place in ("server", "workers")}
        assert lost["workers"] < lost["server"], rule


def test_the_table_has_a_line_for_each_rule_and_placement_with_the_recorded_figures(
    demo: tuple[Path, Finished],
) -> None:
    out, finished = demo
    found = lines_of(finished)
    assert [(place, rule) for place, rule, *_ in found] == [
        (place, rule) for place in ("server", "workers") for rule in ("no attack", "krum", "median", "bulyan")
    ]
    figures = {(place, rule): (float(mean), lost) for place, rule, mean, _, lost in found}
    for (place, rule), (mean, lost) in figures.items():
        path = out / f"{rule.replace(' ', '-')}-{place}-seed_1" / "evaluations.csv"
        assert mean == pytest.approx(100 * pandas.read_csv(path)["accuracy"].max(), abs=0.051)
        if rule != "no attack":
            assert float(lost) == pytest.approx(figures[place, "no attack"][0] - mean, abs=0.11)


def test_it_says_where_the_figure_is_and_the_figure_is_a_picture_of_sensible_size(demo: tuple[Path, Finished]) -> None:
    out, finished = demo
    assert "mine/demo.png" in finished.out
    content = (out / "demo.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert 600 < width < 4000 and 250 < height < 3000
    assert len(content) > 10_000, "something is drawn in it"


def test_it_leaves_eight_complete_run_directories_and_shows_progress(demo: tuple[Path, Finished]) -> None:
    out, finished = demo
    directories = [path for path in out.iterdir() if path.is_dir()]
    assert len(directories) == 8
    assert all('"complete"' in (path / "status.json").read_text() for path in directories)
    assert "[0/8]" in finished.err and "[8/8]" in finished.err
    assert os.listdir(out.parent) == ["mine"], "nothing is written elsewhere"
