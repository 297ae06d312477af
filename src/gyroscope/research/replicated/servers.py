"""The state of the servers: a model and an aggregator for each honest one, and the attacks' states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gyroscope.momentum import RobustAggregator
from gyroscope.research.replicated import drift
from gyroscope.research.replicated.model_exchange import AdversaryStates, Replication


class Servers:
    """What the servers keep from step to step. Honest ones come first; only they have a model.

    All begin with the same model. A run's parameters, which are evaluated, are those of server 0.
    """

    def __init__(self, parameters: Tensor, aggregators: list[RobustAggregator], replication: Replication) -> None:
        self.replication, self.aggregators = replication, aggregators
        self.models = parameters.repeat(replication.honest, 1)
        self.before = parameters.clone()
        """The mean honest model one step ago, to which Byzantine servers add their updates."""
        self.worker_adversary: AdversaryStates = {}
        self.server_adversary: AdversaryStates = {}
        self.drift: drift.DriftRow = {}
        """The row of drift.csv of the last step."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors in dictionaries and lists, so that `torch.load(weights_only=True)` reads it."""
        return {
            "models": self.models,
            "before": self.before,
            "aggregators": [aggregator.state_dict() for aggregator in self.aggregators],
            "worker_adversary": dict(self.worker_adversary),
            "server_adversary": dict(self.server_adversary),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.models, self.before = state["models"], state["before"]
        for aggregator, kept in zip(self.aggregators, state["aggregators"], strict=True):
            aggregator.load_state_dict(kept)
        self.worker_adversary, self.server_adversary = state["worker_adversary"], state["server_adversary"]
