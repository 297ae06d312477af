"""The red team's search: its stages, what it chooses, and that it goes on where it stopped."""

from __future__ import annotations

import csv
import dataclasses
import shutil
from pathlib import Path

import pytest

import gyroscope as gy
from gyroscope import attacks
from gyroscope._core.errors import ConfigError
from gyroscope.cli import main
from gyroscope.experiments.grid import Setup
from gyroscope.experiments.red_team import PROMISING, AttackResult, RedTeam, Stage
from gyroscope.runs.training import train

DEFENCE = gy.Config(rule="krum", workers=11, byzantine=3, steps=12, evaluate_every=4, threads=1)


def team(out: Path, **options: object) -> RedTeam:
    baseline = gy.Config(workers=11, threads=1)
    return RedTeam(DEFENCE, out, baseline, budget=6, **options)  # type: ignore[arg-type]


def run(setups: tuple[Setup, ...], out: Path) -> None:
    for setup in setups:
        if not (out / setup.name).exists():
            train(setup.config, out=out / setup.name)


@pytest.mark.slow
def test_each_stage_follows_from_the_runs_before_it(tmp_path: Path) -> None:
    search = team(tmp_path)
    stages: list[Stage] = []
    for stage in search.stages():
        run(stage.setups, tmp_path)
        stages.append(stage)
    scout, worst, refine, confirm = stages
    assert [stage.name for stage in stages] == ["scout", "search", "refine", "confirm"]
    assert {setup.config.steps for setup in scout.setups} == {3}
    assert {setup.config.steps for stage in stages[1:] for setup in stage.setups} == {12}
    ranked = [result.attack for result in search.ranking(scout)]
    chosen = [setup.config.attack for setup in worst.setups if setup.config.attack != "none"]
    # The worst scout, and `searched` in any case, because it adds up over the rounds; the others are the next scouts.
    assert chosen == list(dict.fromkeys([ranked[0], "searched", *ranked]))[: len(chosen)]
    assert refine.setups[0].config.attack == "alternate:attack=searched"  # in any case
    # The attacks of the last stage are the worst of all full-length runs, with seeds that chose nothing.
    candidates = [*search.ranking(worst), *search.ranking(refine)]
    [finalist] = {setup.config.attack for setup in confirm.setups} - {"none"}
    assert finalist == max(candidates, key=lambda result: result.cost).attack
    seeds = [{setup.config.seed for setup in stage.setups} for stage in stages]
    assert seeds[:3] == [{1}, {1}, {1}] and 1 not in seeds[3] and len(seeds[3]) == 3
    [result] = search.ranking(confirm)
    assert result.attack == finalist and result.share is not None and 0 <= result.share <= 1
    unattacked = gy.train(gy.Config(workers=11, steps=12, evaluate_every=4, seed=101, threads=1))
    assert result.cost == pytest.approx(
        sum(100 * (gy.train(gy.Config(workers=11, steps=12, evaluate_every=4, seed=seed, threads=1)).max_accuracy
                   - run.max_accuracy) for seed, run in zip(result.seeds, result.runs, strict=True)) / 3
    )  # fmt: skip
    assert unattacked.max_accuracy > 0
    # The cost has two parts: what the defence itself loses without an attack, and what the attack takes from it.
    names = [setup.name.rpartition("-")[0] for setup in confirm.setups]
    assert names.count("confirm-defence_alone") == 3
    alone = [
        gy.train(dataclasses.replace(DEFENCE, attack="none", byzantine=0, declared_byzantine=3, seed=seed)).max_accuracy
        for seed in result.seeds
    ]
    taken = [100 * (without - run.max_accuracy) for without, run in zip(alone, result.runs, strict=True)]
    assert result.attack_cost == pytest.approx(sum(taken) / 3)
    assert result.defence_cost is not None
    assert result.cost == pytest.approx(result.defence_cost + sum(taken) / 3)
    # The folder of an earlier version has no such runs: its ranking stands, and the two parts are unknown.
    for path in tmp_path.glob("confirm-defence_alone-*"):
        shutil.rmtree(path)
    [old] = search.ranking(confirm)
    assert old.cost == result.cost and old.defence_cost is None and old.attack_cost is None


