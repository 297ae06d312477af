"""`LinkedWorkers`: worker processes behind links, as the honest workers of a run."""

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
from gyroscope.distributed.protocol import EVERYBODY, NO_STEP, OFFER, OVER, ROUND, Message, Offer, TCPStore, link_key
from gyroscope.distributed.server.link_process import LinkAddress, SharedBuffers, WorkerHandle
from gyroscope.runs import events
from gyroscope.runs.events import EventLog
from gyroscope.simulation.workers import SimulatedWorkers, restore_buffers

_SLICE_SECONDS = 0.2
"""How long to sleep at most before checking whether the run is to stop."""
_END_SECONDS = 10.0


class LinkedWorkers:
    """Collect the rows of worker processes: an implementation of `Workers`.

    Args:
        simulated: the workers that these replace. Only their number, their parameters and, for batch-norm's running
            statistics, their data are used.
        required: how many finite rows a round needs: n - f for a rule that tolerates f, since missing ones count as
            Byzantine. With them it waits for the other linked workers until `offer.deadline`.
        grace: seconds that a round waits for enough rows, and a link for an answer.
        stop: called while waiting; True abandons the round.
    """

    def __init__(
        self,
        simulated: SimulatedWorkers,
        offer: Offer,
        store: TCPStore,
        address: tuple[str, int],
        log: EventLog,
        *,
        required: int,
        grace: float,
        stop: Callable[[], bool] = lambda: False,
        remark: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.count, self.parameters = simulated.count, simulated.parameters
        self.simulated, self.offer, self.store, self.address, self.log = simulated, offer, store, address, log
        self.required, self.grace, self.stop, self.remark = required, grace, stop, remark
        self.accumulates = offer.config.momentum == "workers"
        self.present: Tensor | None = None
        self.is_open = False
        self.session = secrets.token_hex(4)
        self.handles = [WorkerHandle(number) for number in range(self.count)]
        self._dimension, dtype = self.parameters.numel(), self.parameters.dtype
        # Every link sends the parameters right from this memory. One slot is enough while all workers receive them
        # before the next ones are due; while a slow link still sends from it, the next ones go to the other.
        self._broadcast = tuple(Message(self._dimension, dtype, shared=True) for _ in range(2))
        self._slot = 0
        self._step = 0  # the round that is collected now
        self._asked = self._collected = NO_STEP
        self._rows = self.parameters.new_empty(0, self._dimension)  # the round's matrix
        self._received: set[int] = set()
        self._finite: set[int] = set()
        self._losses: dict[int, float] = {}
        # The links' pipes. (multiprocessing's wait() would build such an object for every message.)
        self._poll = select.poll()
        self._by_descriptor: dict[int, WorkerHandle] = {}

    # -- the interface of a run's workers -----------------------------------------------------------------------------

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """Return the losses of the workers present, and all rows: those that came in time, NaN for the others."""
        rows = self.parameters.new_empty(self.count, self._dimension) if out is None else out
        self.collect(step, rows)
        for number in set(range(self.count)) - self._received:
            rows[number].fill_(math.nan)
        finite = sorted(self._finite)
        self.present = None if len(finite) == self.count else torch.tensor(finite, device=rows.device)
        # The loss that a worker reports is only displayed: nothing depends on it.
        losses = [self._losses[number] for number in finite if math.isfinite(self._losses[number])]
        self._follow_statistics(step)
        clock.lap("gradients")
        return torch.tensor(losses, dtype=rows.dtype), rows

    def ask(self, step: int) -> None:
        """Ask the linked workers for their rows of this step, with the parameters as they are now.

        `collect` would do so, too. Asked earlier, they compute while the server measures, evaluates and writes.
        """
        if not self.is_open:
            return
        self._asked = step
        self._publish(step)
        for handle in self.handles:
            handle.answered = False
        self._received, self._finite = set(), set()
        self._ask_idle()

    def state(self) -> dict[str, Tensor]:
        """Return the momentum that each worker sent up to the last collected round, with which it continues.

        Rows of a round that was abandoned do not count, because the round will be played again.
        """
        if not self.accumulates:
            return {}
        momentum = torch.zeros(self.count, self._dimension, dtype=self.parameters.dtype)
        steps = torch.full((self.count,), NO_STEP, dtype=torch.int64)
        for handle in self.handles:
            steps[handle.worker], known = handle.momentum(until=self._collected)
            if known is not None:
                momentum[handle.worker].copy_(known)
        return {"momentum": momentum, "steps": steps}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        if self.accumulates and not state:
            raise RunDirectoryError("this run's workers are simulated: continue it with gyroscope train --resume")
        for handle in self.handles if state else ():
            step = int(state["steps"][handle.worker])
            self._collected = max(self._collected, step)
            if step != NO_STEP:
                handle.momenta = [(step, state["momentum"][handle.worker].to("cpu", copy=True))]

    def _follow_statistics(self, step: int) -> None:
        """Update batch-norm's running statistics, which serve evaluation only, from one worker's batch, in turn.

        In a simulation every worker's batch counts. If the workers sent theirs, any of them could ruin the evaluation;
        so the server computes on a batch itself.
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

    def collect(self, step: int, rows: Tensor) -> None:
        """Write the rows of this step into the matrix, as they came: any of them may hold anything.

        Returns once all linked workers have answered, or at the deadline if enough rows are finite. After a worker has
        missed a deadline no round waits for it before it has answered something.
        """
        self._step, self._rows, deadline = step, rows, self.offer.deadline
        if not self.is_open:
            self._open()
        if self._asked != step:
            self.ask(step)
        begun = time.monotonic()
        short_since: float | None = None
        while True:
            self._ask_idle()
            enough = len(self._finite) >= self.required
            awaited = [each for each in self.handles if each.asked == step and not each.late and not each.answered]
            passed = time.monotonic() - begun
            if enough and (not awaited or passed >= deadline):
                break
            if self.stop():
                raise RoundAbandonedError("")
            if enough or (awaited and passed < deadline):
                short_since = None
            elif short_since is None:
                short_since = time.monotonic()
            elif time.monotonic() - short_since >= self.grace:
                raise RoundAbandonedError(self._too_few(len(self._finite)))
            else:
                self.remark(self.describe_missing())
            limit = deadline - passed if enough else _SLICE_SECONDS
            self._handle_events(min(max(limit, 0.0), _SLICE_SECONDS))
        for handle in awaited:
            handle.late = True
            self._log(events.LATE, handle, f"no row within {deadline:g} s")
        self.remark(self.describe_missing())
        self._collected = step

    def _ask_idle(self) -> None:
        """Ask the idle links for the current step, unless their worker was asked or has sent its row."""
        for handle in self.handles:
            if handle.linked and handle.idle and handle.asked != self._asked and handle.worker not in self._received:
                handle.ask(self._asked, self._slot)

    def _publish(self, step: int) -> None:
        """Write the parameters to the slot from which no link is still sending older ones."""
        while True:
            sending = [handle for handle in self.handles if handle.sending]
            by_slot = {slot: [handle for handle in sending if handle.slot == slot] for slot in range(2)}
            if not all(by_slot.values()):
                break
            # Several links are slow, and since different rounds: the fewer must join again, or the slower ones.
            for handle in min(by_slot.values(), key=lambda slow: (len(slow), slow[0].asked)):
                if handle.linked:
                    self._log(events.LOST, handle, f"still receives the parameters of step {handle.asked}")
                handle.linked = False
                self._restart(handle)
        self._slot = 1 if by_slot[0] else 0
        self._broadcast[self._slot].values.copy_(self.parameters)
        self._broadcast[self._slot].seal(ROUND, step, EVERYBODY)

    def _open(self) -> None:
        """Start the links and wait for all workers. When none has joined for the grace period, enough will do."""
        self.is_open = True
        where = f"{self.address[0]}:{self.address[1]}"
        self.log.add(self._step, events.STARTED, None, f"waiting for {self.count} workers at {where}")
        self.store.set(OFFER, self.offer.text())
        for handle in self.handles:
            self._start(handle)
        begun, before = time.monotonic(), self.count
        while missing := len(self.missing()):
            if self.stop():
                raise RoundAbandonedError("")
            if missing < before:
                begun = time.monotonic()
            before = missing
            if time.monotonic() - begun >= self.grace:
                if self.count - missing < self.required:
                    raise RoundAbandonedError(self._too_few(self.count - missing))
                break
            self.remark(self.describe_missing())
            self._handle_events(_SLICE_SECONDS)

    # -- the links ----------------------------------------------------------------------------------------------------

    def _start(self, handle: WorkerHandle) -> None:
        """Begin a link's next generation, for the next process that claims the worker's number."""
        # Each link has its own memory, and new memory each time: no link's process can write another worker's row, and
        # a row that came before the link broke stays what it was.
        values, dtype = self.offer.answer_values, self.parameters.dtype
        step, momentum = handle.momentum()
        if momentum is not None:
            momentum = momentum.clone().share_memory_()  # type: ignore[no-untyped-call]
        buffers = SharedBuffers(
            parameters=self._broadcast,
            sent=torch.full((1,), NO_STEP).share_memory_(),  # type: ignore[no-untyped-call]
            momentum=momentum,
            momentum_step=step,
            answers=(Message(values, dtype, shared=True), Message(values, dtype, shared=True)),
        )
        self.store.set(link_key(handle.worker), "")  # until its process is ready
        generation = f"{self.session}.{handle.generations}"
        handle.start(LinkAddress(*self.address, handle.worker, generation, self.grace), buffers)
        assert handle.pipe
        self._by_descriptor[handle.pipe.fileno()] = handle
        self._poll.register(handle.pipe.fileno(), select.POLLIN)

    def _handle_events(self, seconds: float) -> None:
        """Handle what the links' processes report, and wait so long for the first report."""
        for descriptor, _ in self._poll.poll(1000 * seconds):
            handle = self._by_descriptor[descriptor]
            assert handle.pipe
            try:
                event = json.loads(handle.pipe.recv_bytes())
            except (EOFError, OSError):
                self._restart(handle)
            else:
                self._handle(handle, event)

    def _handle(self, handle: WorkerHandle, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "joined":
            handle.linked = handle.idle = True
            handle.identity = str(event["who"])
            step, momentum = handle.momentum()
            detail = "" if momentum is None else f"continues with its momentum of step {step}"
            self._log(events.JOINED, handle, detail)
        elif kind == "row":
            self._take_row(handle, event)
        elif kind in ("rejected", "stray"):
            handle.idle = True
            if kind == "rejected":
                handle.answered = handle.asked == self._asked
            self._log(events.REJECTED, handle, str(event["why"]))
        elif kind == "lost":
            self._log(events.LOST, handle, ("" if handle.linked else "could not join: ") + str(event["why"]))
            handle.linked = False

    def _take_row(self, handle: WorkerHandle, event: dict[str, Any]) -> None:
        """Copy a row of this round into the matrix while others are on their way, and keep the worker's momentum."""
        step, values = int(event["step"]), handle.buffers.answers[event["slot"]].values
        handle.has_answered(step)
        alone = values.numel() == self._dimension  # else the momentum comes behind the row
        row, momentum = (values, values) if alone else (values[: self._dimension], values[self._dimension :])
        if step == self._asked:
            handle.answered = True
            self._received.add(handle.worker)
            self._losses[handle.worker] = float(event["loss"])
            finite = copy_finite(row, self._rows[handle.worker])
            if finite:
                self._finite.add(handle.worker)
            else:
                self._log(events.NOT_FINITE, handle, "the row holds NaN or inf; the rule leaves it out")
        else:
            finite = bool(all_finite(row))
        if self.accumulates:
            if finite if alone else bool(all_finite(momentum)):  # a worker that restarts must not continue from NaN
                handle.keep_momentum(step, momentum)
            else:
                handle.copy_momenta()

    def _restart(self, handle: WorkerHandle) -> None:
        """Begin the next generation of a link whose process has ended or is to end."""
        was_linked, process = handle.linked, handle.process
        assert handle.pipe
        self._poll.unregister(handle.pipe.fileno())
        del self._by_descriptor[handle.pipe.fileno()]
        handle.stop()
        code = process.exitcode if process else None
        if was_linked and code is not None and code < 0:
            name = signal.Signals(-code).name
            too_long = name == "SIGABRT"
            detail = f"its link was ended by {name}" + (", as a message that is too long does" if too_long else "")
            self._log(events.REJECTED if too_long else events.LOST, handle, detail)
        self._start(handle)

    def _log(self, event: str, handle: WorkerHandle, detail: str) -> None:
        self.log.add(self._step, event, handle.worker, detail, handle.identity)

    def missing(self) -> list[int]:
        """Return the numbers of the workers that are not linked."""
        return [handle.worker for handle in self.handles if not handle.linked]

    def describe_missing(self) -> str:
        """Return the numbers of the missing and of the late workers, for people."""
        late = [handle.worker for handle in self.handles if handle.linked and handle.late]
        parts = [("missing", self.missing()), ("late", late)]
        return ", ".join(f"{word}: {' '.join(map(str, numbers))}" for word, numbers in parts if numbers)

    def _too_few(self, have: int) -> str:
        reason = (
            f"step {self._step} has {have} finite rows of the {self.required} that it needs "
            f"({self.describe_missing() or 'all workers are linked'}) after a grace period of {self.grace:g} s"
        )
        self.log.add(self._step, events.STOPPED, None, reason)
        return reason

    def close(self, over: bool) -> None:
        """End all links. With `over` the workers learn that the run has ended; else they wait for a server."""
        if over:
            self.store.set(OVER, "yes")
            for handle in self.handles:
                if handle.pipe:
                    handle.order("end")
            until = time.monotonic() + min(_END_SECONDS, self.grace)
            for handle in self.handles:
                if handle.process:
                    handle.process.join(max(0.0, until - time.monotonic()))
        for handle in self.handles:
            handle.stop()
