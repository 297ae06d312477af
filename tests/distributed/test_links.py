"""What a run makes of the rows that came, and of those that did not; without any process."""

from __future__ import annotations

import json
import math
import multiprocessing
from pathlib import Path

import pytest
import torch
from clusters import launching
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import UnknownNameError
from gyroscope.distributed.protocol import EVERYBODY, NO_STEP, ROUND, Message, Offer, link_key, reach
from gyroscope.distributed.server import link_process
from gyroscope.distributed.server.link_process import LinkAddress, SharedBuffers
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.server.worker_handle import WorkerHandle
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.distributed.worker import Calculator, Worker
from gyroscope.runs.training import Run, load_task
from gyroscope.simulation.workers import SimulatedWorkers

CONFIG = gy.Config(
    workers=6, byzantine=1, declared_byzantine=2, rule="median", attack="little", momentum="none", threads=1
)


def run_with(
    monkeypatch: pytest.MonkeyPatch, server: Server, config: gy.Config, damage: dict[int, Tensor | None]
) -> Run:
    """A run whose workers send what the simulated ones would, except those whose row is given (None: nothing comes)."""

    def collect(self: LinkedWorkers, step: int, deadline: float, into: Tensor) -> dict[int, Tensor]:
        losses, rows = SimulatedWorkers.sample(self.simulated, step)
        self._losses = dict(enumerate(losses.tolist()))
        sent = {number: damage.get(number, row) for number, row in enumerate(rows)}
        self._sound = {number for number, row in sent.items() if row is not None and row.isfinite().all()}
        return {number: into[number].copy_(row) for number, row in sent.items() if row is not None}

    monkeypatch.setattr(LinkedWorkers, "collect", collect)
    config = config.resolve()
    return Run(config, load_task(config), server._worker_factory(Path("nowhere")))


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


def test_required_rows_leave_room_for_simulated_liars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6, with 1 simulated liar and 2 tolerated, one of the 5 others may be missing; with `average` none."""
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
        assert set(run.state()["workers"]) == {"memories", "steps"} and run.state()["worker_momentum"] == {}


def test_the_last_two_momenta_are_known_and_the_one_before_an_abandoned_round_is_found() -> None:
    remote = WorkerHandle(0)
    assert remote.memory() == (NO_STEP, None)
    buffers = [torch.full((3,), float(step)) for step in range(3)]
    for step, buffer in enumerate(buffers):
        remote.remember(step, buffer)
    assert [remote.memory(until)[0] for until in (0, 1, 2, 7)] == [NO_STEP, 1, 2, 2]
    assert remote.memory()[1] is buffers[2]  # no copy: it lies where it was received
    remote.keep()
    for buffer in buffers:
        buffer.fill_(math.nan)  # the next answer comes there
    for step in (1, 2):
        assert torch.equal(remote.memory(step)[1], torch.full((3,), float(step)))


def test_a_link_is_offered_only_once_its_process_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting may take long. A worker that claimed it before would wait in vain, and then the link for the worker."""

    def start(self: WorkerHandle, place: LinkAddress, shelf: SharedBuffers) -> None:
        self.pipe, self.other_end = multiprocessing.Pipe()  # and no process

    monkeypatch.setattr(WorkerHandle, "start", start)
    with Server(ServerOptions(port=0)) as server:
        workers = run_with(monkeypatch, server, CONFIG, {}).round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers._start(workers.links[0])
        worker, store = Worker(server.host, server.port, 0), reach(server.host, server.port, 5)
        assert worker._claim(store, workers.offer) is None
        assert not worker.claimed
        store.set(link_key(0), "a generation")  # what the process does
        assert worker._claim(store, workers.offer) == "a generation"


