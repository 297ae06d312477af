"""Tables for a paper: what is in them, and that LaTeX takes them as they are."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
import statistics
from pathlib import Path

import pytest

from gyroscope.cli import main
from gyroscope.experiments.results import RunResult, group
from gyroscope.report import latex_tables, page_layout, paper_tables
from gyroscope.report.page_data import table_lines


def test_the_common_settings_are_those_of_every_setup(runs: list[RunResult]) -> None:
    shared = page_layout.common_settings(group(runs))
    assert shared["task"] == "digits" and shared["steps"] == 20
    assert not {"rule", "lr", "momentum", "attack", "byzantine", "seed"} & shared.keys()
    for run in runs:
        assert all(run.config.experiment()[name] == value for name, value in shared.items())


def test_the_latex_table_has_a_row_per_setup_and_no_letter_that_latex_would_take(runs: list[RunResult]) -> None:
    lines = table_lines(runs)
    text = latex_tables.latex_table(lines)
    body = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0].strip().splitlines()
    assert len(body) == len(lines)
    head = text.partition("\\toprule\n")[2].splitlines()[0]
    assert "task" not in head and "rule" in head  # all have the same task
    assert all(row.count("&") == head.count("&") and row.endswith(r"\\") for row in body)
    plain = re.sub(r"(?m)^%.*$", "", text)
    assert not re.search(r"(?<!\\)[%#_]", plain) and not set(plain) & set("±−–→")
    assert len(re.findall(r"(?<!\\)\$", plain)) % 2 == 0
    assert "$f$" in head and head.endswith(r"& drop (points) \\")
    attacked = latex_tables.latex_table(table_lines([run for run in runs if run.config.attack != "none"]))
    assert "drop (points)" not in attacked and 'add unattacked runs with rule = "average"' in attacked
    assert r"\pm" in plain and latex_tables.escaped("a_b & 5%") == r"a\_b \& 5\%"


def test_the_pivots_have_rules_as_rows_and_attacks_as_columns(runs: list[RunResult]) -> None:
    lines = table_lines(runs)
    tables = latex_tables.pivot_tables(lines)
    assert len(tables) == 8  # two placements by two learning rates, maximum and final
    chosen = next(each for each in tables if "lr 0.2, momentum at the workers" in each)
    assert r"digits, 5 of 23 workers Byzantine" in chosen and r"maximum accuracy (\%), mean $\pm$" in chosen
    head, *body = [row.removesuffix(r" \\").split(" & ") for row in chosen.splitlines() if row.endswith(r"\\")]
    assert head == ["rule", "little", "empire"]
    assert {row[0] for row in body} == {"krum", "median", "bulyan"}
    best = {
        (line.setup.config.rule, line.setup.config.attack): line.best
        for line in lines
        if (line.setup.config.lr, line.setup.config.momentum) == ("0.2", "workers")
    }
    for column, attack in enumerate(("little", "empire"), start=1):
        cells = {row[0]: row[column] for row in body}
        top = max(best[rule, attack].number(best[rule, attack].mean) for rule in cells)
        for rule, cell in cells.items():
            text = str(best[rule, attack]).replace("±", r"\pm")
            assert cell == (rf"$\mathbf{{{text}}}$" if text.startswith(top) else f"${text}$")
    unattacked = str(best["average", "none"]).replace("±", r"$\pm$")
    assert f"Without an attack, average has {unattacked}." in chosen  # no row and no column of dashes
    two = latex_tables.pivot_tables([line for line in lines if line.setup.config.rule in ("average", "krum")])
    both = next(each for each in two if "lr 0.2, momentum at the workers" in each)
    assert "Without an attack" in both and "krum & $" in both  # a single value is not the best of several


def test_a_pivot_of_final_values_is_beside_that_of_maxima(runs: list[RunResult]) -> None:
    at_workers = [run for run in runs if run.config.momentum == "workers" and run.config.lr == "0.2"]
    lines = [line for line in table_lines(at_workers) if line.setup.config.attack != "little"]
    first, second = latex_tables.pivot_tables(lines)
    assert r"maximum accuracy (\%)" in first and r"final accuracy (\%)" in second
    assert r"\label{tab:gyroscope-1}" in first and r"\label{tab:gyroscope-1-final}" in second
    for line in lines:
        for table, value in ((first, line.best), (second, line.final)):
            assert str(value).replace("±", r"$\pm$" if line.setup.config.attack == "none" else r"\pm") in table
    diverged = [dataclasses.replace(line.setup.runs[0], status="diverged") for line in lines]
    diverged += [dataclasses.replace(line.setup.runs[1]) for line in lines]
    first, second = latex_tables.pivot_tables(table_lines(diverged))
    assert "diverged" not in first and "Runs that diverged (4) count with their last evaluation." in second


def test_one_attacked_rule_has_the_unattacked_average_in_its_caption(runs: list[RunResult]) -> None:
    at_workers = [run for run in runs if run.config.momentum == "workers" and run.config.lr == "0.2"]
    lines = [line for line in table_lines(at_workers) if line.setup.config.rule in ("average", "krum")]
    one = [line for line in lines if line.setup.config.attack != "empire"]
    table, _ = latex_tables.pivot_tables(one)
    assert "Without an attack, average has" in table and r"\naverage &" not in table and "rule & little" in table
    two_rules = [line for line in table_lines(runs) if line.setup.config.attack == "none"][:1]
    assert latex_tables.pivot_tables(two_rules) == []


def test_latex_can_read_the_pivots(runs: list[RunResult], tmp_path: Path) -> None:
    text = latex_tables.write_pivots(runs, tmp_path / "pivot.tex").read_text()
    plain = re.sub(r"(?m)^%.*\n", "", text)
    assert not re.search(r"(?<!\\)[%#_~^<>]", plain) and plain.isascii()
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", plain):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened and plain.count(r"\begin{table}") == plain.count(r"\caption{") == plain.count(r"\label{")
    braces = re.sub(r"\\[{}]", "", plain)
    assert braces.count("{") == braces.count("}") and len(re.findall(r"(?<!\\)\$", plain)) % 2 == 0
    for table in plain.split(r"\end{table}")[:-1]:
        alignment = re.findall(r"\\begin\{tabular\}\{(l?r+)\}", table)[0]
        rows = [row for row in table.splitlines() if row.endswith(r"\\")]
        assert rows and all(len(re.findall(r"(?<!\\)&", row)) == len(alignment) - 1 for row in rows)
    known = "begin end centering caption label toprule midrule bottomrule mathbf pm"
    used = set(re.findall(r"\\([a-z]+)", plain))
    assert all(command in known.split() for command in used), used
    assert latex_tables.escaped("a\\b^2~c<{d}") == (r"a\textbackslash{}b\textasciicircum{}2\textasciitilde{}c$<$\{d\}")


def test_each_number_of_byzantine_workers_has_a_pivot_with_the_unattacked_runs(runs: list[RunResult]) -> None:
    def of(**changes: object) -> list[RunResult]:
        return [dataclasses.replace(run, config=dataclasses.replace(run.config, **changes)) for run in plain]

    plain = [run for run in runs if run.config.attack == "none" and run.config.momentum == "workers"]
    plain = [run for run in plain if run.config.lr == "0.2"]
    made = [*plain, *of(rule="median", declared_byzantine=3), *of(rule="median", declared_byzantine=5)]
    made += [run for f in (3, 5) for run in of(rule="median", attack="empire", byzantine=f)]
    tables = latex_tables.pivot_tables(table_lines(made))
    assert [re.findall(r"(\d) of 23 workers", table) for table in tables] == [["3"], ["3"], ["5"], ["5"]]
    assert all("empire & no attack" in table and "\naverage & --" in table for table in tables)
    one = latex_tables.pivot_tables(table_lines(plain))
    assert one == []  # one rule, one attack


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
    assert [each.compared for each in found] == sorted(
        (each.compared for each in found), key=["rule", "momentum", "lr"].index
    )
    chosen = next(
        each for each in found if (each.first, each.second) == ("krum", "median") and "little" in each.setting
    )
    assert chosen.compared == "rule"
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


@pytest.mark.parametrize(
    ("compared", "values", "setting"),
    [
        ("momentum", ("server", "workers"), "digits, little f=5, rule krum, lr 0.2"),
        ("lr", ("0.2", "0.05"), "digits, little f=5, rule krum, momentum workers"),
    ],
)
def test_comparisons_are_of_other_settings_too(
    runs: list[RunResult], compared: str, values: tuple[str, str], setting: str
) -> None:
    [chosen] = [each for each in paper_tables.comparisons(runs) if (each.compared, each.setting) == (compared, setting)]
    assert (chosen.first, chosen.second) == values and chosen.seeds == 2
    of = {
        (getattr(run.config, compared), run.config.seed): run.best
        for run in runs
        if (run.config.rule, run.config.attack) == ("krum", "little")
        and (run.config.lr == "0.2" if compared == "momentum" else run.config.momentum == "workers")
    }
    differences = [100 * (of[values[1], seed] - of[values[0], seed]) for seed in (1, 2)]
    assert chosen.difference == pytest.approx(statistics.fmean(differences))


def test_the_command_writes_them(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--format", "latex,seeds,comparisons,md", "--out", str(tmp_path)]) == 0
    written = ["comparisons.csv", "pivot.tex", "report.md", "report.tex", "seeds.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert "All runs: task = digits" in (tmp_path / "report.md").read_text()
    assert "laims" not in (tmp_path / "report.md").read_text()  # the paper has none about digits
