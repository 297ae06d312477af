"""The benchmark's own arithmetic and its outputs; no test depends on speed."""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gyroscope as gy
from benchmarks import growth, lower_bound, other_libraries, peak_memory, plot, results, rules, timing
from benchmarks.results import Line
from gyroscope import cli
from gyroscope._core.errors import DataError
from gyroscope.runs import training
from gyroscope.runs.training import Run


def test_a_ratio_compares_within_each_pass() -> None:
    passes = timing.Passes({"ours": [1.0, 20.0, 3.0], "theirs": [2.0, 40.0, 3.0]})
    ratio = passes.ratio("ours", "theirs")
    assert ratio == (0.5, 0.5, 0.75)
    assert passes.ratio("ours", "theirs", factor=4).middle == 2.0
    assert ratio.inverse().middle == 2.0


def test_in_turn_goes_round_and_leaves_the_first_pass_out() -> None:
    calls: list[str] = []
    things = {"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.01))}
    passes = timing.in_turn(things, budget=0.0, least=3)
    assert calls == ["a", "b"] * 4
    assert [len(values) for values in passes.seconds.values()] == [3, 3]
    assert passes.ratio("b", "a").middle > 1
    assert len(timing.in_turn({"a": lambda: None}, budget=100.0, most=7).seconds["a"]) == 7


@pytest.mark.parametrize(("n", "f"), [(51, 12), (25, 5)])
def test_every_rule_is_measured_and_every_promise_has_its_measurement(n: int, f: int) -> None:
    rows = torch.randn(n, 50)
    things = rules.things(rows, f)
    assert set(gy.rules.RULES) - set(things) == ({"smea"} if n == 51 else set())
    for thing in things.values():
        thing()
    for shape, name, yardstick in rules.LIMITS:
        if shape[0] == n:
            assert name in things
            assert yardstick in things or yardstick.startswith("byzfl")
            assert yardstick in rules.SIBLINGS[name] or yardstick == rules.MEAN


def test_lines_say_what_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SMALL", (51, 40))
    monkeypatch.setitem(rules.LIMITS, ((51, 40), "median", rules.MEAN), 1e9)
    monkeypatch.setitem(rules.LIMITS, ((51, 40), "krum", rules.GRAM), 1e-9)
    found = {line.what: line for line in rules.measure((51, 40), budget=0.1)}
    assert found[f"median / {rules.MEAN}"].holds is True
    assert found[f"krum / {rules.GRAM}"].holds is False
    assert found[f"krum / {rules.MEAN}"].holds is None
    assert "DOES NOT HOLD" in results.table(found.values())


@pytest.mark.skipif(importlib.util.find_spec("byzfl") is None, reason="needs pip install --no-deps byzfl")
def test_byzfl_is_measured_without_importing_all_of_it() -> None:
    found = other_libraries.rules(11, 2)
    rows = torch.randn(11, 30)
    assert torch.equal(found["byzfl Median"](rows), rows.median(dim=0).values)
    assert "torchvision" not in sys.modules
    assert "byzfl" not in sys.modules


def test_torchjd_chooses_the_same_rows_as_our_krum() -> None:
    pytest.importorskip("torchjd")
    rows = torch.randn(11, 30)
    theirs = other_libraries.rules(11, 2)["torchjd Krum"](rows)
    torch.testing.assert_close(theirs, gy.rules.Krum()(rows, f=2).vector)


def test_the_lower_bound_counts_the_products_of_a_run() -> None:
    task = gy.tasks.parse("digits").load()
    config = dataclasses.replace(
        lower_bound.MNIST, task="digits", workers=11, byzantine=2, batch=8, steps=7, evaluate_every=5
    ).resolve(task)
    run = Run(config, task)
    layers = [layer for layer in run.model if isinstance(layer, torch.nn.Linear)]
    forward = sum(2 * layer.weight.numel() for layer in layers)
    # Each layer's weight gradient costs as much as its forward; so does the gradient of its input, if it needs one.
    backward = forward + sum(2 * layer.weight.numel() for layer in layers[1:])
    samples = 9 * 8
    in_round, in_evaluation = lower_bound.products(run)
    assert in_round.operations == samples * (forward + backward)
    assert in_evaluation.operations == len(run.test.samples) * forward
    run.round_state.gradients.fill_(1.0)  # it may hold NaN, which equals nothing
    before = run.round_state.gradients.clone()
    assert in_round.again() > 0 and in_evaluation.again() > 0
    assert torch.equal(run.round_state.gradients, before)  # they are done in memory of their own


def test_a_run_beside_its_lower_bound_is_the_run_it_would_be_without() -> None:
    lines, clock = _tiny(lower_bound.mnist_run)
    run, alone, rate = lines
    assert alone.ours_ms == run.ours_ms
    assert run.value == pytest.approx((run.ours_ms or 0) / (run.other_ms or 1))
    assert rate.unit == "GFLOP/s" and rate.value > 0.1
    assert sum(clock.seconds.values()) <= (run.ours_ms or 0) / 1e3 * 1.05


def test_the_share_of_everything_but_gradients() -> None:
    (line,), clock = _tiny(lower_bound.cifar10_rounds)
    assert 0 < line.value < 1
    assert line.value == pytest.approx(1 - clock.seconds["gradients"] / sum(clock.seconds.values()))


def _tiny(measure):  # type: ignore[no-untyped-def]
    task = gy.tasks.parse("digits").load()
    threads = torch.get_num_threads()
    tiny = dataclasses.replace(lower_bound.MNIST, task="digits", workers=11, byzantine=2, steps=21)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower_bound, "MNIST", tiny)
        patch.setattr(lower_bound, "CIFAR10", tiny)
        patch.setattr(lower_bound, "SIDE", 64)
        found = measure(task)
    torch.set_num_threads(threads)
    return found


