"""From a configuration to the simulated workers: the initial model, the device, the data."""

from __future__ import annotations

import copy
import dataclasses
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import flat_parameters
from gyroscope._linalg.memory import keep_freed_memory
from gyroscope.runs.config import ResolvedCommon
from gyroscope.simulation import task_checks, tasks
from gyroscope.simulation.data import shards
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.workers import SimulatedWorkers

AnyConfig = TypeVar("AnyConfig", bound=ResolvedCommon)

_DEVICES = "use cpu, or cuda, cuda:0, cuda:1, ... on a machine with GPUs and a torch that supports them"


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

    Raises:
        ConfigError: the device cannot be used here, or the task's model is none.
        DataError: the data cannot be used, or model and loss do not fit them.
    """
    device = usable_device(config.device)
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    config = dataclasses.replace(config, threads=torch.get_num_threads())
    model = first_model(task, config.seed).to(device)
    parameters, stored = flat_parameters.attach(model), Split.of(task.train)
    train = stored.to(parameters)
    task_checks.check(model, task.loss, train, "training")
    workers = SimulatedWorkers(
        model,
        task.loss,
        train,
        parameters,
        count=config.workers - config.byzantine if only is None else 1,
        first=only or 0,
        batch=config.batch,
        seed=config.seed,
        clip=config.clip,
        l2=config.l2,
        l2_form=config.l2_form,
        batches=config.batches,
        among=config.workers - config.byzantine,
        shards=shards.parse(config.shards).deal(stored.targets, config.workers, config.seed),
    )
    workers.local_steps = getattr(config, "local_steps", 1)
    return config, workers


def first_model(task: tasks.Task, seed: int) -> nn.Module:
    """Return the model at the start of a run; a module that the task holds is copied and never changes."""
    if isinstance(task.model, nn.Module):
        return copy.deepcopy(task.model)
    with random_streams.ambient(seed, "init"):
        try:
            model = task.model() if callable(task.model) else task.model
        except TypeError as problem:
            if not isinstance(task.model, type):
                raise  # somebody's own code, whose traceback says where
            name = task.model.__name__
            raise ConfigError(f"{problem}: give the task model=lambda: {name}(...), with its arguments") from problem
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "the task's model must be a torch.nn.Module, or a function without arguments that returns one, got a "
            f"{type(model).__name__}"
        )
    if any(isinstance(parameter, UninitializedParameter) or parameter.is_meta for parameter in model.parameters()):
        raise ConfigError(
            "the task's model has parameters without values (of lazy layers, or on the device meta): let the function "
            "that builds it run it once on a batch, or fill them with model.to_empty(device='cpu')"
        )
    return model


def usable_device(name: str) -> torch.device:
    """Return torch's device of this name.

    Raises:
        ConfigError: there is none, or it cannot compute what a run needs.
    """
    try:
        device = torch.device(name)
    except RuntimeError as problem:
        raise ConfigError(f"there is no device {name!r}: {_DEVICES}") from problem
    if device.type == "mps":
        raise ConfigError(
            f"the device {name!r} cannot be used: it lacks the 64-bit floating-point numbers in which a run is "
            f"measured. What to do: {_DEVICES}"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        seen = f"only {count} CUDA GPUs, counted from 0" if count else "no CUDA GPU"
        raise ConfigError(f"the device {name!r} cannot be used here: torch sees {seen}. What to do: {_DEVICES}")
    try:
        torch.zeros(1, dtype=torch.float64, device=device).item()
    except (RuntimeError, AssertionError, ImportError, TypeError) as problem:
        first = (str(problem).splitlines() or [type(problem).__name__])[0].partition(". ")[0].rstrip(".")
        raise ConfigError(f"the device {name!r} cannot be used here: {first}. What to do: {_DEVICES}") from problem
    if device.type == "cuda":
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    return device
