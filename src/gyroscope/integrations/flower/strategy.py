"""A Flower strategy that aggregates the nodes' updates by one of Gyroscope's rules, whatever up to f of them reply."""

from __future__ import annotations

import dataclasses
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from gyroscope import rules
from gyroscope._core.errors import ConfigError, GyroscopeError
from gyroscope._core.sanitize import shortened
from gyroscope.integrations.flower.careful_grid import CarefulGrid
from gyroscope.integrations.flower.layout import Layout, RefusedError, Values
from gyroscope.momentum import RobustAggregator
from gyroscope.runs.events import JOINED, REJECTED, SKIPPED

log = logging.getLogger("flwr")  # Flower's own, so that `flwr run --stream` shows what is said here

STATISTICS = ("running_mean", "running_var")
"""How the names of batch-norm's statistics end. They follow the batches and would overshoot with momentum."""

_REASON = 200


class TooFewRepliesError(GyroscopeError):
    """Too few valid replies, too often in a row: the federation is broken, and going on would only hide it."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something in a round that its operator may want to know."""

    round: int
    event: str
    """`joined` (a node took a seat), `rejected` (its reply was not used), `skipped` (the round changed nothing)."""
    node: int | None
    seat: int | None
    """The node's row, and its column in workers.csv."""
    reason: str


