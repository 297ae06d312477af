"""Tables for a paper: what is in them, and that LaTeX takes them as they are."""

from __future__ import annotations

import csv
import math
import re
import statistics
from pathlib import Path

import pytest

from gyroscope.cli import main
from gyroscope.experiments.results import RunResult, group
from gyroscope.report import page_layout, paper_tables
from gyroscope.report.page_data import table_lines


def test_the_common_settings_are_those_of_every_setup(runs: list[RunResult]) -> None:
    shared = page_layout.common_settings(group(runs))
    assert shared["task"] == "digits" and shared["steps"] == 20
    assert not {"rule", "lr", "momentum", "attack", "byzantine", "seed"} & shared.keys()
    for run in runs:
        assert all(run.config.experiment()[name] == value for name, value in shared.items())


def test_the_latex_table_has_a_row_per_setup_and_no_letter_that_latex_would_take(runs: list[RunResult]) -> None:
    lines = table_lines(runs)
    text = paper_tables.latex_table(lines)
    body = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0].strip().splitlines()
    assert len(body) == len(lines)
    head = text.partition("\\toprule\n")[2].splitlines()[0]
    assert "task" not in head and "rule" in head  # all have the same task
    assert all(row.count("&") == head.count("&") and row.endswith(r"\\") for row in body)
    plain = re.sub(r"(?m)^%.*$", "", text)
    assert not re.search(r"(?<!\\)[%#_]", plain) and not set(plain) & set("±−–→")
    assert len(re.findall(r"(?<!\\)\$", plain)) % 2 == 0
    assert "$f$" in head and head.endswith(r"& drop (points) \\")
    attacked = paper_tables.latex_table(table_lines([run for run in runs if run.config.attack != "none"]))
    assert "drop (points)" not in attacked and 'add unattacked runs with rule = "average"' in attacked
    assert r"\pm" in plain and paper_tables._escaped("a_b & 5%") == r"a\_b \& 5\%"


def test_seeds_have_a_row_per_run(runs: list[RunResult], tmp_path: Path) -> None:
    with paper_tables.write_seeds(runs, tmp_path / "seeds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(runs) == 46
    by_folder = {run.path.name: run for run in runs}
    for row in rows:
        run = by_folder[row["folder"]]
        assert float(row["best"]) == pytest.approx(run.best, rel=1e-5) and int(row["seed"]) == run.config.seed


def test_comparisons_pair_the_seeds(runs: list[RunResult]) -> None:
    found = paper_tables.comparisons(runs)
    assert found and all(each.seeds == 2 for each in found)
    chosen = next(
        each for each in found if (each.first, each.second) == ("krum", "median") and "little" in each.setting
    )
    place, rate = re.findall(r"lr ([\d.]+), momentum (\w+)", chosen.setting)[0][::-1]
    best = {
        (run.config.rule, run.config.seed): run.best
        for run in runs
        if (run.config.attack, run.config.momentum, str(run.config.lr)) == ("little", place, rate)
    }
    differences = [100 * (best["median", seed] - best["krum", seed]) for seed in (1, 2)]
    assert chosen.difference == pytest.approx(statistics.fmean(differences))
    half = 12.7062 * statistics.stdev(differences) / math.sqrt(2)  # Student's t with one degree of freedom
    assert chosen.high - chosen.difference == pytest.approx(half, rel=1e-4)
    assert (chosen.p < 0.05) == (not chosen.low <= 0 <= chosen.high)


def test_the_command_writes_them(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--format", "latex,seeds,comparisons,md", "--out", str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"report.tex", "seeds.csv", "comparisons.csv", "report.md"}
    assert "All runs: task = digits" in (tmp_path / "report.md").read_text()
    assert "laims" not in (tmp_path / "report.md").read_text()  # the paper has none about digits
