"""SGD that ranks with wrong gradients cannot ruin, in place of DistributedDataParallel and torch.optim.SGD.

gradient -> clipping -> momentum at the workers -> exchange -> rule -> momentum at the server -> parameters
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gyroscope.distributed.robust_optimizer import ExchangingOptimizer, number
from gyroscope.rules import Rule


class RobustSGD(ExchangingOptimizer):
    """An optimizer that exchanges gradients between ranks and aggregates them by a robust rule.

    **It withstands** up to f ranks whose *gradients* are wrong, whatever the cause: bad or poisoned data, overflow,
    NaN, a bit flip, a GPU that computes nonsense in the backward pass. Such a rank can recover: a gradient that is not
    finite costs it one step (see `WorkerMomentum`). **It does not withstand** a rank whose *program* is Byzantine, for
    every rank aggregates a share of the columns for all others. And a rank that is dead or hangs stops everyone: the
    others' collectives fail, at the latest at the process group's timeout, and all must begin again from what they
    saved. A parameter server withstands both.

    **All ranks stay equal.** The constructor copies rank 0's parameters to all ranks, and every step changes them by
    the same bits everywhere (given the same kind of processor). Buffers such as batch-norm's running statistics are not
    parameters and differ between ranks. Ranks must take the same steps with the same learning rates. None may skip one,
    so do not use a GradScaler, which does (bfloat16 needs none). A missing gradient (None) counts as zeros.

    **Cost per step and rank**, for n ranks and d parameters: about 2 d values sent, and the rule on an (n, d/n) matrix.
    A rule with `reads = "rows"` (the default of a third party's) costs n d values and the whole matrix.

    **State.** With momentum at the workers each rank has its own: save `state_dict()` on every rank, in a file per
    rank, and load it on the same rank; training then continues with the same bits. It includes a rule's own state
    (`centered-clipping`) and the number of steps; adding, freezing or thawing parameters resets the rule's state.

    Example:
        One rank, to show the calls. `torchrun` starts as many as you like, and then f is 1 or more.

        >>> import torch
        >>> import gyroscope as gy
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)  # as it is, not in a DDP
        >>> optimizer = gy.RobustSGD(model.parameters(), lr=0.1, rule="median", f=0)
        >>> model(torch.ones(4, 2)).square().mean().backward()
        >>> optimizer.step()
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        rule: Rule | str,
        f: int,
        weight_decay: float = 0.0,
        clip: float = math.inf,
        momentum: str = "workers",
        mu: float = 0.9,
        nesterov: bool = False,
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        """Check that all ranks agree, and copy rank 0's parameters to all.

        Args:
            params: parameters or parameter groups, the same on every rank. Groups may have their own lr and
                weight_decay.
            lr: the learning rate.
            rule: a rule or its spec, feasible for f of all ranks. It must not need a trusted gradient.
            f: how many ranks may have wrong gradients.
            weight_decay: of the penalty weight_decay/2 * |p|^2, which each rank adds to its gradient.
            clip: the largest Euclidean norm of a rank's gradient (with weight decay, over all parameters together).
            momentum: where momentum is computed: "workers", "server" or "none".
            mu: the momentum factor, 0 <= mu < 1.
            nesterov: use Nesterov's look-ahead.
            process_group: the ranks that take part, if not all.
            seed: of a rule that draws at random; the same on every rank.

        Raises:
            InfeasibleError: the rule cannot tolerate f of that many ranks.
            ConfigError: a value is out of range, or the ranks' models or settings differ.
            ExchangeError: a rank has ended or hangs.
        """
        defaults = {"lr": number("lr", lr), "weight_decay": number("weight_decay", weight_decay)}
        super().__init__(params, defaults, rule, f, clip, momentum, mu, nesterov, 0.0, process_group, seed)

    def _write_gradients(self) -> None:
        super()._write_gradients()
        for parameter, piece, group in self._pieces():
            if group["weight_decay"] != 0:
                piece.add_(parameter, alpha=float(group["weight_decay"]))

    def _apply(self, vector: Tensor) -> None:
        for parameter, piece, group in self._pieces(vector):
            parameter.sub_(piece, alpha=float(group["lr"]))