def test_growth_is_compared_with_what_was_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "COLUMNS", 64)
    monkeypatch.setattr(growth, "PARAMETERS", (10, 100))
    monkeypatch.setattr(growth, "WORKERS", (7, 25, 31))
    lines = [*growth.in_workers(0.1), *growth.in_parameters(0.1)]
    assert [line.n for line in lines if line.unit == "ns/column"] == [7, 25, 31] * 2
    promised = [line for line in lines if line.limit is not None]
    assert len(promised) == 4
    passes = timing.Passes({"krum, n = 31": [31.0**2], "krum, n = 7": [7.0**2]})
    assert growth._grown(passes, "krum", 7, 31).value == pytest.approx(1)
    assert {line.d for line in lines if line.part == "growth in d"} == {10, 100}


def test_the_command_writes_table_csv_picture_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules, "SMALL", (51, 40))
    monkeypatch.setattr(rules, "LARGE", (25, 60))
    monkeypatch.setattr(growth, "COLUMNS", 64)
    monkeypatch.setattr(growth, "PARAMETERS", (10, 100))
    out = tmp_path / "out"
    assert cli.main(["bench", "growth", "rules", "--seconds", "0.1", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "median / torch.mean(dim=0) at (51, 40)" in said
    with (out / "bench.csv").open() as file:
        table = list(csv.DictReader(file))
    assert {row["part"] for row in table} == {"rules", "floors", "growth in n", "growth in d"}
    assert all(float(row["value"]) > 0 for row in table)
    assert (out / "bench.png").stat().st_size > 20_000
    machine = json.loads((out / "machine.json").read_text())
    assert machine["threads"] >= 1 and machine["kernels_ready_seconds"] >= 0


def test_without_data_the_parts_that_need_it_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(config: gy.Config) -> None:
        raise DataError(f"cannot find {config.task}")

    monkeypatch.setattr(training, "load_task", nothing)
    assert cli.main(["bench", "memory", "training", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert said.count("left out, no data: cannot find mnist") == 2
    assert said.count("left out, no data: cannot find cifar10") == 2


def test_peak_memory_is_that_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        said.append(command)
        return subprocess.CompletedProcess(command, 0, "some words\n512.5 2.5\n", "")

    monkeypatch.setattr(subprocess, "run", run)
    line, *matrices = peak_memory.measure("mnist", "somewhere")
    assert (line.value, line.unit, line.holds) == (512.5, "MB", True)
    assert [(each.value, each.holds) for each in matrices] == [(2.5, True), (2.5, True)]
    assert [command[-3:] for command in said] == [["mnist", n, "somewhere"] for n in ("0", "51", "255")]


@pytest.mark.parametrize("words", [["ruels"], ["--seconds", "0"], ["--threads", "0"]])
def test_mistakes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_a_picture_of_nothing_is_still_a_picture(tmp_path: Path) -> None:
    plot.draw([Line("memory", "peak", None, None, 1.0, "MB")], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000


@pytest.mark.parametrize("words", [["--help"], ["--seconds", "2"], ["rules"]])
def test_an_installed_package_says_where_the_benchmarks_are(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.bench, "_CHECKOUT", tmp_path)
    try:
        code = cli.main(["bench", *words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split()).lower()
    assert "the benchmarks are not part of the installed package: clone the repository" in text
    assert code == (0 if words == ["--help"] else 2)
