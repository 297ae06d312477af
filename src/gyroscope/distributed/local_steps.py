"""`gy.diloco`: many local steps by each rank's own optimizer, then one robust step for all (Douillard et al. 2023)."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from gyroscope._core.errors import ConfigError
from gyroscope.distributed.robust_optimizer import RobustOptimizer
from gyroscope.rules import Rule


def diloco(
    model: nn.Module,
    inner: torch.optim.Optimizer,
    outer: torch.optim.Optimizer,
    *,
    rule: Rule | str,
    f: int,
    every: int = 50,
    momentum: Literal["workers", "server"] = "workers",
    mu: float = 0.9,
    process_group: dist.ProcessGroup | None = None,
    seed: int = 0,
) -> DiLoCo:
    """Train with local steps, and aggregate what the ranks have learned by a robust rule.

    Each rank takes `every` steps of its inner optimizer by itself. Then its *pseudo-gradient*, the parameters before
    these steps minus those after them, takes the place of a gradient: momentum, exchange, rule, and one step of the
    outer optimizer from the common parameters. Every rank goes on from the result with its own inner state.

    Args:
        model: the model as it is, the same on every rank.
        inner: the optimizer of the local steps, on all of the model's trainable parameters.
        outer: the optimizer of the common steps, on the same parameters.
        rule: a rule or its spec, feasible for f of all ranks. It must not need a trusted gradient.
        f: how many ranks may learn something wrong.
        every: local steps between common ones.
        momentum: where the outer momentum is: "workers", before the rule, by mu (the outer optimizer should have
            none); or "server", after it, by the outer optimizer's own (SGD(momentum=0.9, nesterov=True) in the paper).
        mu: the factor of momentum at the workers, an average of the last pseudo-gradients.
        process_group: the ranks that take part, if not all.
        seed: of a rule that draws at random; the same on every rank.

    Returns:
        The job, whose `step` takes the place of the inner optimizer's.

    Raises:
        InfeasibleError: the rule cannot tolerate f of that many ranks.
        ConfigError: a value is out of range, or the ranks' models or settings differ.

    Example:
        One rank, to show the calls; with more of them f is 1 or more.

        >>> import torch
        >>> import gyroscope as gy
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> inner = torch.optim.AdamW(model.parameters(), lr=3e-4)
        >>> outer = torch.optim.SGD(model.parameters(), lr=0.7)
        >>> job = gy.diloco(model, inner, outer, rule="median", f=0, every=2)
        >>> for batch in torch.ones(4, 8, 2):
        ...     inner.zero_grad()
        ...     model(batch).square().mean().backward()
        ...     print(job.step())
        False
        True
        False
        True
        >>> torch.distributed.destroy_process_group()
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise ConfigError(f"every must be a whole number of at least 1, got {every!r}")
    if momentum not in ("workers", "server"):
        raise ConfigError(f"momentum must be 'workers' or 'server', got {momentum!r}")
    where = "workers" if momentum == "workers" else "none"
    robust = RobustOptimizer(outer, rule=rule, f=f, momentum=where, mu=mu, process_group=process_group, seed=seed)
    return DiLoCo(model, inner, robust, every)


class DiLoCo:
    """Local steps and common ones. What it withstands, and what not, is what `RobustSGD` withstands."""

    def __init__(self, model: nn.Module, inner: torch.optim.Optimizer, outer: RobustOptimizer, every: int) -> None:
        self.inner, self.outer, self.every = inner, outer, every
        self.steps = 0
        """Local steps so far."""
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._common = [parameter.detach().clone() for parameter in self._parameters]

    def step(self) -> bool:
        """Take a local step; return whether a common one followed. All ranks must call it equally often."""
        self.inner.step()
        self.steps += 1
        if self.steps % self.every:
            return False
        self._common_step()
        return True

    @torch.no_grad()
    def _common_step(self) -> None:
        for parameter, common in zip(self._parameters, self._common, strict=True):
            parameter.grad = common - parameter
            parameter.copy_(common)
        self.outer.step()
        for parameter, common in zip(self._parameters, self._common, strict=True):
            common.copy_(parameter)
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: both optimizers', the common parameters, the number of steps."""
        return {
            "steps": self.steps,
            "common": [common.clone() for common in self._common],
            "inner": self.inner.state_dict(),
            "outer": self.outer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what the same rank saved. The model's state dict holds its own parameters."""
        self.steps = state["steps"]
        for common, saved in zip(self._common, state["common"], strict=True):
            common.copy_(saved)
        self.inner.load_state_dict(state["inner"])
        self.outer.load_state_dict(state["outer"])
