"""What the tests of several servers share: a small task, and adversaries who say what is worst."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor, nn

import gyroscope as gy
from gyroscope import attacks
from gyroscope.attacks import AttackContext
from gyroscope.research.replicated.models import Replication
from gyroscope.research.replicated.servers import Servers
from gyroscope.runs.training import Run

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
    base = {"workers": 9, "batch": 6, "steps": 12, "lr": "0.1", "evaluate_every": 6, "rule": "median", "threads": 1}
    return gy.Config(**{**base, **values})  # type: ignore[arg-type]


def replicate(settings: gy.Config, servers: int, **of_replication: int) -> Run:
    """A run with that many servers, all of them honest, also where it is one; all quorums complete unless told."""
    run = Run(settings.resolve(TASK), TASK)
    n = run.players.n
    replication = Replication(
        **{  # type: ignore[arg-type]
            "servers": servers,
            "byzantine": 0,
            "declared_f": 0,
            "server_quorum": servers,
            "worker_quorum": n,
            **of_replication,
        }
    )
    run.servers = Servers(run.players, run.table, run.players.workers, replication)  # type: ignore[arg-type]
    run.tables["drift.csv"] = []
    return run


@dataclasses.dataclass(frozen=True)
class Vandal(attacks.Attack):
    """The same bad value in every coordinate, or bad values in turn."""

    value: str = "mixed"

    def rows(self, honest: Tensor, f: int, view: AttackContext) -> Tensor:
        if self.value != "mixed":
            return torch.full((f, honest.shape[1]), BAD[self.value], dtype=honest.dtype)
        turn = torch.tensor(list(BAD.values()), dtype=honest.dtype)
        return turn[torch.arange(f * honest.shape[1]) % len(turn)].view(f, -1)


@dataclasses.dataclass(frozen=True)
class TwoFaced(attacks.Attack):
    """Honest mean plus `push` to even receivers, minus it to the others."""

    push: float = 1.0

    def rows(self, honest: Tensor, f: int, view: AttackContext) -> Tensor:
        assert 0 <= view.server < view.servers
        sign = 1.0 if view.server % 2 == 0 else -1.0
        return (honest.mean(dim=0) + sign * self.push).expand(f, -1)
