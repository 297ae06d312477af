"""The run behind `AdaptiveConfig`: the core's round, with another accumulator or another factor in every step."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from gyroscope._core.clock import Clock
from gyroscope._core.errors import ConfigError
from gyroscope.momentum import RobustAggregator, WorkerMomentum
from gyroscope.research.adaptive.adaptive_config import ResolvedAdaptiveConfig
from gyroscope.research.adaptive.curvature import CurvatureSchedule, CurvatureState
from gyroscope.research.adaptive.feedback import FeedbackMomentum, LastAggregate
from gyroscope.research.adaptive.switching import SwitchingAggregator
from gyroscope.runs.training import Run, WorkerFactory
from gyroscope.simulation import tasks
from gyroscope.simulation.round import Round, play_round

_SIMULATED_ONLY = ("feedback", "adaptive-oracle")


class AdaptiveRun(Run):
    """Play the core's rounds with the placements and factors of `gyroscope.research.adaptive`."""

    config: ResolvedAdaptiveConfig
    accumulating = ("workers", "feedback")

    def __init__(
        self, config: ResolvedAdaptiveConfig, task: tasks.Task, worker_factory: WorkerFactory | None = None
    ) -> None:
        if worker_factory and config.momentum in _SIMULATED_ONLY:
            raise ConfigError(
                f"the placement {config.momentum!r} exists in the simulation only (gyroscope train): with worker "
                "processes use workers, server, server-kept, adaptive or none"
            )
        self.last = LastAggregate()
        self.accumulators: list[WorkerMomentum] = []
        """All momentum before the rule; the schedule sets their factor in every step."""
        self.mu = config.mu
        self.curvature = CurvatureSchedule(config.adapt, config.mu)
        self.curvature_state: CurvatureState = {}
        super().__init__(config, task, worker_factory)
        if self.round_config.workers.accumulates and "mu" in config.adapt:
            raise ConfigError(
                f"adapt = {config.adapt!r} changes the momentum factor, and worker processes have one of their own: "
                "use momentum server-kept, or adapt the learning rate only"
            )

    def make_worker_momentum(self) -> WorkerMomentum:
        feedback = self.config.momentum == "feedback"
        made = FeedbackMomentum(self.mu, self.last) if feedback else super().make_worker_momentum()
        made.mu = self.mu  # Byzantine workers' momentum is made when an attack first asks, in any round
        self.accumulators.append(made)
        return made

    def make_aggregator(self) -> RobustAggregator:
        config = self.config
        if config.momentum == "feedback":
            return RobustAggregator(config.rule, config.declared_byzantine, momentum="none", seed=config.seed)
        if config.momentum.startswith("adaptive"):
            honest = config.workers - config.byzantine if config.momentum == "adaptive-oracle" else None
            return SwitchingAggregator(
                config.rule, config.declared_byzantine, mu=config.mu, seed=config.seed, honest=honest
            )
        return super().make_aggregator()

    def compute_round(self, clock: Clock) -> Round:
        aggregator = self.round_state.aggregator
        chosen = self.curvature.hyperparameters(self.curvature_state)
        aggregator.mu = self.mu = chosen.mu
        for accumulator in self.accumulators:
            accumulator.mu = chosen.mu
        before = self.parameters.clone()
        shared = self._shared(chosen.mu)
        lr = self.schedule.at(self.step) * chosen.rate
        played = play_round(self.round_config, self.round_state, self.step, lr, clock)
        workers = self.round_config.workers
        accumulated = self.round_state.worker_momentum is not None or workers.accumulates
        self.curvature_state = self.curvature.observe(
            self.curvature_state, self.round_state.rows, before, chosen.mu, accumulated, shared
        )
        if self.config.momentum == "feedback":
            self.last.vector = played.update.vector.clone()  # a rule may return one of the rows
        clock.lap("momentum")
        extra = {"at_workers": aggregator.at_workers} if isinstance(aggregator, SwitchingAggregator) else {}
        return dataclasses.replace(played, mu=chosen.mu, extra=extra)

    def _shared(self, mu: float) -> Tensor | None:
        """Return what every honest worker adds to its gradient, where that is the same for all."""
        if self.config.momentum != "feedback":
            return None
        return self.parameters.new_zeros(()) if self.last.vector is None else self.last.vector * mu

    def state(self) -> dict[str, Any]:
        """Return all that later rounds depend on."""
        last = {} if self.last.vector is None else {"vector": self.last.vector}
        return {**super().state(), "curvature": dict(self.curvature_state), "last": last}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        super().load_state(state)
        self.curvature_state, self.last.vector = state["curvature"], state["last"].get("vector")
