"""The run of a coordinator: rounds whose rows are in the shards."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gyroscope import rules
from gyroscope._core.clock import Clock
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.moments import CachedMoments
from gyroscope.distributed.server.shards.sharded_workers import ShardedAggregate, ShardedWorkers
from gyroscope.momentum import RobustAggregator
from gyroscope.rules import Aggregate, RuleContext, RuleState
from gyroscope.runs.config import ResolvedConfig
from gyroscope.runs.training import Run, WorkerFactory
from gyroscope.simulation import tasks
from gyroscope.simulation.round import Round


class ShardsAggregator(RobustAggregator):
    """Let the shards apply the rule; momentum at the server is here."""

    workers: ShardedWorkers
    measured = True
    """Whether the moments of the next round's rows are wanted."""
    last: ShardedAggregate
    """What came of the last round."""

    def _aggregate(self, rows: Tensor, context: RuleContext) -> tuple[Aggregate, RuleState]:
        self.last = self.workers.aggregate(self.rule.reads, self.measured)
        return self.last.aggregate, {}


class ShardedRun(Run):
    """Play rounds with a coordinator and its shards."""

    columns_here = 0

    def __init__(self, config: ResolvedConfig, task: tasks.Task, worker_factory: WorkerFactory | None = None) -> None:
        refuse_unshardable(config)
        super().__init__(config, task, worker_factory)

    def make_aggregator(self) -> RobustAggregator:
        """Return the aggregator that asks the shards."""
        config = self.config
        aggregator = ShardsAggregator(
            config.rule, config.declared_byzantine, momentum=config.momentum, mu=config.mu, nesterov=config.nesterov
        )
        assert isinstance(self.round_config.workers, ShardedWorkers)
        aggregator.workers = self.round_config.workers
        return aggregator

    def compute_round(self, clock: Clock) -> Round:
        """Collect, aggregate and update, as `simulation.round.play_round` does."""
        config, state, step = self.round_config, self.round_state, self.step
        workers, aggregator, lr = config.workers, state.aggregator, self.schedule.at(step)
        assert isinstance(aggregator, ShardsAggregator)
        losses, _ = workers.sample(step, out=state.gradients, clock=clock)
        # Sampled gradients are measured in every round; else only what is recorded, and what that is compared with.
        every = self.config.measure_every
        aggregator.measured = not workers.accumulates or step % every == 0 or (step + 1) % every == 0
        elsewhere = self.parameters.new_zeros(1)  # in place of the rows, which have no memory here
        update = aggregator.step(elsewhere.expand(workers.count, self.parameters.numel()))
        clock.lap("rule")
        state.optimizer.step(update.vector, lr)
        clock.lap("update")
        present = workers.count if workers.present is None else len(workers.present)
        sent = CachedMoments(elsewhere.expand(present, self.parameters.numel()))
        if aggregator.last.moments is not None:
            sent.moments = aggregator.last.moments
        sampled = None if workers.accumulates else sent
        return Round(step, lr, config.mu, losses, sampled, sent, sent.rows[:0], update, workers.count)


def refuse_unshardable(config: ResolvedConfig) -> None:
    """Raise a ConfigError where the rows of a configuration cannot be split by columns."""
    rule: Any = rules.parse(config.rule)
    if rule.reads == "rows":
        others = "median, trimmed-mean, meamed, krum, bulyan and nnm+median"
        raise ConfigError(
            f"the rule {config.rule!r} reads whole rows, and with server shards no process has them: choose a rule "
            f"that reads columns or distances (such as {others}), or leave out --server-shards"
        )
    if config.byzantine:
        raise ConfigError(
            f"byzantine = {config.byzantine}: simulated Byzantine workers see whole rows, and with server shards no "
            "process has them: set byzantine = 0 and declare how many the rule is to tolerate (declared_byzantine), or "
            "leave out --server-shards"
        )
    if config.sample is not None or config.worker_weights != "equal":
        given = (
            f"sample = {config.sample}" if config.sample is not None else f"worker_weights = {config.worker_weights}"
        )
        raise ConfigError(
            f"{given}: a server with shards asks all workers, and all count the same: leave it out, or leave out "
            "--server-shards"
        )
    if config.momentum == "server-kept":
        raise ConfigError(
            "with momentum = 'server-kept' the server accumulates whole rows, and with server shards no process has "
            "them: choose 'workers' or 'server', or leave out --server-shards"
        )
