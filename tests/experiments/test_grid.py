"""The paper's grid, counted and named; a user's grid; what identifies a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from gyroscope import Config
from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.cli import main
from gyroscope.experiments import grid


def test_the_paper_has_88_setups_and_440_runs() -> None:
    setups = grid.paper("mnist") + grid.paper("cifar10")
    assert len(setups) == 88
    assert len({setup.name for setup in setups}) == 88
    runs = grid.with_seeds(setups, [1, 2, 3, 4, 5])
    assert len(runs) == 440
    assert len({grid.fingerprint(run.config) for run in runs}) == 440
    assert Counter(run.config.seed for run in runs) == dict.fromkeys(range(1, 6), 88)


@pytest.mark.parametrize(
    ("task", "n", "half", "quarter", "rates"),
    [("mnist", 51, 24, 12, ("0.5", "0.02")), ("cifar10", 25, 11, 5, ("0.01,1500:0.001", "0.001"))],
)
def test_each_task_has_its_combinations(task: str, n: int, half: int, quarter: int, rates: tuple[str, str]) -> None:
    configs = [setup.config.resolve() for setup in grid.paper(task)]
    assert all(config.workers == n for config in configs)
    expected = {
        (attack, rule, f, rate, placement)
        for attack in ("little", "empire")
        for rule, f in (("krum", half), ("krum", quarter), ("median", half), ("median", quarter), ("bulyan", quarter))
        for rate in rates
        for placement in ("server", "workers")
    } | {("none", "average", 0, rate, placement) for rate in rates for placement in ("server", "workers")}
    found = [(c.attack, c.rule, c.byzantine, c.lr, c.momentum) for c in configs]
    assert len(found) == 44 and set(found) == expected


def test_names_are_those_of_the_papers_files() -> None:
    names = {setup.name for setup in grid.paper("mnist") + grid.paper("cifar10")}
    assert "mnist-little-krum-f_12-lr_0.5-at_worker" in names
    assert "mnist-empire-median-f_24-lr_0.02-at_update" in names
    assert "cifar10-empire-bulyan-f_5-lr_0.001-at_worker" in names
    assert "mnist-average-lr_0.5-at_update" in names


def test_rescoring_adds_eight_setups_per_task() -> None:
    extra = {s.name for s in grid.paper("mnist", rescore=True)} - {s.name for s in grid.paper("mnist")}
    assert len(extra) == 8 and all("bulyan_rescore" in name for name in extra)


def test_fewer_steps_move_the_fall_of_the_learning_rate_along() -> None:
    (setup,) = grid.only(grid.paper("cifar10", steps=300, width=0.125), ["cifar10-average-lr_0.01-at_update"])
    assert setup.config.lr == "0.01,150:0.001"
    assert setup.config.steps == 300
    assert setup.config.evaluate_every == 10
    assert setup.config.task == "cifar10:width=0.125"


def test_a_pattern_that_fits_nothing_is_an_error_with_near_names() -> None:
    setups = grid.paper("mnist", rescore=True)
    assert len(grid.only(setups, ["mnist-little-*"])) == 24
    with pytest.raises(
        ConfigError, match=r"no name fits 'mnits-\*': did you mean mnist\? The first of 52 is mnist-average"
    ):
        grid.only(setups, ["mnits-*"])
    with pytest.raises(ConfigError, match=r"no name fits 'medain': did you mean median\?"):
        grid.only(setups, ["krum", "medain"])
    with pytest.raises(ConfigError, match=r"no name fits 'krum\*': did you mean krum\?"):
        grid.only(setups, ["krum*"])


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("krum", 16), ("*krum*", 16), ("bulyan:rescore=true", 8), ("bulyan", 16), ("f_12-lr_0.5", 16), ("at_worker", 26)],
)
def test_a_word_is_a_part_of_the_name(pattern: str, count: int) -> None:
    assert len(grid.only(grid.paper("mnist", rescore=True), [pattern])) == count


def test_the_fingerprint_knows_what_changes_the_numbers() -> None:
    base = Config(task="digits", rule="krum", attack="little", byzantine=5)
    same = [{"device": "cpu"}, {"threads": 1}, {"data_dir": "/elsewhere"}, {"checkpoint_every": 3}, {"steps": 150}]
    other = [{"seed": 2}, {"lr": "0.1"}, {"rule": "median"}, {"byzantine": 4}, {"steps": 10}, {"evaluate_every": 3}]
    assert {grid.fingerprint(dataclasses.replace(base, **change)) for change in same} == {grid.fingerprint(base)}
    assert (
        len({grid.fingerprint(dataclasses.replace(base, **change)) for change in other} | {grid.fingerprint(base)}) == 7
    )


@pytest.mark.parametrize(
    ("text", "seeds"), [("1-5", [1, 2, 3, 4, 5]), ("7", [7]), ("1,3-4", [1, 3, 4]), (" 2 , 5 ", [2, 5])]
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert grid.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "1,1", "1-3,2"])
def test_bad_seeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="seed"):
        grid.parse_seeds(text)


GRID = """
[base]
task = "digits"
attack = "little"
byzantine = 5
[grid]
rule = ["krum", "krum:m=1"]
momentum = ["server", "workers"]
seed = "1-3"
"""


def test_a_users_grid_is_every_combination(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(GRID)
    setups = grid.read(tmp_path / "grid.toml")
    assert len(setups) == 12 and len({setup.name for setup in setups}) == 12
    assert {(s.config.rule, s.config.momentum, s.config.seed) for s in setups} == {
        (rule, place, seed) for rule in ("krum", "krum:m=1") for place in ("server", "workers") for seed in (1, 2, 3)
    }
    assert all(setup.config.byzantine == 5 for setup in setups)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[grid]\nrul = ['krum']", "did you mean 'rule'"),
        ("[grib]\nrule = ['krum']", "did you mean 'grid'"),
        ("[grid]\nrule = []", "empty list"),
        ("task = 'digits'", r"put what all runs share under \[base\]"),
        ("[grid]\nseed = [1, 1]", "the same run"),
        ("[base]\nattack = 'little'\nbyzantine = 20\n[grid]\nrule = ['bulyan']", "Bulyan needs"),
        ("[grid\n", "not valid TOML"),
        ("", "grid.toml has no settings"),
        ("# nothing yet\n[base]\n[[grid]]\n", r"write what all runs share under \[base\]"),
        ("grid = []\n[base]\nrule = 'krum'", "grid.toml has no settings"),
        ("grid = 3", "base and grid must be tables"),
        ("base = 'krum'\n[grid]\nseed = 1", "base and grid must be tables"),
        ("[grid]\nrul = ['krum']", "grid.toml: unknown configuration key"),
        ("[grid]\nseed = '1-9999999999'", "more than 100,000 seeds"),
    ],
)
def test_a_bad_grid_is_refused_before_anything_runs(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(GyroscopeError, match=words):
        grid.read(tmp_path / "grid.toml")


def test_an_unknown_half_of_the_paper_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="mnist"):
        grid.paper("minst")


def test_one_experiment_has_one_fingerprint_however_it_is_spelt() -> None:
    def fingerprint(**changes: object) -> str:
        return grid.fingerprint(
            Config(**{"task": "cifar10", "attack": "little", "byzantine": 5, "rule": "krum", **changes})
        )

    assert fingerprint() == fingerprint(task="cifar10:width=1.0") == fingerprint(task="cifar10:width=1")
    assert fingerprint(rule="krum:m=1") == fingerprint(rule="krum: m=1,squared=false")
    assert fingerprint(attack="little:factor=1.5") == fingerprint()
    assert fingerprint(task="cifar10:width=0.5") != fingerprint()


def test_several_grids_share_a_base_so_that_a_baseline_fits_in(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text(
        '[base]\nseed = "1-2"\nmomentum = ["server", "workers"]\n'
        '[[grid]]\nrule = ["krum", "median"]\nattack = "little"\nbyzantine = 5\n'
        '[[grid]]\nrule = "average"\n'
    )
    setups = grid.read(tmp_path / "grid.toml")
    assert len(setups) == 12 and len({setup.name for setup in setups}) == 12
    assert sum(setup.config.attack == "none" for setup in setups) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.toml"], "cannot read the grid nothing.toml: No such file or directory"),
        (["."], "cannot read the grid .: Is a directory"),
        (["empty.toml"], "empty.toml has no settings"),
        (["good.toml", "--devices", "mps"], "'mps' cannot be used"),
        (["good.toml", "--devices", "cuda:99,cpu"], "'cuda:99' cannot be used here"),
    ],
)
def test_a_sweep_that_cannot_run_is_one_message(
    tmp_path: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.toml").touch()
    (tmp_path / "good.toml").write_text("[base]\nsteps = 1\n")
    assert main(["sweep", *arguments]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("gyroscope: error: ") and says in said
    assert not (tmp_path / "runs").exists()


def test_a_sweep_goes_on_after_a_run_that_diverged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text(
        "[base]\nsteps = 3\nworkers = 5\nattack = 'nan'\nbyzantine = 1\n[grid]\nrule = ['average', 'median']"
    )
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "runs"), "--jobs", "1", "--quiet"]) == 0
    assert "2 of 2 runs are complete, 1 of them diverged" in capsys.readouterr().out
