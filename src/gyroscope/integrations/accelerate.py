"""Robust training with Accelerate: `robust` registers gy.ddp on the model that `accelerator.prepare` has returned.

Accelerate's own `comm_hook` is a choice of five, and cannot name another hook. Nothing here imports accelerate.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gyroscope._core.errors import ConfigError
from gyroscope.distributed.robust_ddp import RobustDDP, ddp
from gyroscope.rules import Rule

if TYPE_CHECKING:
    from accelerate import Accelerator


def robust(
    accelerator: Accelerator, model: nn.Module, rule: Rule | str = "median", f: int = 1, **options: Any
) -> RobustDDP:
    """Aggregate the gradients of a prepared model by a robust rule, in place of the mean.

        model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        job = robust(accelerator, model, rule="median", f=1)

    `accelerator.save_state` and `load_state` then keep the job's state, too, in a file per rank.

    Args:
        accelerator: whose `prepare` has returned the model.
        model: what `prepare` has returned, compiled or not; the same on every rank.
        rule: a rule or its spec, feasible for f of all ranks.
        f: how many ranks may have wrong gradients.
        options: further options of `gy.ddp`.

    Returns:
        The job: verdicts on the ranks, and a state to save.

    Raises:
        InfeasibleError: the rule cannot tolerate f of that many ranks.
        ConfigError: Accelerate has not wrapped the model in a DistributedDataParallel, it scales gradients (fp16), or a
            value is out of range.
    """
    wrapped = getattr(model, "_orig_mod", model)  # Accelerate compiles after it has wrapped
    if not isinstance(wrapped, DistributedDataParallel):
        kind, n = accelerator.distributed_type, accelerator.num_processes
        raise ConfigError(
            f"robust needs a model that accelerator.prepare() has put into a DistributedDataParallel, got "
            f"{type(wrapped).__name__} with distributed_type {getattr(kind, 'value', kind)} and {n} processes: pass "
            "what prepare() returned, and start at least 2f + 1 processes with `accelerate launch --multi_gpu` (or "
            "--cpu). For a model sharded by fully_shard there is gy.fsdp; with DeepSpeed there is none"
        )
    if getattr(accelerator, "scaler", None) is not None:
        raise ConfigError(
            "gy.ddp cannot work with a gradient scaler, got mixed_precision fp16: the scale changes from step to step, "
            "and momentum would add up gradients of different scales. Use bf16"
        )
    job = ddp(wrapped, rule, f, **options)
    number = getattr(accelerator, "_gyroscope_jobs", 0)  # an accelerator may have several models
    accelerator._gyroscope_jobs = number + 1
    accelerator.register_save_state_pre_hook(lambda models, weights, folder: save(job, folder, number))
    accelerator.register_load_state_pre_hook(lambda models, folder: load(job, folder, number))
    return job


def save(job: RobustDDP, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Write this rank's state of the job into the folder of a checkpoint. All ranks do it, each for itself."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    torch.save(job.state_dict(), _file(job, folder, number))


def load(job: RobustDDP, folder: str | os.PathLike[str], number: int = 0) -> None:
    """Continue from what `save` wrote on the same ranks of as many. All ranks do it, or none.

    Where a rank does not find its file, all of them warn and begin without momentum.
    """
    file = _file(job, folder, number)
    found = job.exchange.rows(torch.tensor([float(file.exists())], device=job.device))
    missing = (found[:, 0] != 1).nonzero().flatten().tolist()
    if missing:
        names = ", ".join(map(str, missing))
        warnings.warn(
            f"{folder} has no state of gy.ddp for ranks {names}: all begin without momentum, for some steps",
            stacklevel=2,
        )
    else:
        job.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))


def _file(job: RobustDDP, folder: str | os.PathLike[str], number: int) -> Path:
    return Path(folder) / f"gyroscope-{number}-rank-{job.exchange.rank}-of-{job.exchange.n}.pt"
