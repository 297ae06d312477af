"""Ranks of RobustSGD as real processes: `python rank_world.py FOLDER` writes what each rank found to FOLDER/RANK.pt."""

from __future__ import annotations

import multiprocessing
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gyroscope.distributed import RobustSGD

N, D, STEPS, BAD_STEP, BAD_WORKER = 5, 23, 6, 2, 1
MU = 0.9


def gradients(bad: bool = False, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """(N, D) for each of the steps; with `bad`, one worker's gradient is NaN in one step."""
    stream = torch.Generator().manual_seed(5)
    steps = [torch.randn(N, D, generator=stream, dtype=dtype) for _ in range(STEPS)]
    if bad:
        steps[BAD_STEP][BAD_WORKER] = float("nan")
    return steps


def _directions(rank: int, rule: str, momentum: str, bad: bool) -> Tensor:
    """What RobustSGD subtracts in each step, for the given gradients."""
    parameter = nn.Parameter(torch.zeros(D))
    optimizer = RobustSGD([parameter], lr=1.0, rule=rule, f=1, momentum=momentum, mu=MU)
    seen = []
    for rows in gradients(bad):
        parameter.data.zero_()
        parameter.grad = rows[rank].clone()
        optimizer.step()
        seen.append(-parameter.detach().clone())
    return torch.stack(seen)


def _accuracy(rank: int, poisoned: int | None) -> float:
    """Train on 8x8 digits, one of which may be NaN for every rank; the accuracy on the last 360."""
    digits = load_digits()
    inputs, targets = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    if poisoned is not None:
        inputs[poisoned] = float("nan")
    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    optimizer = RobustSGD(model.parameters(), lr=0.05, rule="median", f=1, mu=MU)
    stream = torch.Generator().manual_seed(100 + rank)
    for _ in range(150):
        batch = torch.randint(1437, (32,), generator=stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
    return float((model(inputs[1437:]).argmax(dim=1) == targets[1437:]).float().mean())


def _rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=N, timeout=timedelta(seconds=60)
    )
    found = {
        f"{rule} {momentum} {bad}": _directions(rank, rule, momentum, bad)
        for rule in ("krum", "median")
        for momentum in ("workers", "server")
        for bad in (False, True)
    }
    accuracies = {"clean": _accuracy(rank, None), "poisoned": _accuracy(rank, 3)}
    torch.save({**found, **{name: torch.tensor(value) for name, value in accuracies.items()}}, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_rank, args=(rank, Path(sys.argv[1]))) for rank in range(N)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in processes))
