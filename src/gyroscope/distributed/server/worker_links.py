"""`LinkedWorkers`: worker processes behind links, as the honest workers of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import RoundAbandonedError, RunDirectoryError
from gyroscope._linalg.matrix import all_finite
from gyroscope.distributed.protocol import NO_STEP, Offer
from gyroscope.distributed.row_formats import Full, MalformedRowError
from gyroscope.distributed.server.link_events import Answered, Joined, LinkEvent, Lost, Refused, Rejected
from gyroscope.distributed.server.linked_worker import LinkedWorker
from gyroscope.distributed.server.links import PREPARATION_SECONDS, Links
from gyroscope.distributed.server.monitor import NOT_ASKED, ServerMonitor
from gyroscope.distributed.server.quarantine import Quarantine
from gyroscope.momentum import Update
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
        links: the connections to the processes.
        required: how many finite rows a round needs: n - f for a rule that tolerates f, since missing ones count as
            Byzantine. With them it waits for the other linked workers until `offer.deadline`. (Of a sample: `_needed`.)
        grace: seconds that a round waits for enough rows, and a link for an answer.
        stop: called while waiting; True abandons the round.
        quarantine: who is left out; the default is nobody.
        monitor: is told how the rounds go.
    """

    def __init__(
        self,
        simulated: SimulatedWorkers,
        offer: Offer,
        links: Links,
        log: EventLog,
        *,
        required: int,
        grace: float,
        stop: Callable[[], bool] = lambda: False,
        remark: Callable[[str], None] = lambda text: None,
        quarantine: Quarantine | None = None,
        monitor: ServerMonitor | None = None,
    ) -> None:
        self.count, self.parameters = simulated.count, simulated.parameters
        self.simulated, self.offer, self.links, self.log = simulated, offer, links, log
        self.required, self.grace, self.stop, self.remark = required, grace, stop, remark
        self.quarantine, self.monitor = quarantine or Quarantine(), monitor
        if monitor:
            f = offer.config.declared_byzantine
            monitor.begin_with(self.count, f, required, links.refusals.counts, links.who_is_linked)
        self.participation = simulated.participation
        self.accumulates = offer.config.momentum == "workers"
        self.present: Tensor | None = None
        self.is_open = False
        self.each = [LinkedWorker(number) for number in range(self.count)]
        self._dimension = self.parameters.numel()
        self._step = 0  # the round that is collected now
        self._needed = required  # and the finite rows that it needs
        self._asked = self._collected = NO_STEP
        self._rows = self.parameters.new_empty(0, self._dimension)  # the round's matrix
        self._received: set[int] = set()
        self._finite: set[int] = set()
        self._left_out: set[int] = set()
        self._wanted = self._participants(0)
        self._taking_part = self._wanted
        self._answering: set[int] = set()
        self._sound: set[int] = set()
        self._losses: dict[int, float] = {}

    # -- the interface of a run's workers -----------------------------------------------------------------------------

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """Return the losses of the workers present, and all rows: those that came in time, NaN for the others."""
        rows = self.parameters.new_empty(self.count, self._dimension) if out is None else out
        self.collect(step, rows)
        # Those in quarantine take part all the same where there would be too few rows without them.
        resting = sorted(self._finite & set(self.quarantine.out))
        self._left_out = set(resting[: max(0, len(self._finite) - self._needed)])
        for number in (set(range(self.count)) - self._received) | self._left_out:
            rows[number].fill_(math.nan)
            if self.participation is not None and number in self._left_out:
                self.participation.forget(number)
        finite = sorted(self._finite - self._left_out)
        self.present = None if len(finite) == self.count else torch.tensor(finite, device=rows.device)
        # The loss that a worker reports is only displayed: nothing depends on it.
        losses = [self._losses[number] for number in finite if math.isfinite(self._losses[number])]
        self._answering, self._sound, self._taking_part = self._received, self._finite, self._wanted  # `ask` begins new
        self._follow_statistics(step)
        clock.lap("gradients")
        return torch.tensor(losses, dtype=rows.dtype), rows

    def ask(self, step: int) -> None:
        """Ask the linked workers that take part in it for their rows of this step, with the parameters as they are now.

        `collect` would do so, too. Asked earlier, they compute while the server measures, evaluates and writes.
        """
        if not self.is_open:
            return
        self._asked, self._wanted = step, self._participants(step)
        self.links.publish(step, self.parameters)
        for worker in self.each:
            worker.answered = False
        self._received, self._finite = set(), set()
        self._ask_idle()

    def judged(self, step: int, update: Update) -> None:
        """Tell the monitor how the round went, and leave out whose rows are of no use."""
        links = [(worker.identity.partition(" ")[0], self._state(worker)) for worker in self.each]
        useless = self.monitor.judged(step, update, links) if self.monitor else set()
        for worker, out, why in self.quarantine.note(step, useless, self._answering):
            if worker < self.count:
                self._log(events.QUARANTINED if out else events.RELEASED, self.each[worker], why)

    def _participants(self, step: int) -> set[int]:
        """Return the numbers of the workers that a round asks."""
        everybody = set(range(self.count))
        return everybody if self.participation is None else everybody & set(self.participation.asked(step))

    def _state(self, worker: LinkedWorker) -> str:
        if worker.number not in self._taking_part:
            return NOT_ASKED
        if worker.number in self._left_out:
            return "quarantined"
        if worker.number in self._answering:
            return "ok" if worker.number in self._sound else "not finite"
        return "late" if worker.linked else "missing"

    def state(self) -> dict[str, Tensor]:
        """Return the momentum that each worker sent up to the last collected round, with which it continues.

        Rows of an abandoned round, which is played again, do not count. Also the rows' format, unless it is `full`.
        """
        row_format = self.offer.row_format
        state = {} if row_format == Full() else {"row_format": torch.tensor(list(str(row_format).encode()))}
        if not self.offer.hands_momentum:
            return state
        momentum = torch.zeros(self.count, self._dimension, dtype=self.parameters.dtype)
        steps = torch.full((self.count,), NO_STEP, dtype=torch.int64)
        for worker in self.each:
            steps[worker.number], known = worker.momentum(until=self._collected)
            if known is not None:
                momentum[worker.number].copy_(known)
        return {**state, "momentum": momentum, "steps": steps}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned."""
        if self.accumulates and not state:
            raise RunDirectoryError("this run's workers are simulated: continue it with gyroscope train --resume")
        before = bytes(state["row_format"].tolist()).decode() if "row_format" in state else str(Full())
        if before != str(self.offer.row_format):
            raise RunDirectoryError(
                f"this run's workers send rows in the format {before}, not {self.offer.row_format}, which would change "
                f"its numbers: continue it with --row-format {before}"
            )
        for worker in self.each if "steps" in state else ():
            step = int(state["steps"][worker.number])
            self._collected = max(self._collected, step)
            if step != NO_STEP:
                worker.momenta = [(step, state["momentum"][worker.number].to("cpu", copy=True))]

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
        missed a deadline no round waits for it before it has answered something, and some rounds have passed.
        """
        self._step, self._rows, deadline = step, rows, self.offer.deadline
        if self.participation is not None:
            self._needed = self.participation.required(step, self.count, self.required)
        if not self.is_open:
            self._open()
            if self.monitor:
                self.monitor.assembled()
        if self._asked != step:
            self.ask(step)
        begun = time.monotonic()
        short_since: float | None = None
        while True:
            self._ask_idle()
            enough = len(self._finite) >= self._needed
            awaited = [each for each in self.each if each.is_awaited(step)]
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
        for worker in awaited:
            worker.miss(step)
            self._log(events.LATE, worker, f"no row within {deadline:g} s")
        self.remark(self.describe_missing())
        self._collected = step

    def _ask_idle(self) -> None:
        """Ask the idle workers for the current step, unless they were asked or have sent their row."""
        idle = [
            worker
            for worker in self.each
            if worker.idle and worker.asked != self._asked and worker.number in self._wanted - self._received
        ]
        for worker in idle:
            worker.idle, worker.asked = False, self._asked
        if idle:
            self.links.ask(worker.number for worker in idle)

    def _open(self) -> None:
        """Accept workers and wait for all of them. When none has joined for the grace period, enough will do.

        Where there are not enough, those count who load their data, for as long as one of them may take: a first start
        downloads and compiles, which must not end the run. A liar delays the start by that time and no longer.
        """
        self.is_open = True
        waiting = f"waiting for {self.count} workers at {self.links.address}, rows: {self.offer.row_format}"
        self.log.add(self._step, events.STARTED, None, waiting)
        self.links.open(self.offer, lambda number: self.each[number].momentum(), self.grace)
        opened = begun = time.monotonic()
        before = self.count
        while missing := len(self.missing()):
            if self.stop():
                raise RoundAbandonedError("")
            if missing < before:
                begun = time.monotonic()
            before = min(before, missing)  # who leaves and comes back is not new
            if time.monotonic() - begun >= self.grace:
                there = len(self._participants(self._step) - set(self.missing()))
                if there >= self._needed:
                    break
                if not self.links.preparing() or time.monotonic() - opened >= PREPARATION_SECONDS:
                    raise RoundAbandonedError(self._too_few(there))
            self.remark(self.describe_missing())
            self._handle_events(_SLICE_SECONDS)

    # -- what the links report ----------------------------------------------------------------------------------------

    def _handle_events(self, seconds: float) -> None:
        """Handle what the links report, and wait so long for the first report."""
        for event in self.links.events(seconds):
            self._handle(event)

    def _handle(self, event: LinkEvent) -> None:
        if isinstance(event, Refused):
            self.log.add(self._step, events.REFUSED, event.worker, event.why, event.who)
            return
        worker = self.each[event.worker]
        if isinstance(event, Answered):
            self._take_row(worker, event)
        elif isinstance(event, Joined):
            worker.is_gone()
            worker.linked = worker.idle = True
            worker.identity = event.who
            step, momentum = worker.momentum()
            self._log(events.JOINED, worker, "" if momentum is None else f"continues with its momentum of step {step}")
        elif isinstance(event, Rejected):
            worker.idle = True  # what it was asked for may never come
            if not event.logged:
                self._log(events.REJECTED, worker, event.why)
        elif isinstance(event, Lost):
            if event.rejected:
                self._log(events.REJECTED, worker, event.why)
            self._log(events.LOST, worker, event.why)
            worker.is_gone()

    def _take_row(self, worker: LinkedWorker, event: Answered) -> None:
        """Copy a row of this round into the matrix while others are on their way, and keep the worker's momentum."""
        worker.idle, worker.late = True, False
        values, size = event.values, self.offer.row_values
        alone = values.numel() == size  # else the momentum comes behind the row
        row, momentum = (values, values) if alone else (values[:size], values[size:])
        finite = None
        if event.step == self._asked:
            worker.answered = True
            worker.misses = max(0.0, worker.misses - 1 / 8)
            try:
                finite = self.offer.row_format.decode(row, self._rows[worker.number])
            except MalformedRowError as problem:
                finite = False
                self._log(events.REJECTED, worker, str(problem))
            else:
                self._received.add(worker.number)
                self._losses[worker.number] = event.loss
                if finite:
                    self._finite.add(worker.number)
                else:
                    self._log(events.NOT_FINITE, worker, "the row holds NaN or inf; the rule leaves it out")
        if self.offer.hands_momentum:
            if finite is None or not alone:
                finite = bool(all_finite(momentum))
            if finite:  # a worker that restarts must not continue from NaN
                worker.keep_momentum(event.step, momentum)
            else:
                worker.copy_momenta()

    def _log(self, event: str, worker: LinkedWorker, detail: str) -> None:
        self.log.add(self._step, event, worker.number, detail, worker.identity)

    def missing(self) -> list[int]:
        """Return the numbers of the workers that are not linked."""
        return [worker.number for worker in self.each if not worker.linked]

    def describe_missing(self) -> str:
        """Return the numbers of the missing workers, of those who load their data, and of the late ones, for people."""
        late = [worker.number for worker in self.each if worker.linked and worker.late]
        preparing = self.links.preparing().intersection(self.missing())
        missing = [number for number in self.missing() if number not in preparing]
        parts = [("missing", missing), ("preparing", sorted(preparing)), ("late", late)]
        return ", ".join(f"{word}: {' '.join(map(str, numbers))}" for word, numbers in parts if numbers)

    def _too_few(self, have: int) -> str:
        reason = (
            f"step {self._step} has {have} finite rows of the {self._needed} that it needs "
            f"({self.describe_missing() or 'all workers are linked'}) after a grace period of {self.grace:g} s"
        )
        self.log.add(self._step, events.STOPPED, None, reason)
        return reason

    def close(self, over: bool) -> None:
        """End all links. With `over` the workers learn that the run has ended; else they wait for a server."""
        for event in self.links.close(over, min(_END_SECONDS, self.grace)):
            if isinstance(event, Refused):
                self._handle(event)
