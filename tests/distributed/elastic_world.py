"""A rank of a job whose ranks are killed, stopped and started again: `python elastic_world.py PORT RANK FAULT FOLDER`.

The parent holds the store. FAULT is what rank 3 does to itself at step 8: `kill` or `stop`; `lose RULE`, where it loses
the result of its last exchange, which the others have; `none RULE`; `back RULE` for a rank that is started again, and
`wait RULE` for those that let it in: they go on until it is there; `die RULE` for one that dies as it is let in.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_world import Case, Network, flat, loss_of
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gy
from gyroscope._core.errors import ExchangeError

N = 5
LOST, AT = 3, 8
STEPS, LIMIT = 20, 3000
PATIENCE = 6.0


def main(port: int, rank: int, fault: str, folder: Path) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(rank)  # the first rank's parameters count
    model = DistributedDataParallel(Network(), bucket_cap_mb=0.005)  # several buckets, which DDP rebuilds
    fault, _, rule = fault.partition(" ")
    ranks = gy.distributed.Ranks(store, rank, N)
    job = gy.ddp(model, rule or "caf-history", 1, patience=PATIENCE, ranks=ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.0, 0.99))
    if fault == "die":
        exchange: Any = job.exchange
        exchange.given_by = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    step = job.enter(optimizer=optimizer)
    began, end, was_missing = step, step + 5 if fault == "back" else LIMIT if fault == "wait" else STEPS, False
    while step < end:
        if rank == LOST and step == AT and fault == "lose":
            lose_the_next_result(job)
        elif rank == LOST and step == AT and fault in ("kill", "stop", "wait"):
            os.kill(os.getpid(), signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
        optimizer.zero_grad()
        loss_of(model, Case(), rank, step).backward()
        optimizer.step()
        job.admit(optimizer=optimizer)
        step += 1
        missing = "missing" in job.report()
        if was_missing and not missing and end == LIMIT:
            end = step + 4  # this was the first of five steps of the rank that has come back
        was_missing = missing
        if fault == "wait":
            time.sleep(0.01)
    result = {"parameters": flat(model.module), "steps": step, "began": began, "report": job.report()}
    torch.save(result, folder / f"{rank}.pt")


def lose_the_next_result(job: gy.distributed.RobustDDP) -> None:
    """Take part in the last exchange of a step, so that the others finish it, and fail afterwards."""
    name = "take_from_first" if job.rule.reads == "rows" else "joined"
    exchange: Any = job.exchange
    whole = getattr(exchange, name)

    def failing(values: Tensor) -> Tensor:
        setattr(exchange, name, whole)
        whole(values)
        time.sleep(1)  # the others have it by now
        raise ExchangeError("the result is lost")

    setattr(exchange, name, failing)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