class RobustStrategy(Strategy):
    """Byzantine-resilient training of any Flower app whose clients reply with the arrays that they have trained.

    Each round up to n nodes are asked. A node's row is its arrays minus those it was sent; the rule makes one vector
    of the n rows, and the arrays move by it. Nodes that are not there, do not reply in time, or reply with anything
    but finite arrays of the right names, shapes and dtypes are rows of NaN, which the rule treats as the worst
    outliers. With fewer than n - f valid rows the arrays stay as they are and the round counts as skipped.

    rule: a spec such as `krum:m=1`, or an object of `gyroscope.rules`.
    f: how many of the n nodes may reply with anything at all.
    n: how many nodes are asked each round. Of more than that a random choice is asked, so f must hold for the choice.
    server_momentum: mu of momentum *after* the rule. 0 for none: momentum protects at the workers, see
        `worker_momentum`.
    patience: how many rounds in a row may be skipped before `TooFewRepliesError` stops the run.
    gathering: seconds to wait for all n nodes before the first round; then n - f are enough.
    evaluate: whether the nodes are asked to evaluate, too. Of each number that they report the median is kept.
    seed: of the random choice of nodes, and of a rule that draws at random.
    on_event, on_weights: called with each `Event`, and with (round, each seat's share in the aggregate).

    Whole-number arrays, such as batch-norm's counters, are not updates: they become the lower median of the valid
    replies. Nodes' metrics are combined in the same way, so that up to f liars cannot shift them at will.
    """

    def __init__(
        self,
        rule: str | rules.Rule = "krum",
        *,
        f: int,
        n: int,
        server_momentum: float = 0.0,
        patience: int = 3,
        gathering: float = 600.0,
        evaluate: bool = False,
        seed: int = 0,
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        on_event: Callable[[Event], None] | None = None,
        on_weights: Callable[[int, Sequence[float]], None] | None = None,
    ) -> None:
        self.rule = rules.parse(rule) if isinstance(rule, str) else rule
        self.rule.check_feasible(n, f)
        rules.refuse_trusted(self.rule, "a Flower strategy")
        if patience < 1:
            raise ConfigError(f"patience must be at least 1 round, got {patience}")
        self.n, self.f, self.patience, self.gathering = n, f, patience, gathering
        self.evaluate = evaluate
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.server_momentum = server_momentum
        self.on_event, self.on_weights = on_event, on_weights
        self._seed = seed
        self._ttl: float | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget whatever an earlier `start` has left."""
        self.seats: list[int | None] = [None] * self.n
        """Which node each row belongs to."""
        self.skipped_in_a_row = 0
        self._random = random.Random(self._seed)
        self._asked: list[int] = []
        self._gathered = False
        self._layout: Layout | None = None
        self._sent: Values | None = None
        self._aggregator = RobustAggregator(
            self.rule, self.f, momentum="server", mu=self.server_momentum, seed=self._seed
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds, as any Flower strategy does; `timeout` is how many seconds the nodes have in each."""
        self._begin()
        self._ttl = timeout  # a node that wakes up later must not work off rounds that are over
        careful = grid if isinstance(grid, CarefulGrid) else CarefulGrid(grid)
        result = super().start(careful, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if not result.arrays:
            result.arrays = initial_arrays
        return result

    def summary(self) -> None:
        log.info("\t├── Rule: %s, f = %d of n = %d nodes", self.rule, self.f, self.n)
        log.info(
            "\t└── Valid replies needed: %d; skipped rounds in a row that end the run: %d",
            self.n - self.f,
            self.patience,
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._layout is None:
            self._layout = Layout.of(arrays)
        self._sent = self._layout.read(arrays)
        self._asked = self._choose(grid)
        self._seat(server_round)
        return self._messages(server_round, arrays, config, MessageType.TRAIN, self._asked)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self.evaluate:
            return []
        return self._messages(server_round, arrays, config, MessageType.EVALUATE, self._asked)

    def _messages(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, kind: str, nodes: Iterable[int]
    ) -> list[Message]:
        own = ConfigRecord({**config, "server-round": server_round})  # not the caller's, which all rounds share
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        return [Message(content=content, message_type=kind, dst_node_id=node, ttl=self._ttl) for node in nodes]

    def _choose(self, grid: Grid) -> list[int]:
        """The nodes of this round: all n where they are connected; a dead one must not hold up the others."""
        deadline = time.monotonic() + (self.gathering if not self._gathered else 0.0)
        patient = time.monotonic() + min(self.gathering, self._ttl or self.gathering)
        told = -1
        while True:
            connected = sorted(set(grid.get_node_ids()))
            enough = self.n if time.monotonic() < deadline else self.n - self.f
            if len(connected) >= enough or (self._gathered and time.monotonic() >= patient):
                break
            if not self._gathered and time.monotonic() >= deadline:
                raise TooFewRepliesError(
                    f"only {len(connected)} nodes have connected within {self.gathering:.0f} s, but n - f = "
                    f"{self.n - self.f} are needed: start more SuperNodes, or lower n"
                )
            if len(connected) != told:
                log.info("waiting for nodes: %d of %d are connected", len(connected), enough)
                told = len(connected)
            time.sleep(0.5)
        self._gathered = True
        return connected if len(connected) <= self.n else sorted(self._random.sample(connected, self.n))

    def _seat(self, server_round: int) -> None:
        """Give each asked node a row: the one it had, or that of a node which is not there now."""
        free = [seat for seat, node in enumerate(self.seats) if node not in self._asked]
        for node in self._asked:
            if node not in self.seats:
                seat = free.pop(0)
                self.seats[seat] = node
                self._tell(Event(server_round, JOINED, node, seat, ""))

    # -- aggregating --------------------------------------------------------------------------------------------------

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self._layout is None or self._sent is None:
            raise ConfigError("aggregate_train needs the arrays that were sent: call configure_train before it")
        valid, contents = self._valid(server_round, replies)
        reason = ""
        moved: Values | None = None
        if len(valid) < self.n - self.f:
            reason = f"{len(valid)} valid replies, but n - f = {self.n - self.f} are needed"
        else:
            moved = self._move(server_round, valid)
            if moved is None:
                reason = f"the rule {self.rule} gave a vector that is not finite"
        metrics = _medians(contents, self.n - self.f)
        metrics["valid-replies"] = len(valid)
        metrics["skipped"] = int(moved is None)
        if moved is None:
            self._skip(server_round, reason)
            return self._layout.write(self._sent), metrics
        self.skipped_in_a_row = 0
        return self._layout.write(moved), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        contents = [reply.content for reply in replies if reply.has_content()]
        return _medians(contents, self.n - self.f) or None

    def _valid(self, server_round: int, replies: Iterable[Message]) -> tuple[dict[int, Values], list[RecordDict]]:
        """What the nodes replied that can be used, by seat; everything else is told as an event."""
        valid: dict[int, Values] = {}
        contents = []
        heard: set[int] = set()
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in self._asked or node in heard:  # only without a CarefulGrid
                self._tell(Event(server_round, REJECTED, node, None, "a reply that nobody asked for"))
                continue
            heard.add(node)
            seat = self.seats.index(node)
            try:
                valid[seat] = self._read(reply)
                contents.append(reply.content)
            except RefusedError as problem:
                self._reject(server_round, node, str(problem))
            except Exception as problem:  # whatever a stranger's reply sets off is the reply's fault
                self._reject(server_round, node, f"{type(problem).__name__}: {problem}")
        for node in self._asked:
            if node not in heard:
                self._reject(server_round, node, "no reply")
        return valid, contents

    def _read(self, reply: Message) -> Values:
        assert self._layout is not None
        if reply.has_error():
            raise RefusedError(f"error {reply.error.code}: {reply.error.reason}")
        records = list(reply.content.array_records.values())
        if len(records) != 1:
            raise RefusedError(f"{len(records)} array records instead of one")
        values = self._layout.read(records[0])
        if not bool(torch.isfinite(values.vector).all()):
            raise RefusedError(f"{int((~torch.isfinite(values.vector)).sum())} values are NaN or infinite")
        return values

    def _move(self, server_round: int, valid: dict[int, Values]) -> Values | None:
        """The arrays after this round, or None where a rule without resilience was carried away."""
        assert self._layout is not None
        assert self._sent is not None
        start = self._sent.vector
        rows = torch.full((self.n, len(start)), float("nan"), dtype=start.dtype)
        for seat, values in valid.items():
            torch.sub(values.vector, start, out=rows[seat])
        before = self._aggregator.state_dict()
        self._aggregator.rounds = server_round - 1
        update = self._aggregator.step(rows)
        direction = torch.where(self._layout.mask(STATISTICS), update.vector, update.aggregate.vector)
        moved = Values(start + direction, {name: self._median(name, valid) for name in self._sent.others})
        # Judged as it will be sent: float16 may overflow where float32 does not.
        if not bool(torch.isfinite(self._layout.read(self._layout.write(moved)).vector).all()):
            self._aggregator.load_state_dict(before)
            return None
        if self.on_weights is not None and update.weight is not None:
            self.on_weights(server_round, update.weight.tolist())
        return moved

    def _median(self, name: str, valid: dict[int, Values]) -> Any:
        stack = np.stack([values.others[name] for values in valid.values()])
        return np.sort(stack, axis=0)[(len(stack) - 1) // 2]

    # -- telling ------------------------------------------------------------------------------------------------------

    def _reject(self, server_round: int, node: int, reason: str) -> None:
        self._tell(Event(server_round, REJECTED, node, self.seats.index(node), shortened(reason, _REASON)))

    def _skip(self, server_round: int, reason: str) -> None:
        self.skipped_in_a_row += 1
        self._tell(Event(server_round, SKIPPED, None, None, reason))
        if self.skipped_in_a_row >= self.patience:
            raise TooFewRepliesError(
                f"{self.skipped_in_a_row} rounds in a row were skipped, the last (round {server_round}) because: "
                f"{reason}. The events before this name the nodes and what is wrong with them: mend those, declare a "
                "larger f, or raise patience"
            )

    def _tell(self, event: Event) -> None:
        if event.event != JOINED:
            where = f"node {event.node}: " if event.node is not None else ""
            log.warning("round %d: %s: %s%s", event.round, event.event, where, event.reason)
        if self.on_event is not None:
            self.on_event(event)


def _medians(contents: Sequence[RecordDict], needed: int) -> MetricRecord:
    """The lower median of each number that at least `needed` nodes report."""
    reported: dict[str, list[float]] = {}
    for content in contents:
        for key, value in _numbers(content).items():
            reported.setdefault(key, []).append(value)
    medians = MetricRecord()
    for key, values in reported.items():
        if len(values) >= max(1, needed):
            medians[key] = sorted(values)[(len(values) - 1) // 2]
    return medians


def _numbers(content: RecordDict) -> dict[str, float]:
    """The finite single numbers among a node's metrics."""
    numbers = {}
    for record in content.metric_records.values():
        for key, value in record.items():
            if isinstance(value, (int, float)) and bool(np.isfinite(np.float64(value))):
                numbers[key] = float(value)
    return numbers