def test_the_smallest_budget_runs_the_worst_scout_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"searched": 15.0, "decoy": 78.0, "chain": 1.0}
    ranked = [AttackResult(spec, (1,), cost, 0.0, 0.0, None, ()) for spec, cost in costs.items()]
    ranked.sort(key=lambda result: -result.cost)
    monkeypatch.setattr(RedTeam, "_ranked", lambda *_: ranked)
    _, search, *_ = RedTeam(DEFENCE, tmp_path, DEFENCE, budget=5).stages()
    assert [setup.config.attack for setup in search.setups] == ["none", "none", "decoy"]  # average, defence alone


@pytest.mark.slow
def test_the_command_runs_the_attack_again(tmp_path: Path) -> None:
    search = team(tmp_path)
    for stage in search.stages():
        run(stage.setups, tmp_path)
    [result] = search.ranking(stage)
    words = search.command(result).replace("'", "").split()[1:]
    assert main([*words, "--threads", "1", "--quiet", "--out", str(tmp_path / "again")]) == 0
    evaluations = (tmp_path / "again" / "evaluations.csv").read_text()
    assert evaluations == (result.runs[0].path / "evaluations.csv").read_text()


def test_the_command_names_the_folder_of_the_data(tmp_path: Path) -> None:
    result = AttackResult("little", (7,), 1.0, 0.0, 0.0, None, ())
    assert "--data-dir" not in team(tmp_path).command(result)
    search = dataclasses.replace(team(tmp_path), defence=dataclasses.replace(DEFENCE, data_dir="my data"))
    assert search.command(result).endswith(" --data-dir 'my data'")


def test_every_attack_of_the_table_takes_part_and_a_user_s_comes_first(tmp_path: Path) -> None:
    specs = team(tmp_path, extra=("little:factor=7",)).candidates()
    assert specs[0] == "little:factor=7" and specs[1 : 1 + len(PROMISING)] == [
        str(attacks.parse(spec)) for spec in PROMISING
    ]
    assert {"fang-krum", "label-flip", "stranger", "anti-cge"} <= set(specs)


def test_variants_change_numbers_and_combine(tmp_path: Path) -> None:
    specs = team(tmp_path)._variants(["little", "empire:factor=auto"])
    assert {"little:factor=3.0", "little:factor=0.75", "split:attacks=(little/empire:factor=auto)"} <= set(specs)
    assert "alternate" in specs  # around little, its default


@pytest.mark.parametrize(("changes", "message"), [({"byzantine": 0}, "Byzantine"), ({"budget": 2}, "at least 5")])
def test_what_cannot_be_searched_is_said_at_once(tmp_path: Path, changes: dict[str, int], message: str) -> None:
    budget = changes.pop("budget", 6)
    config = gy.Config(**{"rule": "krum", "workers": 11, "byzantine": 3, **changes})
    with pytest.raises(ConfigError, match=message):
        RedTeam(config, tmp_path, config, budget=budget)


@pytest.mark.slow
def test_the_command_searches_resumes_and_writes_table_and_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["redteam", "--rule", "krum", "--workers", "11", "--byzantine", "3", "--steps", "12", "--budget", "6",
             "--goal", "final", "--jobs", "1", "--quiet", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "worst: " in said and "again: gyroscope train " in said
    table = [line for line in said.splitlines() if line.startswith(("┃", "│"))]
    assert "weight" in said and all(len(line) <= 80 and line[-1] == line[0] for line in table)  # it fits 80 columns
    assert "of these, lost to the defence itself: " in said and "; lost to the attack: " in said
    with (tmp_path / "redteam.csv").open() as file:
        rows = list(csv.DictReader(file))
    page = (tmp_path / "redteam.html").read_text()
    parts = float(rows[0]["defence_cost_points"]) + float(rows[0]["attack_cost_points"])
    assert parts == pytest.approx(float(rows[0]["cost_points"]), abs=0.011)
    assert "to the defence itself" in page and rows[0]["attack_cost_points"] in page
    assert rows[0]["attack"] in page and "<svg" in page and "</svg>" in page
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/status.json")}
    assert main(words) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/status.json")} == made


def test_a_search_whose_runs_all_fail_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyroscope.cli.running.run", lambda setups, options: 1)  # as if the data were not there
    words = ["redteam", "--rule", "median", "--workers", "5", "--byzantine", "1", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "no attack could be judged" in capsys.readouterr().err
