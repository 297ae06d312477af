"""Quorums: how many servers and workers there must be, how many a receiver waits for, and which of them it hears.

A receiver waits for at most n - f messages, because f may never come. The f Byzantine ones may be among those that
came: in a quorum of 2f + 3 the honest ones have a majority with which the median contracts. Both together need
n >= 3f + 3. These are GuanYu's bounds for servers and for workers. Its later version, ByzSGD, needs n >= 3f + 2 servers
and, with a rule of its own, n >= 3f + 1 workers: whatever is feasible here is feasible there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import InfeasibleError


def check(kind: str, n: int, f: int, quorum: int) -> None:
    """Raise an InfeasibleError if a quorum of `quorum` among n `servers` or `workers` cannot tolerate f Byzantine ones.

    With f = 0 every quorum from 1 to n is feasible.
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


def draw(seed: int, messages: str, receiver: int, step: int, among: int, count: int, own: int | None = None) -> Tensor:
    """Draw which `count` of `among` honest senders reach this receiver first; return their numbers, sorted.

    The network is asynchronous: every subset is equally likely, in every step anew.

    Args:
        seed: the run's.
        messages: what is sent to whom, such as "rows to servers": each kind has a random stream of its own.
        receiver: the receiver's number.
        step: the step's number.
        among: how many honest senders there are.
        count: how many of them the receiver hears.
        own: the receiver's own number, if it is one of the senders: it always hears itself.
    """
    if count >= among:
        return torch.arange(among)
    stream = random_streams.generator(seed, f"quorum/{messages}", receiver, step)
    if own is None:
        return torch.randperm(among, generator=stream)[:count].sort().values
    others = torch.randperm(among - 1, generator=stream)[: count - 1]
    return torch.cat([others + (others >= own), torch.tensor([own])]).sort().values
