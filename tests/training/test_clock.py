"""Where the time goes: the sections cover the run, and measuring changes no number."""

from __future__ import annotations

import re
import time
from pathlib import Path

from launching import gyroscope

import gyroscope as gy
from gyroscope._core.clock import SECTIONS, Stopwatch

CONFIG = gy.Config(task="digits", rule="krum", attack="little", byzantine=3, workers=11, steps=20, threads=1)


def test_the_sections_add_up_to_the_run_and_change_no_number() -> None:
    clock = Stopwatch()
    gy.train(CONFIG)  # what is compiled or loaded once
    begin = time.perf_counter()
    watched = gy.train(CONFIG, clock=clock)
    elapsed = time.perf_counter() - begin
    assert clock.rounds == 20
    assert all(seconds > 0 for seconds in clock.seconds.values())
    assert 0.2 * elapsed < sum(clock.seconds.values()) <= elapsed  # the rest loads the data
    assert watched.tables == gy.train(CONFIG).tables


def test_time_is_counted_where_it_is_spent() -> None:
    clock = Stopwatch()
    clock.start()
    time.sleep(0.02)
    clock.lap("rule")
    clock.lap("attack")
    time.sleep(0.02)
    clock.start()  # what came before does not count
    clock.lap("data")
    assert clock.seconds["rule"] >= 0.02
    assert clock.seconds["attack"] < 0.01 and clock.seconds["data"] < 0.01


def test_the_command_prints_a_table_of_all_sections(tmp_path: Path) -> None:
    finished = gyroscope(
        "train", "--steps", "5", "--profile", "--quiet", "--rule", "krum", "--attack", "little", "--byzantine", "2",
        cwd=tmp_path,
    )  # fmt: skip
    assert finished.code == 0
    shares = dict(re.findall(r"^  (\w+) .* ([0-9.]+)%", finished.out, flags=re.MULTILINE))
    assert tuple(shares) == SECTIONS
    assert abs(sum(map(float, shares.values())) - 100) < 0.6
    assert "maximum accuracy" in finished.out


def test_a_resumed_run_counts_its_own_rounds(tmp_path: Path) -> None:
    rounds = iter(range(100))
    gy.train(CONFIG, out=tmp_path / "run", stop=lambda: next(rounds) == 11)
    clock = Stopwatch()
    gy.resume(tmp_path / "run", clock=clock)
    assert clock.rounds == 8
