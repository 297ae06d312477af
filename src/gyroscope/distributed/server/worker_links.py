"""All links of a server, as the honest workers of a run: `collect` is where rows come in from outside."""

from __future__ import annotations

import json
import math
import secrets
import select
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import RoundAbandonedError, RunDirectoryError
from gyroscope._linalg.matrix import all_finite, copy_finite
from gyroscope.distributed.protocol import NO_STEP, OFFER, OVER, Message, Offer, TCPStore, link_key
from gyroscope.distributed.server import link_process
from gyroscope.distributed.server.broadcast_buffer import PLACES, BroadcastBuffer, shared
from gyroscope.distributed.server.worker_handle import WorkerHandle
from gyroscope.runs import events
from gyroscope.runs.events import Events
from gyroscope.simulation.workers import SimulatedWorkers, restore_buffers

_SLICE_SECONDS = 0.2
"""How long to sleep at most before looking whether somebody asked to stop."""
_END_SECONDS = 10.0


class LinkedWorkers:
    """The honest workers of a run, each a process of its own behind a link: they implement `Workers`.

    simulated: the workers whose place they take. Nothing but their number, their parameters and, for batch-norm's
        running statistics, their data is used.
    required: how many rows without NaN or inf a round needs. Missing ones count as Byzantine, so it is n - f for a
        rule that tolerates f.
    deadline: seconds that a round waits for workers that are there, once it has enough rows.
    grace: seconds that it waits for enough rows. After as long a silence a worker's link is given up, too.
    stop: asked while waiting.
    remark: told who is missing.
    opened: called before the first worker may join; the run directory is there by then.
    """

    def __init__(
        self,
        simulated: SimulatedWorkers,
        offer: Offer,
        store: TCPStore,
        address: tuple[str, int],
        *,
        required: int,
        grace: float,
        log: Events,
        stop: Callable[[], bool] = lambda: False,
        remark: Callable[[str], None] = lambda text: None,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.count, self.parameters = simulated.count, simulated.parameters
        self.simulated, self.offer, self.store, self.address = simulated, offer, store, address
        self.accumulates = offer.config.momentum == "workers"
        self.present: Tensor | None = None
        self.required, self.deadline, self.grace = required, offer.deadline, grace
        self.log, self.stop, self.remark, self.opened = log, stop, remark, opened
        self.session = secrets.token_hex(4)
        self._dimension = self.parameters.numel()
        self._outbox = BroadcastBuffer(self._dimension, self.parameters.dtype)
        self._place = 0
        """Where in the outbox this round's parameters lie."""
        self.links = [WorkerHandle(number) for number in range(self.count)]
        self._played = self._asked = NO_STEP
        self._into = self.parameters.new_empty(0, self._dimension)
        """The matrix of the round, whose rows are waited for."""
        self._rows: dict[int, Tensor] = {}
        self._sound: set[int] = set()
        self._losses: dict[int, float] = {}
        # The links' pipes. (multiprocessing's wait() would make all of this anew for every message.)
        self._ears = select.poll()
        self._speakers: dict[int, WorkerHandle] = {}
        self._open = False

    # -- what a run asks of its workers -------------------------------------------------------------------------------

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """(losses of those present, rows of all): the rows that came in time, NaN for the others."""
        rows = self.parameters.new_empty(self.count, self.parameters.numel()) if out is None else out
        collected = self.collect(step, self.deadline, rows)
        for number in range(self.count):
            if number not in collected:
                rows[number].fill_(math.nan)
        sound = sorted(self._sound)
        self.present = None if len(sound) == self.count else torch.tensor(sound, device=rows.device)
        # What a worker says of its loss is shown to people and used for nothing.
        losses = [self._losses[number] for number in sound if math.isfinite(self._losses[number])]
        self._follow_statistics(step)
        clock.lap("gradients")
        return torch.tensor(losses, dtype=rows.dtype), rows

    def ask(self, step: int) -> None:
        """Tell the workers that are there to begin: the parameters are those of this step already.

        `collect` would do it. To be asked earlier lets them compute while the server measures, evaluates and writes.
        """
        if not self._open:
            return
        self._asked = step
        self._publish(step)
        for each in self.links:
            each.told = each.answered = False
        self._rows, self._sound = {}, set()
        self._order(step)

    def state(self) -> dict[str, Tensor]:
        """The momentum that each worker sent up to the last round that was played: it goes on with that.

        A round that is abandoned will be played again, so what was sent for it must not be remembered beyond this
        server's life.
        """
        if not self.accumulates:
            return {}
        memories = torch.zeros(self.count, self._dimension, dtype=self.parameters.dtype)
        steps = torch.full((self.count,), NO_STEP, dtype=torch.int64)
        for each in self.links:
            step, memory = each.memory(until=self._played)
            steps[each.worker] = step
            if memory is not None:
                memories[each.worker].copy_(memory)
        return {"memories": memories, "steps": steps}

    def restore(self, state: dict[str, Tensor]) -> None:
        if self.accumulates and not state:
            raise RunDirectoryError("this run's workers are simulated: continue it with gyroscope train --resume")
        for each in self.links if state else ():
            step = int(state["steps"][each.worker])
            self._played = max(self._played, step)
            if step != NO_STEP:
                each.memories = [(step, state["memories"][each.worker].clone())]

    def _follow_statistics(self, step: int) -> None:
        """Batch-norm's running statistics, which serve evaluation only: from one worker's batch, in turn.

        In a simulation every worker's batch counts. To ask the workers for theirs would let any of them ruin the
        evaluation; the server rather looks at a batch itself.
        """
        if next(self.simulated.model.buffers(), None) is None:
            return
        worker = step % self.count
        inputs, _ = self.simulated.batches(step, range(worker, worker + 1))
        before = [buffer.clone() for buffer in self.simulated.model.buffers()]
        self.simulated.model.train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self.simulated.model(inputs[0])
        if not all(bool(all_finite(buffer)) for buffer in self.simulated.model.buffers()):
            restore_buffers(self.simulated.model, before)

    # -- a round ------------------------------------------------------------------------------------------------------

    def collect(self, step: int, deadline: float, into: Tensor) -> dict[int, Tensor]:
        """The rows of this step by worker, as they came: any of them may hold anything. They lie in `into`.

        Returns once all workers that are there have answered, or at the deadline if enough have. A worker that missed
        a deadline is not waited for again before it has answered something.
        """
        self.log.step = step
        if not self._open:
            self._gather()
        if self._asked != step:
            self.ask(step)
        self._into = into
        begun = time.monotonic()
        short_since: float | None = None
        while True:
            self._order(step)
            enough = len(self._sound) >= self.required
            patient = [each for each in self.links if each.told and not each.late and not each.answered]
            passed = time.monotonic() - begun
            if enough and (not patient or passed >= deadline):
                break
            if self.stop():
                raise RoundAbandonedError("")
            if enough or (patient and passed < deadline):
                short_since = None
            elif short_since is None:
                short_since = time.monotonic()
            elif time.monotonic() - short_since >= self.grace:
                raise RoundAbandonedError(self._too_few(step, len(self._sound)))
            else:
                self.remark(self.describe_missing())
            limit = deadline - passed if enough else _SLICE_SECONDS
            for each, event in self._listen(min(max(limit, 0.0), _SLICE_SECONDS)):
                if event["event"] != "row" or event["step"] != step:
                    continue
                each.answered = True
                self._losses[each.worker] = float(event["loss"])
                if each.worker not in self._sound:
                    self._tell(events.NOT_FINITE, each, "the row holds NaN or inf; the rule puts it aside")
        for each in patient:
            each.late = True
            self._tell(events.LATE, each, f"no row within {deadline:g} s")
        self.remark(self.describe_missing())
        self._played = step
        return self._rows

    def _order(self, step: int) -> None:
        """Tell who is there and free, and was not told yet."""
        for each in self.links:
            if each.linked and each.free and not each.told and each.worker not in self._rows:
                each.ask(step, self._place)

    def _publish(self, step: int) -> None:
        """Put the parameters where every link can send them from, and where none is still sending older ones."""
        while True:
            sending = [each for each in self.links if each.sending]
            in_use = {each.place for each in sending}
            if len(in_use) < PLACES:
                break
            # Several are slow, and since different rounds: the fewer must join again, or those that are slower.
            at = {place: [each for each in sending if each.place == place] for place in in_use}
            for each in min(at.values(), key=lambda slow: (len(slow), slow[0].asked)):
                if each.linked:
                    self._tell(events.LOST, each, f"still receives the parameters of step {each.asked}")
                each.linked = False
                self._replace(each)
        self._place = self._outbox.write(step, self.parameters, in_use)

    def _gather(self) -> None:
        """At the start wait for all workers. When nobody has come for the grace period, go on if there are enough."""
        self._open = True
        self.opened()
        self.log.add(events.STARTED, None, f"waiting for {self.count} workers at {self.address[0]}:{self.address[1]}")
        self.store.set(OFFER, self.offer.text())
        for each in self.links:
            self._start(each)
        begun = time.monotonic()
        while missing := self.missing():
            if self.stop():
                raise RoundAbandonedError("")
            if time.monotonic() - begun >= self.grace:
                if self.count - len(missing) < self.required:
                    raise RoundAbandonedError(self._too_few(self.log.step, self.count - len(missing)))
                break
            self.remark(self.describe_missing())
            if any(event["event"] == "joined" for _, event in self._listen(_SLICE_SECONDS)):
                begun = time.monotonic()

    # -- the links ----------------------------------------------------------------------------------------------------

    def _start(self, each: WorkerHandle) -> None:
        """Begin a link's next generation, ready for whoever claims the worker's number."""
        # A piece of memory for each, and a new one each time: no link's process can write another worker's row, and a
        # row that came before the link broke stays what it was.
        values, dtype = self.offer.answer_values, self.parameters.dtype
        first, second = (shared(torch.zeros(Message.bytes(values, dtype), dtype=torch.uint8)) for _ in range(2))
        sent = shared(torch.full((1,), NO_STEP))
        step, memory = each.memory()
        known = torch.empty(0, dtype=dtype) if memory is None else shared(memory.clone())
        generation = f"{self.session}.{each.count}"
        each.count += 1
        self.store.set(link_key(each.worker), "")  # until its process says that it is ready
        place = link_process.LinkAddress(*self.address, each.worker, generation, self.grace, step)
        shelf = link_process.SharedBuffers(
            self._dimension, dtype, self._outbox.buffers, sent, known, (first, second), values
        )
        each.start(place, shelf)
        assert each.pipe
        self._speakers[each.pipe.fileno()] = each
        self._ears.register(each.pipe.fileno(), select.POLLIN)

    def _listen(self, seconds: float) -> list[tuple[WorkerHandle, dict[str, Any]]]:
        """What the links' processes tell within this time; joins, losses and rejections are dealt with here."""
        heard: list[tuple[WorkerHandle, dict[str, Any]]] = []
        for descriptor, _ in self._ears.poll(1000 * seconds):
            each = self._speakers[descriptor]
            assert each.pipe
            try:
                event: dict[str, Any] = json.loads(each.pipe.recv_bytes())
            except (EOFError, OSError):
                self._replace(each)
                continue
            self._note(each, event)
            heard.append((each, event))
        return heard

    def _note(self, each: WorkerHandle, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "joined":
            each.linked = each.free = True
            each.who = str(event["who"])
            step, memory = each.memory()
            self._tell(events.JOINED, each, "" if memory is None else f"goes on with its momentum of step {step}")
        elif kind == "row":
            each.has_answered(int(event["step"]))
            self._look_at_row(each, event)
        elif kind == "rejected":
            each.free, each.answered = True, each.told
            self._tell(events.REJECTED, each, str(event["why"]))
        elif kind == "stray":
            each.free = True
            self._tell(events.REJECTED, each, str(event["why"]))
        elif kind == "lost":
            self._tell(events.LOST, each, ("" if each.linked else "could not join: ") + str(event["why"]))
            each.linked = False

    def _look_at_row(self, each: WorkerHandle, event: dict[str, Any]) -> None:
        """Is it without NaN and inf; and what of it is to be remembered?

        A row of this round is copied into the matrix at once, while others are still on their way.
        """
        values = each.answers[event["slot"]].values
        alone = values.numel() == self._dimension  # or the momentum comes behind the row
        row, memory = (values, values) if alone else (values[: self._dimension], values[self._dimension :])
        if event["step"] == self._asked:
            target = self._rows[each.worker] = self._into[each.worker]
            sound = copy_finite(row, target)
            if sound:
                self._sound.add(each.worker)
        else:
            sound = bool(all_finite(row))
        if self.accumulates:
            if sound if alone else bool(all_finite(memory)):  # a worker that starts anew shall not start from NaN
                each.remember(int(event["step"]), memory)
            else:
                each.keep()

    def _replace(self, each: WorkerHandle) -> None:
        """The link's process has ended: start the next generation."""
        was_linked, process = each.linked, each.process
        assert each.pipe
        self._ears.unregister(each.pipe.fileno())
        del self._speakers[each.pipe.fileno()]
        each.stop()
        code = process.exitcode if process else None
        if was_linked and code is not None and code < 0:
            name = signal.Signals(-code).name
            detail = f"its link was ended by {name}" + (
                ", as a message that is too long does" if name == "SIGABRT" else ""
            )
            self._tell(events.REJECTED if name == "SIGABRT" else events.LOST, each, detail)
        self._start(each)

    def _tell(self, event: str, each: WorkerHandle, detail: str) -> None:
        self.log.add(event, each.worker, detail, each.who)

    def missing(self) -> list[int]:
        """The workers that are not there."""
        return [each.worker for each in self.links if not each.linked]

    def describe_missing(self) -> str:
        late = [each.worker for each in self.links if each.linked and each.late]
        parts = [("missing", self.missing()), ("late", late)]
        return ", ".join(f"{word}: {' '.join(map(str, numbers))}" for word, numbers in parts if numbers)

    def _too_few(self, step: int, have: int) -> str:
        reason = (
            f"step {step} has {have} sound rows of the {self.required} that it needs "
            f"({self.describe_missing() or 'all workers are there'}) after a grace period of {self.grace:g} s"
        )
        self.log.add(events.STOPPED, None, reason)
        return reason

    def close(self, over: bool) -> None:
        """End all links. over: the run has ended, and the workers shall know it; else they wait for a server."""
        if over:
            self.store.set(OVER, "yes")
            for each in self.links:
                if each.pipe:
                    each.order("end")
            until = time.monotonic() + min(_END_SECONDS, self.grace)
            for each in self.links:
                if each.process:
                    each.process.join(max(0.0, until - time.monotonic()))
        for each in self.links:
            each.stop()
