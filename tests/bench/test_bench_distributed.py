"""The distributed part of `gyroscope bench`: real servers, workers and ranks, few and small."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks import ddp_steps, ranks, rules, server_round
from benchmarks.stub_workers import row_of
from gyroscope import cli
from gyroscope._core.clock import Stopwatch


def test_shapes_are_those_of_the_papers_models() -> None:
    for d in (79_510, 1_310_922):
        shapes = ranks.shapes_of(d)
        assert len(shapes) > 1 and sum(torch.Size(shape).numel() for shape in shapes) == d
    assert ranks.shapes_of(7) == [(7,)]


def test_a_task_has_as_many_parameters_as_asked_for() -> None:
    for d in (4, 79_510):
        model = server_round.task_of(d).model
        assert not isinstance(model, torch.nn.Module)
        assert sum(parameter.numel() for parameter in model().parameters()) == d


def test_the_bare_transfer_brings_everyones_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_round, "WORKERS", 2)
    with server_round._bare_transfer(10) as bare:
        for _ in range(2):
            bare.rows.zero_()
            bare()
            assert torch.equal(bare.rows, torch.stack([row_of(0, 10), row_of(1, 10)]))


def test_a_pass_is_the_mean_of_what_was_done_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(server_round, "_WARM_UP", 1)
    monkeypatch.setattr(server_round.time, "perf_counter", lambda: now)
    beside = server_round._Beside(lambda: takes(1.0), 4, 0.0, Stopwatch(), 3)  # type: ignore[arg-type]
    beside.settled = lambda: takes(0.75)
    beside.rule = lambda rows, f: takes(0.125)  # type: ignore[assignment]
    for _ in range(6):
        takes(0.5)
        beside.step({})
    assert beside.seconds == {server_round.ROUND: [0.75], server_round.BARE: [1.0], server_round.THE_RULE: [0.125]}


@pytest.mark.slow
def test_the_command_measures_steps_of_ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddp_steps, "MODELS", ("GPT",))
    monkeypatch.setattr(ranks, "_LEAST", 2)
    assert cli.main(["bench", "ddp", "--seconds", "0.1", "--out", str(tmp_path)]) == 0
    with (tmp_path / "bench.csv").open() as file:
        table = {row["what"]: row for row in csv.DictReader(file)}
    assert float(table["GPT: gy.ddp, median / DistributedDataParallel"]["limit"]) == 1.15
    assert all(float(row["ours_ms"]) > 0 for row in table.values()) and len(table) == len(ddp_steps.RULES)


@pytest.mark.slow
def test_the_command_measures_server_and_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules, "SMALL", (51, 40))
    monkeypatch.setattr(rules, "LARGE", (25, 40))
    for module, name, value in ((server_round, "WORKERS", 3), (server_round, "_LEAST", 3), (ranks, "RANKS", 3)):
        monkeypatch.setattr(module, name, value)
    assert cli.main(["bench", "distributed", "--seconds", "0.1", "--out", str(tmp_path)]) == 0
    assert "the server's round / the bare transfer at (3, 40)" in capsys.readouterr().out
    with (tmp_path / "bench.csv").open() as file:
        table = {row["what"]: row for row in csv.DictReader(file)}
    promised = table["the server's round / the bare transfer + the rule (median)"]
    assert float(promised["limit"]) == 1.5 and float(promised["ours_ms"]) > 0
    one_by_one = table["the server's round, one at a time / the bare transfer + the rule (median)"]
    assert float(one_by_one["limit"]) == 1.5 and float(one_by_one["ours_ms"]) > 0
    for rule, _ in ranks.RULES:
        assert float(table[f"RobustSGD, {rule} / DistributedDataParallel + SGD"]["value"]) > 0
    assert "parameter server, 3 workers, d = 40" in (tmp_path / "profile.txt").read_text()
