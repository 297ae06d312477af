"""What the tests of several servers share: a small task, and adversaries that send the worst."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

import gyroscope as gy
from gyroscope import attacks
from gyroscope.attacks import AttackContext
from gyroscope.research.replicated import ReplicatedRun
from gyroscope.research.replicated.replicated_config import ResolvedReplicatedConfig

STREAM = torch.Generator().manual_seed(11)
CENTRES = torch.randn(3, 5, generator=STREAM) * 2
TARGETS = torch.arange(240) % 3
INPUTS = CENTRES[TARGETS] + torch.randn(240, 5, generator=STREAM)
TASK = gy.Task(
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3), nn.LogSoftmax(dim=1)),
    (INPUTS[:180], TARGETS[:180]),
    (INPUTS[180:], TARGETS[180:]),
)

# Not as "nan" and "inf": a spec would read numbers.
BAD = {"no-number": math.nan, "over": math.inf, "under": -math.inf, "huge": 3e38, "hugely-negative": -3e38}


def config(**values: object) -> gy.Config:
    """A small run: with several servers, where one of their settings is given."""
    base = {"workers": 9, "batch": 6, "steps": 12, "lr": "0.1", "evaluate_every": 6, "rule": "median", "threads": 1}
    return gy.Config.from_mapping({**base, **values})


def replicate(settings: gy.Config, servers: int, exchange_every: int = 1) -> ReplicatedRun:
    """A run with that many servers, all of them honest, also where it is one. All quorums are complete."""
    values = dataclasses.asdict(settings.resolve(TASK))
    resolved = ResolvedReplicatedConfig(
        **values,
        servers=servers,
        declared_byzantine_servers=0,
        server_quorum=servers,
        worker_quorum=values["workers"],
        exchange_every=exchange_every,
    )
    return ReplicatedRun(resolved, TASK)


@dataclasses.dataclass(frozen=True)
class Vandal(attacks.Attack):
    """The same bad value in every coordinate, or bad values in turn."""

    value: str = "mixed"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if self.value != "mixed":
            return torch.full((f, honest.shape[1]), BAD[self.value], dtype=honest.dtype)
        turn = torch.tensor(list(BAD.values()), dtype=honest.dtype)
        return turn[torch.arange(f * honest.shape[1]) % len(turn)].view(f, -1)


@dataclasses.dataclass(frozen=True)
class TwoFaced(attacks.Attack):
    """Honest mean plus `push` to even receivers, minus it to the others."""

    push: float = 1.0

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        assert 0 <= context.server < context.servers
        sign = 1.0 if context.server % 2 == 0 else -1.0
        return (honest.mean(dim=0) + sign * self.push).expand(f, -1)
