"""A run with rows that came and rows that did not; without any worker process."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from clusters import launching
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import UnknownNameError
from gyroscope.distributed.protocol import NO_STEP, Offer
from gyroscope.distributed.server.linked_worker import LinkedWorker
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.distributed.worker import RowComputer
from gyroscope.runs.events import EventLog
from gyroscope.runs.training import Run, load_task
from gyroscope.simulation.workers import SimulatedWorkers

CONFIG = gy.Config(
    workers=6, byzantine=1, declared_byzantine=2, rule="median", attack="little", momentum="none", threads=1
)


def linked_run(
    server: Server, config: gy.Config, task: gy.Task | None = None, directory: Path = Path("nowhere")
) -> Run:
    """A run whose workers are linked to the server."""
    resolved = config.resolve(task)
    return Run(resolved, task or load_task(resolved), partial(server._link_workers, EventLog(directory)))


def run_with(
    monkeypatch: pytest.MonkeyPatch, server: Server, config: gy.Config, damage: dict[int, Tensor | None]
) -> Run:
    """A run whose workers send the simulated ones' rows, except those whose row is given (None: nothing comes)."""

    def collect(self: LinkedWorkers, step: int, rows: Tensor) -> None:
        losses, honest = SimulatedWorkers.sample(self.simulated, step)
        self._losses = dict(enumerate(losses.tolist()))
        sent = {number: damage.get(number, row) for number, row in enumerate(honest)}
        self._received = {number for number, row in sent.items() if row is not None}
        self._finite = {number for number in self._received if sent[number].isfinite().all()}
        for number in self._received:
            rows[number].copy_(sent[number])

    monkeypatch.setattr(LinkedWorkers, "collect", collect)
    return linked_run(server, config)


def test_measures_and_attack_are_over_the_rows_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ServerOptions(port=0)) as server:
        whole = Run(CONFIG.resolve(), load_task(CONFIG.resolve()))
        losses, rows = whole.round_config.workers.sample(0)
        parameters = whole.parameters.clone()
        for row in (None, torch.full_like(parameters, math.nan)):
            run = run_with(monkeypatch, server, CONFIG, {2: row})
            measured = run.play_round()
            there = [0, 1, 3, 4]
            mean, std = rows[there].mean(dim=0), rows[there].std(dim=0)
            assert measured["loss"] == pytest.approx(float(losses[there].mean()))
            assert measured["sent_norm"] == measured["sampled_norm"] == pytest.approx(float(mean.norm()), rel=1e-5)
            assert measured["attack_norm"] == pytest.approx(float((mean - 1.5 * std).norm()), rel=1e-5)
            sent = torch.cat([rows[there], (mean - 1.5 * std).unsqueeze(0), torch.full((1, len(mean)), torch.inf)])
            direction = sent.sort(dim=0).values[2]  # the lower middle of six
            lr = measured["lr"]
            assert torch.allclose(run.parameters, parameters - lr * direction, atol=1e-6)


def test_required_rows_leave_room_for_simulated_byzantine_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6, 1 of them simulated and Byzantine, 2 tolerated, one of the others may be missing; with `average` none."""
    for rule, required in (("median", 4), ("average", 5)):
        with Server(ServerOptions(port=0)) as server:
            config = gy.Config(workers=6, byzantine=1, declared_byzantine=2, rule=rule, attack="little", threads=1)
            workers = run_with(monkeypatch, server, config, {}).round_config.workers
            assert isinstance(workers, LinkedWorkers) and workers.required == required


def test_momentum_of_worker_processes_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ServerOptions(port=0)) as server:
        config = gy.Config(workers=5, rule="median", momentum="workers", threads=1, measure_every=2)
        run = run_with(monkeypatch, server, config, {})
        assert run.round_state.worker_momentum is None
        rows = [run.play_round() for _ in range(3)]
        assert rows[2]["sent_norm"] and rows[2]["sampled_norm"] is None and rows[2]["straightness"] is None
        assert set(run.state()["workers"]) == {"momentum", "steps"} and "worker_momentum" not in run.state()


def test_the_last_two_momenta_are_kept_and_the_one_before_an_abandoned_round_is_found() -> None:
    handle = LinkedWorker(0)
    assert handle.momentum() == (NO_STEP, None)
    buffers = [torch.full((3,), float(step)) for step in range(3)]
    for step, buffer in enumerate(buffers):
        handle.keep_momentum(step, buffer)
    assert [handle.momentum(until)[0] for until in (0, 1, 2, 7)] == [NO_STEP, 1, 2, 2]
    assert handle.momentum()[1] is buffers[2]  # no copy: it stays where it was received
    handle.copy_momenta()
    for buffer in buffers:
        buffer.fill_(math.nan)  # the next answer arrives there
    for step in (1, 2):
        assert torch.equal(handle.momentum(step)[1], torch.full((3,), float(step)))


def test_the_server_keeps_batch_norm_statistics_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ServerOptions(port=0)) as server:
        task = launching.custom_task()
        run = linked_run(server, gy.Config(workers=3, rule="average", momentum="none", threads=1), task)
        monkeypatch.setattr(LinkedWorkers, "collect", lambda self, step, rows: rows.zero_())
        workers = run.round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers._losses, workers._received, workers._finite = dict.fromkeys(range(3), 0.0), {0, 1, 2}, {0, 1, 2}
        ambient = torch.random.get_rng_state()
        workers.sample(0)
        assert torch.equal(ambient, torch.random.get_rng_state())
        buffers = dict(run.model.named_buffers())
        assert buffers["1.num_batches_tracked"] == 1 and buffers["1.running_mean"].abs().sum() > 0


def test_a_worker_builds_only_tasks_and_shardings_that_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reaches the server's port can write the offer: it must not be able to have a module imported."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    offer = Offer(gy.Config(task="trap:Task", rule="trap:Rule", workers=3), 3, 10, "float32", 10.0)
    with pytest.raises(UnknownNameError, match="trap:Task"):
        RowComputer(Offer.parse(offer.text()), 0, {})
    offer = Offer(gy.Config(shards="trap:Sharding", workers=3), 3, 10, "float32", 10.0)
    with pytest.raises(UnknownNameError, match="trap:Sharding"):
        RowComputer(Offer.parse(offer.text()), 0, {})
