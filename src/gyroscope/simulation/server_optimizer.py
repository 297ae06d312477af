"""What the server does with the aggregate: plain SGD, or another optimizer of torch's."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry


@dataclasses.dataclass(frozen=True)
class ServerOptimizer(registry.Named):
    """An optimizer by name. `begin` makes the object that keeps its state during a run."""

    kind_in_errors = "optimizer"
    scale: float = registry.number(1.0, "above 0", lambda scale: scale > 0)
    """The factor from the run's learning rate to the server's, where workers take local steps with the run's."""

    @abstractmethod
    def begin(self, parameters: Tensor) -> OptimizerSteps:
        """Return the optimizer of these parameters before its first step."""


class OptimizerSteps:
    """Updates parameters by plain SGD, which has no state; momentum is the aggregator's or the workers'."""

    def __init__(self, parameters: Tensor, scale: float) -> None:
        self.parameters, self.scale = parameters, scale

    def step(self, vector: Tensor, lr: float) -> None:
        """Move the parameters against the vector."""
        self.parameters.sub_(vector, alpha=lr * self.scale)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""


class _TorchSteps(OptimizerSteps):
    """Lets one of torch's optimizers update the parameters, with the vector in the place of their gradient."""

    def __init__(self, parameters: Tensor, scale: float, kind: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(parameters, scale)
        self.optimizer = kind([parameters], **options)

    def step(self, vector: Tensor, lr: float) -> None:
        (group,) = self.optimizer.param_groups
        group["lr"] = lr * self.scale
        self.parameters.grad = vector
        self.optimizer.step()
        self.parameters.grad = None

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


@dataclasses.dataclass(frozen=True)
class SGD(ServerOptimizer):
    """parameters -= lr * aggregate, as in the paper."""

    name = "sgd"
    summary = "parameters -= lr * aggregate, as in the paper"

    def begin(self, parameters: Tensor) -> OptimizerSteps:
        return OptimizerSteps(parameters, self.scale)


@dataclasses.dataclass(frozen=True)
class Adam(ServerOptimizer):
    """torch.optim.Adam at the aggregate.

    beta1: its own momentum, 0 by default, because momentum is at the workers; 0.9 with `--momentum none` is momentum at
        the server, as Adam has it.
    """

    beta1: float = registry.number(0.0, "at least 0 and below 1", lambda beta: 0 <= beta < 1)
    beta2: float = registry.number(0.999, "at least 0 and below 1", lambda beta: 0 <= beta < 1)
    weight_decay: float = registry.number(0.0, "at least 0", lambda decay: decay >= 0)

    name = "adam"
    summary = "Adam, without a momentum of its own unless beta1 is given"
    paper = "Kingma, Ba 2015"
    kind: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam

    def begin(self, parameters: Tensor) -> OptimizerSteps:
        betas = (self.beta1, self.beta2)
        return _TorchSteps(parameters, self.scale, self.kind, betas=betas, weight_decay=self.weight_decay)


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """torch.optim.AdamW at the aggregate: Adam, with weight decay apart from the gradient."""

    weight_decay: float = registry.number(0.01, "at least 0", lambda decay: decay >= 0)

    name = "adamw"
    summary = "Adam with weight decay apart from the gradient"
    paper = "Loshchilov, Hutter 2019"
    kind = torch.optim.AdamW


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {each.name: each for each in (SGD, Adam, AdamW)}


def parse(spec: str) -> ServerOptimizer:
    """Return the optimizer that a spec such as `adamw:beta2=0.99` describes."""
    name, parameters = registry.split(spec)
    return registry.make("optimizer", ServerOptimizer, OPTIMIZERS, name, parameters)
