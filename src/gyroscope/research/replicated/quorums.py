"""How many servers and workers there must be, for how many of them one may wait, and whom one hears.

Nobody waits for more than n - f messages, because f may never come. The f Byzantine ones may be among those that did:
2f + 3 leave the honest ones a majority with which the median contracts. Both together need n >= 3f + 3. These are the
bounds of GuanYu for servers and for workers. Its later version, ByzSGD, needs n >= 3f + 2 servers and, with a rule of
its own, n >= 3f + 1 workers: what is feasible here is feasible there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import InfeasibleError


def check(kind: str, n: int, f: int, quorum: int) -> None:
    """Raise if, of n `servers` or `workers`, f Byzantine ones cannot be tolerated by waiting for `quorum` of them.

    With f = 0 there is nobody to be tolerated, and any quorum will do.
    """
    setting = "declared_byzantine" if kind == "workers" else "declared_byzantine_servers"
    needed = 3 * f + 3
    if f > 0 and n < needed:
        largest = (n - 3) // 3
        fewer = f", or lower {setting} to {largest}" if largest > 0 else ""
        raise InfeasibleError(
            f"replicated servers need n >= 3f + 3 = {needed} {kind} for f = {f}, got n = {n}: use {needed} "
            f"{kind}{fewer}"
        )
    least, most = (2 * f + 3 if f > 0 else 1), n - f
    if not least <= quorum <= most:
        bound = f"2f + 3 = {least} and at most n - f = {most}" if f > 0 else f"1 and at most n = {most}"
        raise InfeasibleError(
            f"a quorum of {kind} must be at least {bound}, for n = {n} and f = {f}, got {quorum}: set "
            f"{kind[:-1]}_quorum in between, or leave it out to wait for {most}"
        )


def draw(seed: int, who: str, receiver: int, step: int, among: int, count: int, own: int | None = None) -> Tensor:
    """The numbers, in ascending order, of those `count` of the honest that this receiver hears in this step.

    The network is asynchronous: any of them may be the first to arrive. own: the receiver's own number, if it is one of
    them: it always hears itself.
    """
    if count >= among:
        return torch.arange(among)
    stream = random_streams.generator(seed, f"quorum/{who}", receiver, step)
    if own is None:
        return torch.randperm(among, generator=stream)[:count].sort().values
    others = torch.randperm(among - 1, generator=stream)[: count - 1]
    return torch.cat([others + (others >= own), torch.tensor([own])]).sort().values
