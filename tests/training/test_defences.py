"""Defences by name: the settings of a name, and that options must not repeat them."""

from __future__ import annotations

from pathlib import Path

import pytest
from launching import gyroscope

import gyroscope as gy
from gyroscope._core.errors import UnknownNameError
from gyroscope.runs.defences import DEFENCES

QUICK = ("--steps", 3, "--workers", 7, "--threads", 1, "--quiet")


@pytest.mark.parametrize("name", DEFENCES)
def test_a_name_stands_for_settings_in_python_and_on_the_command_line(tmp_path: Path, name: str) -> None:
    config = gy.Config(**gy.defence(name), workers=7, steps=3, threads=1).resolve()
    finished = gyroscope("train", "--defence", name, *QUICK, "--out", tmp_path / "run")
    assert finished.code == 0, finished.err
    assert gy.Config.load(tmp_path / "run" / "config.toml").experiment() == config.experiment()


def test_an_unknown_name_gets_the_nearest_one_suggested() -> None:
    with pytest.raises(UnknownNameError, match="unknown defence 'bets': did you mean 'best'"):
        gy.defence("bets")


@pytest.mark.parametrize("option", [("--rule", "krum"), ("--momentum", "server")])
def test_options_must_not_repeat_what_a_defence_sets(tmp_path: Path, option: tuple[str, str]) -> None:
    finished = gyroscope("train", "--defence", "best", *option, *QUICK, "--out", tmp_path / "run")
    assert finished.code == 2 and f"Leave out {option[0]}" in finished.err and not (tmp_path / "run").exists()


def test_the_best_is_not_for_unequal_data_and_says_so(tmp_path: Path) -> None:
    finished = gyroscope("train", "--defence", "best", "--shards", "sorted", *QUICK, "--out", tmp_path / "sorted")
    assert finished.code == 0 and "warning: --defence best with --shards sorted: it takes workers" in finished.err
    for shards in ("common", "iid"):
        finished = gyroscope("train", "--defence", "best", "--shards", shards, *QUICK, "--out", tmp_path / shards)
        assert finished.code == 0 and "warning" not in finished.err


def test_a_resumed_run_has_its_defence_already(tmp_path: Path) -> None:
    finished = gyroscope("train", "--defence", "best", "--resume", tmp_path)
    assert finished.code == 2 and "leave out --defence" in finished.err


@pytest.mark.parametrize("attack", ["little", "empire"])
def test_the_best_withstands_seven_of_fifteen(attack: str) -> None:
    """The median, which tolerates as many by its theory, loses no less to these attacks in their default form."""
    settings = {"attack": attack, "byzantine": 7, "workers": 15, "steps": 100, "batch": 4, "threads": 1}
    best = gy.train(gy.Config(**gy.defence("best"), **settings)).max_accuracy
    median = gy.train(gy.Config(rule="median", momentum="workers", **settings)).max_accuracy
    assert best > 0.9 and best >= median
