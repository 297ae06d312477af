"""A run with rows that came and rows that did not; without any worker process."""

from __future__ import annotations

import json
import math
import multiprocessing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from clusters import launching, table
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import UnknownNameError
from gyroscope.distributed.protocol import ANSWER, EVERYBODY, NO_STEP, ROUND, Message, Offer, connect, link_key
from gyroscope.distributed.server.link_process import Link, LinkAddress, SharedBuffers, WorkerHandle
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.distributed.worker import RowComputer, Worker
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
    handle = WorkerHandle(0)
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


def without_a_process(self: WorkerHandle, address: LinkAddress, buffers: SharedBuffers) -> None:
    """In place of `WorkerHandle.start`."""
    self._reset()
    self.buffers = buffers
    self.pipe, self.other_end = multiprocessing.Pipe()


def test_a_link_is_offered_only_once_its_process_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting may take long. A worker that claimed the link before would wait in vain, and the link for the worker."""
    monkeypatch.setattr(WorkerHandle, "start", without_a_process)
    with Server(ServerOptions(port=0)) as server:
        workers = run_with(monkeypatch, server, CONFIG, {}).round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers._start(workers.handles[0])
        worker, store = Worker(server.host, server.port, 0), connect(server.host, server.port, 5)
        assert worker._claim(store, workers.offer) is None
        assert not worker.claimed
        store.set(link_key(0), "a generation")  # what the process does
        assert worker._claim(store, workers.offer) == "a generation"


def test_parameters_stay_in_the_slot_from_which_a_slow_link_still_sends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Links send right from the memory that the server writes: a slow one must not send two rounds mixed."""
    monkeypatch.setattr(WorkerHandle, "start", without_a_process)
    with Server(ServerOptions(port=0)) as server:
        workers = linked_run(server, CONFIG, directory=tmp_path).round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers.is_open = True
        for handle in workers.handles:
            workers._start(handle)
            handle.linked = handle.idle = True
        fast, slow, slower = workers.handles[0], workers.handles[1], workers.handles[2]
        received: dict[int, list[float]] = {}

        def ordered(handle: WorkerHandle) -> Tensor:
            """All that a link was told to send."""
            message = handle.buffers.parameters[handle.slot]
            assert message.read((ROUND,), handle.worker).step == handle.asked
            return message.values

        def play(step: int, *sluggish: WorkerHandle) -> None:
            workers.parameters.fill_(step)
            workers.ask(step)
            for handle in workers.handles:
                if handle not in sluggish and handle.asked == step:
                    received[handle.worker] = ordered(handle).unique().tolist()
                    handle.has_answered(step)

        play(0)
        play(1)
        assert fast.slot == 0 and not any(handle.sending for handle in workers.handles)  # one slot is enough
        play(2, slow)
        play(3, slow)
        play(4, slow, slower)
        assert slow.asked == 2 and ordered(slow).unique().tolist() == [2.0]  # two rounds later
        assert slower.asked == 4 and ordered(slower).unique().tolist() == [4.0] and received[fast.worker] == [4.0]
        slow.buffers.sent.fill_(2)  # it has them, and computes
        play(5, slow, slower)
        assert ordered(slower).unique().tolist() == [4.0] and received[fast.worker] == [5.0] and slow.linked
        workers.handles[3].buffers.sent.fill_(4)  # it still sends those of step 5: both slots are in use
        play(6, slower)
        assert not slower.linked and workers.handles[3].linked and received[fast.worker] == [6.0]
        [lost] = [event for event in table(tmp_path / "events.csv") if event["event"] == "lost"]
        assert lost["worker"] == str(slower.worker) and "parameters of step 4" in lost["detail"]


class _EnoughError(Exception):
    """Ends a link's loop."""


def link_with(connection_end: Connection, worker: int = 0) -> tuple[Link, SharedBuffers]:
    """A link in this process, with room for two values, and its buffers."""
    parameters, answers = (tuple(Message(2, torch.float32) for _ in range(2)) for _ in range(2))
    buffers = SharedBuffers(parameters, torch.tensor([NO_STEP]), None, NO_STEP, answers)
    return Link(LinkAddress("", 0, worker, "", 5.0), buffers, connection_end), buffers


def test_a_link_reports_what_it_has_sent_only_once_it_has() -> None:
    """The server overwrites what was sent. Reported too early, a worker gets two rounds mixed; never, it is lost."""
    ours, theirs = multiprocessing.Pipe()
    link, buffers = link_with(theirs)
    for step, slot in ((7, 1), (8, 0)):
        buffers.parameters[slot].values.fill_(step)
        buffers.parameters[slot].seal(ROUND, step, EVERYBODY)
        ours.send_bytes(json.dumps({"do": "round", "step": step, "slot": slot}).encode())
    seen: list[tuple[int, list[float]]] = []

    class FakeConnection:
        def send(self, message: Message, seconds: float) -> None:
            seen.append((int(buffers.sent), message.values.tolist()))
            if len(seen) == 2:
                raise _EnoughError

    with pytest.raises(_EnoughError):
        link._execute_orders(FakeConnection())  # type: ignore[arg-type]
    assert seen == [(NO_STEP, [7.0, 7.0]), (7, [8.0, 8.0])]


def test_answers_that_nobody_asked_for_are_reported_once_with_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever step an answer names, also the number that stands for none, the report says what is wrong with it."""
    ours, theirs = multiprocessing.Pipe()
    link, _ = link_with(theirs, worker=3)
    steps = iter([NO_STEP, NO_STEP, 5])

    class FakeConnection:
        def receive(self, message: Message, seconds: float) -> None:
            step = next(steps, None)
            if step is None:
                raise _EnoughError
            link.pending = step if step == 5 else NO_STEP
            message.seal(ANSWER, step, 3, 0.5)

    monkeypatch.setattr(link, "_close", lambda why: None)
    link._receive_answers(FakeConnection())  # type: ignore[arg-type]
    events = []
    while ours.poll():
        events.append(json.loads(ours.recv_bytes()))
    assert [event["event"] for event in events] == ["stray", "row"]
    assert events[0]["why"] == "it answers step -1, which is answered already"
    assert events[1] == {"step": 5, "event": "row", "loss": 0.5, "slot": 0}


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
