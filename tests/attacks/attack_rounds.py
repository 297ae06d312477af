"""One round of an attack in a test: a context with everything that any attack asks for."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from strategies import normal
from torch import Tensor

from gyroscope.attacks import Attack, AttackContext, parse
from gyroscope.rules import Median, Rule


def own_gradients(honest: Tensor, f: int, step: int, flipped: bool) -> Tensor:
    """Return what the Byzantine workers would send if they were honest: near the honest rows, new in each round."""
    noise = normal(f, honest.shape[1], seed=2 * step + flipped + 100).to(honest.dtype)
    return honest.mean(dim=0) + noise * honest.abs().max() * 0.1


def parameters_at(honest: Tensor, step: int) -> Tensor:
    """Return the model's parameters at a step: a trajectory that has nothing to do with the rows."""
    return normal(1, honest.shape[1], seed=500 + step)[0].to(honest.dtype)


def context_for(
    honest: Tensor,
    f: int,
    *,
    seed: int = 0,
    declared_f: int | None = None,
    step: int = 0,
    state: MutableMapping[str, Tensor] | None = None,
    rule: Rule | None = None,
    server: int = 0,
    parameters: Tensor | None = None,
) -> AttackContext:
    """Return a context in which the rule is the median, told f or as many as it can tolerate."""
    return AttackContext(
        rule=rule or Median(),
        declared_f=min(f, (len(honest) + f - 1) // 2) if declared_f is None else declared_f,
        generator=torch.Generator().manual_seed(seed),
        step=step,
        parameters=parameters_at(honest, step) if parameters is None else parameters,
        state={} if state is None else state,
        compute_gradients=lambda flipped: own_gradients(honest, f, step, flipped),
        momentum="workers",
        server=server,
        servers=server + 1,
    )


def send(attack: Attack | str, honest: Tensor, f: int, **known: object) -> Tensor:
    """Return what f Byzantine workers send."""
    made = parse(attack) if isinstance(attack, str) else attack
    return made(honest, f, context_for(honest, f, **known))  # type: ignore[arg-type]
