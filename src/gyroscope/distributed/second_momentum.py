"""A warning where an optimizer has a momentum of its own besides the workers'."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook


def warn_of_second_momentum(parameters: Collection[Tensor]) -> None:
    """Warn once, at the first step of an optimizer that has a momentum of its own on the parameters."""

    waiting = [parameters]

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not waiting:
            return
        groups = [group for group in optimizer.param_groups if any(each in waiting[0] for each in group["params"])]
        if not groups:
            return
        waiting.clear()  # torch goes through its hooks just now, so this one must not remove itself
        for group in groups:
            own = group.get("momentum") or (group.get("betas") or (0.0,))[0]
            if own:
                remedy = "betas=(0.0, ...)" if "betas" in group else "momentum=0"
                warnings.warn(
                    f"{type(optimizer).__name__} has a momentum of its own ({own}) besides the workers' (gy.ddp's mu): "
                    f"the second one delays what the rule returns, and the model may learn worse, above all with a bad "
                    f"rank. Give the optimizer {remedy}, or gy.ddp(mu=0)",
                    stacklevel=2,
                )
                return

    register_optimizer_step_pre_hook(look)
