"""From a configuration to the simulated workers: the model as it is before the first round, the device, the data."""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import nn

from gyroscope._core import random_streams
from gyroscope._linalg.flat_parameters import attach
from gyroscope.simulation import tasks
from gyroscope.runs.config import Config
from gyroscope.simulation.data import shards
from gyroscope.simulation.data.splits import Split
from gyroscope._core.errors import ConfigError
from gyroscope.simulation.workers import SimulatedWorkers


def simulated_workers(config: Config, task: tasks.Task, only: int | None = None) -> tuple[Config, SimulatedWorkers]:
    """The honest workers of a resolved configuration, or `only` one of them, with a model of their own.

    The configuration returned says how many threads are really used.
    """
    device = _device(config)
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    config = dataclasses.replace(config, threads=torch.get_num_threads())
    assert config.workers and config.batch
    assert config.clip is not None and config.l2 is not None
    model = first_model(task, config.seed).to(device)
    train = Split.of(task.train)
    workers = SimulatedWorkers(
        model,
        task.loss,
        train.to(device),
        attach(model),
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
    return config, workers


def first_model(task: tasks.Task, seed: int) -> nn.Module:
    """The model at the start of a run. A module that was passed in is copied: training never changes the original."""
    if isinstance(task.model, nn.Module):
        return copy.deepcopy(task.model)
    with random_streams.ambient(seed, "init"):
        return task.model()


def _device(config: Config) -> torch.device:
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
