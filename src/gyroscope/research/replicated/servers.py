"""The honest servers: a model, a momentum and a rule's memory each, and the Byzantine ones' notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gyroscope.momentum import State
from gyroscope.research.replicated import drift
from gyroscope.research.replicated.models import Notes, Replication
from gyroscope.rules import RuleState
from gyroscope.simulation.round import Players, Table
from gyroscope.simulation.workers import SimulatedWorkers


class Servers:
    """What the servers know from step to step. Honest ones come first; only they have a model.

    All begin with the same one. A run's parameters, which are evaluated, are those of server 0.
    """

    def __init__(self, players: Players, table: Table, workers: SimulatedWorkers, replication: Replication) -> None:
        self.replication = replication
        self.workers = workers
        honest, parameters = replication.honest, players.workers.parameters
        self.models = parameters.repeat(honest, 1)
        self.before = parameters.clone()
        """The mean honest model one step ago: what the Byzantine servers' updates are taken from."""
        # A server's slot comes after the rule: what the placement keeps of workers' rows is the workers' own.
        self.states: list[State] = [players.placement.init(table.honest[:1]) for _ in range(honest)]
        self.memories: list[RuleState] = [{} for _ in range(honest)]
        self.worker_notes: Notes = {}
        self.server_notes: Notes = {}
        self.drift: drift.Row = {}
        """Of the last step."""

    def state(self) -> dict[str, Any]:
        """Tensors in dictionaries and lists, so that `torch.load(weights_only=True)` reads it."""
        return {
            "models": self.models,
            "before": self.before,
            "states": self.states,
            "memories": [dict(memory) for memory in self.memories],
            "worker_notes": dict(self.worker_notes),
            "server_notes": dict(self.server_notes),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` told."""
        device = self.models.device
        self.models, self.before = state["models"].to(device), state["before"].to(device)
        self.states = [_to(kept, device) for kept in state["states"]]
        self.memories = [_to(kept, device) for kept in state["memories"]]
        self.worker_notes = {name: _to(kept, device) for name, kept in state["worker_notes"].items()}
        self.server_notes = {name: _to(kept, device) for name, kept in state["server_notes"].items()}


def _to(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
