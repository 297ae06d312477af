"""A Flower strategy that aggregates the nodes' updates by one of Gyroscope's rules, whatever up to f of them reply."""

from __future__ import annotations

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
from gyroscope._core.foreign_text import shortened
from gyroscope.integrations.flower.fault_tolerant_grid import FaultTolerantGrid
from gyroscope.integrations.flower.layout import Layout, RefusedError, Values
from gyroscope.momentum import RobustAggregator
from gyroscope.runs.events import JOINED, REJECTED, SKIPPED

log = logging.getLogger("flwr")  # Flower's own, so that `flwr run --stream` shows our messages

STATISTICS = ("running_mean", "running_var")
"""The ends of the names of batch-norm's statistics. They follow the batches and would overshoot with momentum."""

_REASON = 200


class TooFewRepliesError(GyroscopeError):
    """Too few valid replies, too often in a row: the federation is broken, and going on would only hide it."""


class RobustStrategy(Strategy):
    """Byzantine-resilient training of any Flower app whose clients reply with the arrays that they have trained.

        strategy = RobustStrategy("krum", f=1, n=5)
        strategy.start(grid, initial_arrays, num_rounds=20, timeout=120)

    Each round asks up to n nodes. A node's row is its arrays minus those it was sent; the rule makes one vector of the
    n rows, and the arrays move by it. The row of a node that is not connected, does not reply in time, or replies with
    anything but finite arrays of the right names, shapes and dtypes is NaN, which the rule treats as the worst outlier.
    With fewer than n - f valid rows the arrays stay as they are and the round counts as skipped.

    Whole-number arrays, such as batch-norm's counters, are not updates: they become the lower median of the valid
    replies. Nodes' metrics are combined in the same way, so that f Byzantine nodes cannot shift them at will.
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
        on_event: Callable[[int, str, int | None, str, str], None] | None = None,
        on_weights: Callable[[int, Sequence[float]], None] | None = None,
    ) -> None:
        """Check that the rule tolerates f of n nodes.

        Args:
            rule: a spec such as `krum:m=1`, or an object of `gyroscope.rules`.
            f: how many of the n nodes may reply with anything at all.
            n: how many nodes are asked each round. Of more than that a random choice is asked, so f must hold for it.
            server_momentum: mu of momentum *after* the rule; 0 for none. Momentum protects at the workers: see
                `worker_momentum`.
            patience: how many rounds in a row may be skipped before `TooFewRepliesError` stops the run.
            gathering: seconds to wait for all n nodes before the first round; then n - f are enough.
            evaluate: whether to ask the nodes to evaluate, too. The median of each number that they report is kept.
            seed: of the random choice of nodes, and of a rule that draws at random.
            arrayrecord_key, configrecord_key: the names of the records in a message, as in Flower's strategies.
            on_event: called like `gyroscope.runs.events.EventLog.add` when a node joins (gets a row), when a reply is
                rejected (not used), and when a round is skipped (changes nothing). Its steps count from 0.
            on_weights: called with each round and each row's share in its aggregate, for rules that have shares.

        Raises:
            InfeasibleError: the rule cannot tolerate f of n nodes.
            ConfigError: a value is out of range, or the rule needs a trusted gradient.
        """
        self.rule = rules.parse(rule)
        self.rule.check_feasible(n, f)
        rules.refuse_trusted(self.rule, "a Flower strategy")
        if patience < 1:
            raise ConfigError(f"patience must be at least 1 round, got {patience}")
        self.n, self.f, self.patience, self.gathering = n, f, patience, gathering
        self.evaluate, self.server_momentum, self._seed = evaluate, server_momentum, seed
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.on_event, self.on_weights = on_event, on_weights
        self._ttl: float | None = None
        self._reset()

    def _reset(self) -> None:
        """Forget the state of an earlier `start`."""
        self.nodes: list[int | None] = [None] * self.n
        """The node of each row."""
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
        """Run the rounds, as any Flower strategy does; `timeout` is the deadline of each in seconds."""
        self._reset()
        self._ttl = timeout  # a node that wakes up later must not work off rounds that are over
        safe = grid if isinstance(grid, FaultTolerantGrid) else FaultTolerantGrid(grid)
        result = super().start(safe, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if not result.arrays:
            result.arrays = initial_arrays
        return result

    def summary(self) -> None:
        needed = self.n - self.f
        log.info("\t├── Rule: %s, f = %d of n = %d nodes", self.rule, self.f, self.n)
        log.info("\t└── Valid replies needed: %d; skipped rounds in a row that end the run: %d", needed, self.patience)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._layout is None:
            self._layout = Layout.of(arrays)
        self._sent = self._layout.read(arrays)
        self._asked = self._choose(grid)
        # A node keeps its row; a new one gets the row of a node that is not asked now.
        free = [worker for worker, node in enumerate(self.nodes) if node not in self._asked]
        for node in self._asked:
            if node not in self.nodes:
                self.nodes[free.pop(0)] = node
                self._report(server_round, JOINED, node)
        return self._messages(server_round, arrays, config, MessageType.TRAIN)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._messages(server_round, arrays, config, MessageType.EVALUATE) if self.evaluate else []

    def _messages(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, kind: str) -> list[Message]:
        own = ConfigRecord({**config, "server-round": server_round})  # not the caller's, which all rounds share
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        return [Message(content=content, message_type=kind, dst_node_id=node, ttl=self._ttl) for node in self._asked]

    def _choose(self, grid: Grid) -> list[int]:
        """Return the nodes of this round: all n if they are connected, but a dead one must not hold up the others."""
        first, shown = not self._gathered, -1
        limit = time.monotonic() + (self.gathering if first else min(self.gathering, self._ttl or self.gathering))
        while True:
            connected, over = sorted(set(grid.get_node_ids())), time.monotonic() >= limit
            enough = self.n if first and not over else self.n - self.f
            if len(connected) >= enough or (over and not first):
                break
            if over:
                raise TooFewRepliesError(
                    f"only {len(connected)} nodes have connected within {self.gathering:.0f} s, but n - f = "
                    f"{self.n - self.f} are needed: start more SuperNodes, or lower n"
                )
            if len(connected) != shown:
                log.info("waiting for nodes: %d of %d are connected", len(connected), enough)
                shown = len(connected)
            time.sleep(0.5)
        self._gathered = True
        return connected if len(connected) <= self.n else sorted(self._random.sample(connected, self.n))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if self._layout is None or self._sent is None:
            raise ConfigError("aggregate_train needs the arrays that were sent: call configure_train before it")
        valid, contents = self._valid(server_round, replies, self._layout)
        moved: Values | None = None
        reason = f"{len(valid)} valid replies, but n - f = {self.n - self.f} are needed"
        if len(valid) >= self.n - self.f:
            moved = self._move(server_round, valid, self._layout, self._sent)
            reason = f"the rule {self.rule} gave a vector that is not finite"
        metrics = _medians(contents, self.n - self.f)
        metrics["valid-replies"] = len(valid)
        metrics["skipped"] = int(moved is None)
        self.skipped_in_a_row = 0 if moved else self.skipped_in_a_row + 1
        if moved is None:
            self._report(server_round, SKIPPED, None, reason)
        if self.skipped_in_a_row >= self.patience:
            raise TooFewRepliesError(
                f"{self.skipped_in_a_row} rounds in a row were skipped, the last (round {server_round}) because: "
                f"{reason}. The events before this name the nodes and what is wrong with them: mend those, declare a "
                "larger f, or raise patience"
            )
        return self._layout.write(moved or self._sent), metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        contents = [reply.content for reply in replies if reply.has_content()]
        return _medians(contents, self.n - self.f) or None

    def _valid(
        self, server_round: int, replies: Iterable[Message], layout: Layout
    ) -> tuple[dict[int, Values], list[RecordDict]]:
        """Return the usable replies by row, and their contents; report every other one as an event."""
        valid: dict[int, Values] = {}
        contents = []
        waiting = set(self._asked)
        for reply in replies:
            node = reply.metadata.src_node_id
            if node not in waiting:  # only without a FaultTolerantGrid
                self._report(server_round, REJECTED, node, "a reply that nobody asked for")
                continue
            waiting.remove(node)
            try:
                valid[self.nodes.index(node)] = _read(reply, layout)
                contents.append(reply.content)
            except RefusedError as problem:
                self._report(server_round, REJECTED, node, str(problem))
            except Exception as problem:  # any error that a stranger's reply causes is the reply's fault
                self._report(server_round, REJECTED, node, f"{type(problem).__name__}: {problem}")
        for node in sorted(waiting):
            self._report(server_round, REJECTED, node, "no reply")
        return valid, contents

    def _move(self, server_round: int, valid: dict[int, Values], layout: Layout, sent: Values) -> Values | None:
        """Return the arrays after this round, or None where a rule without resilience returned no finite vector."""
        rows = torch.full((self.n, len(sent.vector)), float("nan"), dtype=sent.vector.dtype)
        for worker, values in valid.items():
            torch.sub(values.vector, sent.vector, out=rows[worker])
        before = self._aggregator.state_dict()
        self._aggregator.rounds = server_round - 1
        update = self._aggregator.step(rows)
        direction = torch.where(layout.mask(STATISTICS), update.vector, update.aggregate.vector)
        others = {name: _lower_median([values.others[name] for values in valid.values()]) for name in sent.others}
        moved = Values(sent.vector + direction, others)
        # Checked as it will be sent: float16 may overflow where float32 does not.
        if not bool(torch.isfinite(layout.read(layout.write(moved)).vector).all()):
            self._aggregator.load_state_dict(before)
            return None
        if self.on_weights is not None and update.weight is not None:
            self.on_weights(server_round, update.weight.tolist())
        return moved

    def _report(self, server_round: int, event: str, node: int | None, reason: str = "") -> None:
        who, reason = "" if node is None else f"node {node}", shortened(reason, _REASON)
        if event != JOINED:
            log.warning("round %d: %s: %s", server_round, event, ": ".join(filter(None, (who, reason))))
        if self.on_event is not None:
            worker = self.nodes.index(node) if node in self.nodes and node is not None else None
            self.on_event(server_round - 1, event, worker, reason, who)


def _read(reply: Message, layout: Layout) -> Values:
    if reply.has_error():
        raise RefusedError(f"error {reply.error.code}: {reply.error.reason}")
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        raise RefusedError(f"{len(records)} array records instead of one")
    values = layout.read(records[0])
    if not bool(torch.isfinite(values.vector).all()):
        raise RefusedError(f"{int((~torch.isfinite(values.vector)).sum())} values are NaN or infinite")
    return values


def _lower_median(values: Sequence[Any]) -> Any:
    return np.sort(np.stack(values), axis=0)[(len(values) - 1) // 2]


def _medians(contents: Sequence[RecordDict], needed: int) -> MetricRecord:
    """Return the lower median of each finite number that at least `needed` nodes report."""
    reported: dict[str, list[float]] = {}
    for content in contents:
        numbers = {key: value for record in content.metric_records.values() for key, value in record.items()}
        for key, value in numbers.items():
            if isinstance(value, (int, float)) and bool(np.isfinite(np.float64(value))):
                reported.setdefault(key, []).append(float(value))
    enough = {key: values for key, values in reported.items() if len(values) >= max(1, needed)}
    return MetricRecord({key: float(_lower_median(values)) for key, values in enough.items()})
