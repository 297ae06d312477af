"""`ShardedWorkers`: worker processes whose rows are in the shards, as the honest workers of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import RunDirectoryError
from gyroscope._linalg.moments import ColumnMoments
from gyroscope.distributed.protocol import NO_STEP
from gyroscope.distributed.server.linked_worker import LinkedWorker
from gyroscope.distributed.server.monitor import SAMPLED_COLUMNS
from gyroscope.distributed.server.shards.shard_events import RowAnswered
from gyroscope.distributed.server.shards.shard_handle import ShardGoneError
from gyroscope.distributed.server.shards.sharded_links import ShardedLinks
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.momentum import Update
from gyroscope.rules import Aggregate
from gyroscope.runs import events

_STATE_SECONDS = 120.0
"""How long a shard may take to hand over what a checkpoint holds of it."""


class ShardedAggregate(NamedTuple):
    """What the shards made of a round's rows."""

    aggregate: Aggregate
    moments: ColumnMoments | None
    """Of the finite rows, where they were asked for."""


class ShardedWorkers(LinkedWorkers):
    """Collect rows that the shards have: who was there is decided here, by the same rules as in one process."""

    links: ShardedLinks  # type: ignore[assignment]  # it has what LinkedWorkers calls of Links

    def sample(self, step: int, out: Tensor | None = None, clock: Clock = UNTIMED) -> tuple[Tensor, Tensor]:
        """Return the losses of the workers present, and no columns of their rows."""
        with self._stopping():
            return super().sample(step, out, clock)

    def aggregate(self, reads: str, measured: bool) -> ShardedAggregate:
        """Let the shards aggregate the rows of the step that was sampled last.

        Args:
            reads: What the rule reads: columns or distances.
            measured: Whether the rows' moments are wanted.
        """
        taken = sorted(self._answering - self._left_out)
        finite = sorted(self._sound - self._left_out) if measured else None
        stride = max(1, self._dimension // SAMPLED_COLUMNS) if self.monitor else 0
        with self._stopping():
            replies = self.links.aggregate(taken, finite, stride, reads == "distances")
        vector, weight, mean, self._shown = (_joined([each.values[i] for each in replies]) for i in range(4))
        weight = replies[0].values[1]  # the same in all shards
        device = self.parameters.device
        aggregate = Aggregate(vector.to(device), weight.to(device) if weight.numel() else None)
        squares = sum(each.facts[1] for each in replies)
        return ShardedAggregate(aggregate, ColumnMoments(mean.to(device), None, squares) if measured else None)

    def judged(self, step: int, update: Update) -> None:
        """Tell the monitor how the round went, from some columns, and leave out whose rows are of no use."""
        if self.monitor:
            vector = update.aggregate.vector[:: max(1, self._dimension // SAMPLED_COLUMNS)]
            update = Update(vector, Aggregate(vector, update.weight), self._shown.to(vector.device))
        super().judged(step, update)

    def state(self) -> dict[str, Tensor]:
        """Return the workers' momentum, as `LinkedWorkers` does.

        Raises:
            ShardGoneError: A part of it ended with a shard.
        """
        if not self.accumulates:
            return {}
        steps = [worker.momentum(until=self._collected)[0] for worker in self.each]
        momentum = self.links.momentum(steps, _STATE_SECONDS)
        if momentum is None:
            momentum = torch.zeros(self.count, self._dimension, dtype=self.parameters.dtype)
        return {"momentum": momentum, "steps": torch.tensor(steps, dtype=torch.int64)}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned, here or in a server of one process."""
        if not self.accumulates:
            return
        if not state:
            raise RunDirectoryError("this run's workers are simulated: continue it with gyroscope train --resume")
        if "row_format" in state:
            raise RunDirectoryError(
                "this run's workers send their rows in another format than full, which a server with shards does not "
                "read: continue it without --server-shards"
            )
        steps = state["steps"].tolist()
        self._collected = max(steps)
        for worker, step in zip(self.each, steps, strict=True):
            if step != NO_STEP:
                self._keep_momentum(worker, step)
        self.links.restore(state["momentum"].to("cpu"), steps)

    def _keep_momentum(self, worker: LinkedWorker, step: int) -> None:
        """Note that all shards have their part of a worker's momentum."""
        worker.keep_momentum(step, self.parameters.new_empty(0))

    def _handle(self, event: Any) -> None:
        if not isinstance(event, RowAnswered):
            super()._handle(event)
            return
        worker = self.each[event.worker]
        worker.idle, worker.late = True, False
        if event.step == self._asked:
            worker.answered = True
            worker.misses = max(0.0, worker.misses - 1 / 8)
            self._received.add(worker.number)
            self._losses[worker.number] = event.loss
            if event.finite:
                self._finite.add(worker.number)
            else:
                self._log(events.NOT_FINITE, worker, "the row holds NaN or inf; the rule leaves it out")
        if self.accumulates:
            if event.momentum_finite:
                self._keep_momentum(worker, event.step)
            else:
                self.links.forget(worker.number, event.step)

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Say in the log why the run stops where a shard has ended."""
        try:
            yield
        except ShardGoneError as problem:
            remedy = "the run can be resumed"
            if self.accumulates:
                remedy += ", from its last checkpoint: the workers' momentum in these columns ended with the process"
            reason = f"{problem}; {remedy}"
            self.log.add(self._step, events.STOPPED, None, reason)
            raise ShardGoneError(reason) from problem


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim=-1)
