"""The distributed part of `gyroscope bench`: real servers, workers and ranks, few and small."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch

from benchmarks import ddp_steps, ranks, rules, server_round, transports
from benchmarks.timing import Passes
from benchmarks.transport_servers import Memory
from benchmarks.transport_workers import Kind, rows_of
from gyroscope import cli


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


@pytest.mark.parametrize("encrypted", [True, False])
def test_the_bare_transfer_brings_everyones_row(encrypted: bool) -> None:
    memory = Memory(2, 10)
    with transports.connected(Kind("sockets, asyncio", encrypted), memory) as (bare, processes):
        assert len(processes) == 2
        for _ in range(2):
            memory.rows.zero_()
            bare.numbered_round()
            assert torch.equal(memory.rows, rows_of(2, 10))


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_server_plays_rounds_together_and_waits_with_the_next_rows(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_round, "WORKERS", 3)
    with server_round._serving(40, encrypted, together=3) as run:
        assert (run.server.links.context is not None) is encrypted
        for rounds in (3, 6, 9):
            assert run.rounds == rounds and run.server.links._events.qsize() == 3
            run.play()
    assert run.rounds == 12 and run.clock.rounds == 12


def test_the_lines_are_ratios_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten rounds of 6 ms with TLS and of 5 without; a transfer takes 3 ms and 2, the rule 1, the cipher 0.5 each way.

    Four workers and two ways are 4 ms of the cipher, on two cores 2 ms.
    """
    monkeypatch.setattr(server_round, "CORES", 2)
    seconds = {
        server_round.ROUND + server_round.TLS: 0.06,
        server_round.ROUND + server_round.PLAIN: 0.05,
        server_round.BARE + server_round.TLS: 0.03,
        server_round.BARE + server_round.PLAIN: 0.02,
        server_round.THE_RULE: 0.01,
        server_round.CIPHER: 0.005,
    }
    passes = Passes({name: [value] * 3 for name, value in seconds.items()})
    lines = server_round._lines(passes, 40, 10)
    assert [round(line.value, 6) for line in lines] == [1.5, 1.666667, 1.2, 1.4]
    assert [line.limit for line in lines] == [1.5, 1.5, 1.3, None]
    times = [(round(line.ours_ms or 0, 6), round(line.other_ms or 0, 6)) for line in lines]
    assert times == [(6, 4), (5, 3), (6, 5), (7, 5)]


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
    assert "the server's round with TLS / without TLS at (3, 40)" in capsys.readouterr().out
    with (tmp_path / "bench.csv").open() as file:
        table = {row["what"]: row for row in csv.DictReader(file)}
    for how in ("with TLS", "without TLS"):
        for pace in ("", ", one at a time"):
            promised = table[f"the server's round {how}{pace} / the bare transfer {how} + the rule (median)"]
            assert float(promised["limit"]) == 1.5 and float(promised["ours_ms"]) > 0
    for rule, _ in ranks.RULES:
        assert float(table[f"RobustSGD, {rule} / DistributedDataParallel + SGD"]["value"]) > 0
    assert "parameter server, 3 workers, d = 40" in (tmp_path / "profile.txt").read_text()