def test_parameters_stay_where_a_slow_link_still_sends_them_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links send right from the memory that the server writes: whoever is slow must not send two rounds mixed."""

    def start(self: WorkerHandle, place: LinkAddress, shelf: SharedBuffers) -> None:
        self.pipe, self.other_end = multiprocessing.Pipe()  # and no process
        self.shelf, self.sent, self.asked = shelf, shelf.sent, NO_STEP

    monkeypatch.setattr(WorkerHandle, "start", start)
    with Server(ServerOptions(port=0)) as server:
        workers = run_with(monkeypatch, server, CONFIG, {}).round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers._open = True
        for each in workers.links:
            workers._start(each)
            each.linked = each.free = True
        fast, slow, slower = workers.links[0], workers.links[1], workers.links[2]
        wire: dict[int, list[float]] = {}

        def told(each: WorkerHandle) -> Tensor:
            """What a link has been told to send, all of it."""
            shelf = each.shelf  # type: ignore[attr-defined]
            message = Message(shelf.values, shelf.dtype, shelf.parameters[each.place])
            assert message.read((ROUND,), each.worker).step == each.asked
            return message.values

        def play(step: int, *sluggish: WorkerHandle) -> None:
            workers.parameters.fill_(step)
            workers.ask(step)
            for each in workers.links:
                if each not in sluggish and each.asked == step:
                    wire[each.worker] = told(each).unique().tolist()
                    each.has_answered(step)

        play(0)
        play(1)
        assert fast.place == 0 and not any(each.sending for each in workers.links)  # one place is enough
        play(2, slow)
        play(3, slow)
        play(4, slow, slower)
        assert slow.asked == 2 and told(slow).unique().tolist() == [2.0]  # two rounds later
        assert slower.asked == 4 and told(slower).unique().tolist() == [4.0] and wire[fast.worker] == [4.0]
        slow.sent.fill_(2)  # it has them, and computes
        play(5, slow, slower)
        assert told(slower).unique().tolist() == [4.0] and wire[fast.worker] == [5.0] and slow.linked
        workers.links[3].asked, workers.links[3].place = 5, fast.place  # both places are in use
        play(6, slower)
        assert not slower.linked and workers.links[3].linked and wire[fast.worker] == [6.0]
        [lost] = [event for event in workers.log._kept if event[2] == "lost"]
        assert lost[3] == str(slower.worker) and "parameters of step 4" in lost[5]


class _EnoughError(Exception):
    """Ends a link's loop."""


def test_a_link_says_what_it_has_sent_only_once_it_has() -> None:
    """The server writes over what was sent: said too early, a worker gets two rounds mixed; never, it is given up."""
    ours, theirs = multiprocessing.Pipe()
    places = [Message(2, torch.float32) for _ in range(2)]
    for step, place in ((7, 1), (8, 0)):
        places[place].values.fill_(step)
        places[place].seal(ROUND, step, EVERYBODY)
        ours.send_bytes(json.dumps({"do": "round", "step": step, "place": place}).encode())
    nothing = torch.zeros(0)
    shelf = SharedBuffers(2, torch.float32, (places[0].buffer, places[1].buffer), torch.tensor([NO_STEP]), nothing,
                  (nothing, nothing), 2)  # fmt: skip
    seen: list[tuple[int, list[float]]] = []

    class Wire:
        def send(self, message: Message, seconds: float) -> None:
            seen.append((int(shelf.sent), message.values.tolist()))
            if len(seen) == 2:
                raise _EnoughError

    with pytest.raises(_EnoughError):
        link_process._Link(LinkAddress("", 0, 0, "", 5.0, NO_STEP), shelf, theirs)._obey(Wire())  # type: ignore[arg-type]
    assert seen == [(NO_STEP, [7.0, 7.0]), (7, [8.0, 8.0])]


def test_the_server_keeps_batch_norm_statistics_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(ServerOptions(port=0)) as server:
        task = launching.custom_task()
        config = gy.Config(workers=3, rule="average", momentum="none", threads=1).resolve(task)
        run = Run(config, task, server._worker_factory(Path("nowhere")))
        monkeypatch.setattr(LinkedWorkers, "collect", lambda self, step, deadline, into: dict(enumerate(into.zero_())))
        workers = run.round_config.workers
        assert isinstance(workers, LinkedWorkers)
        workers._losses, workers._sound = dict.fromkeys(range(3), 0.0), {0, 1, 2}
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
        Calculator(Offer.parse(offer.text()), 0, {})
    offer = Offer(gy.Config(shards="trap:Sharding", workers=3), 3, 10, "float32", 10.0)
    with pytest.raises(UnknownNameError, match="trap:Sharding"):
        Calculator(Offer.parse(offer.text()), 0, {})
