"""From a configuration to the simulated workers: the initial model, the device, the data."""

from __future__ import annotations

import copy
import dataclasses
from typing import TypeVar

import torch
from torch import nn

from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import flat_parameters
from gyroscope._linalg.memory import keep_freed_memory
from gyroscope.runs.config import CommonConfig, ResolvedCommon
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.workers import SimulatedWorkers

AnyConfig = TypeVar("AnyConfig", bound=ResolvedCommon)


def simulated_workers(
    config: AnyConfig, task: tasks.Task, only: int | None = None
) -> tuple[AnyConfig, SimulatedWorkers]:
    """Make the honest workers of a resolved configuration, with a model of their own.

    Args:
        config: the configuration. Its `threads`, if set, becomes torch's number of threads.
        task: model, data and loss.
        only: the number of one worker to make; without it, all honest ones.

    Returns:
        The configuration with the number of threads that is really used, and the workers.
    """
    device = _device(config)
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    config = dataclasses.replace(config, threads=torch.get_num_threads())
    model = first_model(task, config.seed).to(device)
    train = Split.of(task.train)
    workers = SimulatedWorkers(
        model,
        task.loss,
        train.to(device),
        flat_parameters.attach(model),
        count=config.workers - config.byzantine if only is None else 1,
        first=only or 0,
        batch=config.batch,
        seed=config.seed,
        clip=config.clip,
        l2=config.l2,
        l2_form=config.l2_form,
        batches=config.batches,
        among=config.workers - config.byzantine,
        shards=shards.parse(config.shards).deal(train.targets, config.workers, config.seed),
    )
    workers.local_steps = getattr(config, "local_steps", 1)
    return config, workers


def first_model(task: tasks.Task, seed: int) -> nn.Module:
    """Return the model at the start of a run; a module that the task holds is copied and never changes."""
    if isinstance(task.model, nn.Module):
        return copy.deepcopy(task.model)
    with random_streams.ambient(seed, "init"):
        return task.model()


def _device(config: CommonConfig) -> torch.device:
    try:
        device = torch.device(config.device)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as problem:
        first = str(problem).splitlines()[0]
        raise ConfigError(f"the device {config.device!r} cannot be used here: {first}") from problem
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    return device
