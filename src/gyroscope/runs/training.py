"""`train` and `resume`, and the synchronous run behind them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyroscope import attacks, rules
from gyroscope._core import registry, theory
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import ConfigError, RunDirectoryError
from gyroscope.momentum import RobustAggregator, WorkerMomentum, worker_weights
from gyroscope.runs import run_dir, setup, trackers, variants
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import NO_ATTACK, CommonConfig, Config, ResolvedConfig
from gyroscope.runs.loop import TrainingLoop
from gyroscope.runs.result import Result
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import server_optimizer, tasks
from gyroscope.simulation.byzantine_gradients import ByzantineGradients
from gyroscope.simulation.data.batches import Split
from gyroscope.simulation.evaluation import TaskTest
from gyroscope.simulation.metrics import MetricsState, Number, follow, measure
from gyroscope.simulation.round import Round, RoundConfig, RoundState, play_round
from gyroscope.simulation.trusted import TrustedSamples
from gyroscope.simulation.workers import SimulatedWorkers, Workers

WorkerFactory = Callable[[ResolvedConfig, SimulatedWorkers], Workers]
"""Makes the honest workers of a run in place of the simulated ones, which it is given."""


def train(
    config: Config,
    *,
    task: tasks.Task | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
    wandb: bool = False,
    mlflow: bool = False,
    clock: Clock = UNTIMED,
    worker_factory: WorkerFactory | None = None,
    run_type: type[Run] | None = None,
) -> Result:
    """Run one experiment.

    The configuration's `threads` becomes torch's number of threads, and stays so.

    Args:
        config: what to run.
        task: your own task; without it, the one that the configuration names.
        out: the run directory to write; without it, results are only returned.
        overwrite: whether to replace a run in `out`.
        callbacks: called at every round and evaluation (`gyroscope.runs.callbacks`, `gyroscope.runs.progress`).
        stop: called after every round; True ends the run with a checkpoint and the status `interrupted`.
        tensorboard, wandb, mlflow: whether to record the run there, too (`gyroscope.runs.trackers`).
        clock: a `gyroscope._core.clock.Stopwatch` to measure where the time goes.
        worker_factory: makes other workers than the simulated ones (`gyroscope.distributed`).
        run_type: the class of the run, where such workers need their own.

    Returns:
        The status, the tables and the model.

    Raises:
        GyroscopeError: the configuration cannot run, data is missing, or the disk refuses a write.

    Example:
        >>> import gyroscope as gy
        >>> config = gy.Config(task="digits", rule="bulyan", attack="little", byzantine=5, steps=20)
        >>> result = gy.train(config)
        >>> list(result.evaluations["step"])
        [0, 5, 10, 15, 20]
    """
    _check_arguments(config, task, callbacks, stop)
    resolved = config.resolve(task)
    if resolved.data_dir is not None:
        resolved = dataclasses.replace(resolved, data_dir=os.path.abspath(resolved.data_dir))
    # The checks that need no data come before data is loaded or anything is written.
    wanted = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    watching = [*callbacks, *trackers.make(out, resolved.experiment(), **wanted)]
    if out is not None:
        RunDirectory.check_free(Path(out), overwrite=overwrite)
    setup.usable_device(resolved.device)
    run = _kind(config, run_type)(resolved, task or load_task(resolved, bool(callbacks)), worker_factory)
    if out is None:
        return run.go(None, watching, stop, clock)
    with RunDirectory.create(
        out, run.config, run.columns(run.config, run.test.metric), overwrite=overwrite
    ) as directory:
        return run.go(directory, watching, stop, clock)


def resume(
    out: str | Path,
    *,
    task: tasks.Task | None = None,
    callbacks: Sequence[Callback] = (),
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
    wandb: bool = False,
    mlflow: bool = False,
    machine: Mapping[str, Any] | None = None,
    clock: Clock = UNTIMED,
    worker_factory: WorkerFactory | None = None,
    run_type: type[Run] | None = None,
) -> Result:
    """Continue an interrupted or killed run, to the same bits as if it had never stopped.

    Of a run that has ended only the result is read.

    Args:
        out: the run directory.
        machine: settings that do not change the experiment, to use instead of the recorded ones (`device`, `threads`,
            `data_dir`). Bits are the same only on the same device with the same number of threads.
        task, callbacks, stop, tensorboard, wandb, mlflow, clock, worker_factory, run_type: as for `train`.

    Returns:
        The result of the whole run.

    Raises:
        RunDirectoryError: there is no run, another process uses it, or it is of a kind that cannot be resumed.

    Example:
        A run that is stopped after ten of its twenty rounds, and continued:

        >>> import tempfile
        >>> import gyroscope as gy
        >>> answers = iter([False] * 9 + [True])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = gy.train(gy.Config(steps=20), out=f"{folder}/run", stop=lambda: next(answers))
        ...     whole = gy.resume(f"{folder}/run")
        >>> first.status, first.step, whole.status, whole.step
        ('interrupted', 10, 'complete', 20)
    """
    config = RunDirectory.read_config(out)
    _check_arguments(config, task, callbacks, stop)
    if task is None and not _is_named(config.task):
        raise ConfigError(
            f"{out} is a run of the task {config.task!r}, which was given from Python, and its data and model are not "
            f"in the directory: continue it in Python with gy.resume({str(out)!r}, task=...), the task that gy.train "
            f"had. gyroscope report {out} shows what is recorded"
        )
    resolved = dataclasses.replace(config.resolve(task), **(machine or {}))
    kind = _kind(config, run_type)
    loaded = task or load_task(resolved, bool(callbacks))
    loaded = dataclasses.replace(loaded, test=Split.of(loaded.test))
    metric = TaskTest.of(loaded).metric
    with RunDirectory.reopen(out, kind.columns(resolved, metric)) as directory:
        directory.check_metric(metric)
        run = kind(resolved, loaded, worker_factory)
        status = directory.status()
        if status["status"] in (run_dir.COMPLETE, run_dir.DIVERGED):
            return run.read_back(directory, status)
        wanted = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
        watching = [*callbacks, *trackers.make(out, resolved.experiment(), **wanted)]
        run.restore(directory)
        directory.add_session()
        directory.set_status(run_dir.RUNNING, step=run.step)
        return run.go(directory, watching, stop, clock)


def _kind(config: Config, wanted: type[Run] | None) -> type[Run]:
    """Return the class that runs a configuration, or the one that is wanted for ordinary ones."""
    kind = variants.run_class(config)
    if wanted is not None and kind is not Run:
        raise ConfigError(
            f"this configuration is run by {kind.__name__}, which does not go together with {wanted.__name__}: leave "
            "out the options of one of them"
        )
    return wanted or kind


def _check_arguments(config: Any, task: Any, callbacks: Any, stop: Any) -> None:
    """Raise a ConfigError that says what to pass, where Python would only miss an attribute."""
    if not isinstance(callbacks, (list, tuple)) or not all(hasattr(each, "begin") for each in callbacks):
        raise ConfigError(
            f"callbacks must be a list of objects derived from gyroscope.runs.callbacks.Callback, got {callbacks!r}"
        )
    if not callable(stop):
        raise ConfigError(f"stop must be a function that returns whether to stop after this round, got {stop!r}")
    if not isinstance(config, CommonConfig):
        remedy = f"gy.Config(task={config!r})" if isinstance(config, str) else "gy.Config(rule=..., attack=...)"
        raise ConfigError(f"the configuration must be a gy.Config, got a {type(config).__name__}: write {remedy}")
    if task is not None and not isinstance(task, tasks.Task):
        remedy = f"name a built-in one with gy.Config(task={task!r}), or pass" if isinstance(task, str) else "pass"
        raise ConfigError(f"task must be a gy.Task, got a {type(task).__name__}: {remedy} gy.Task(model, train, test)")


def _is_named(task: str) -> bool:
    """Return whether a task is one that a configuration can name: built in, installed, or an import path."""
    try:
        name, _ = registry.split(task)
    except ConfigError:  # the name of a gy.Task may be any text
        return False
    return ":" in name or name in tasks.TASKS or name in registry.installed("task")


def load_task(config: CommonConfig, progress: bool = False) -> tasks.Task:
    """Load the configuration's task with its data; `progress` shows a bar while it is downloaded."""
    return tasks.parse(config.task).load(config.data_dir, progress)


class Run(TrainingLoop):
    """A synchronous run with one server. `state()` returns all that changes from step to step."""

    config: ResolvedConfig
    accumulating: tuple[str, ...] = ("workers",)
    """Placements with which honest workers send accumulated gradients."""
    columns_here: int | None = None
    """How many columns of the rows this process has, if not all."""

    def __init__(self, config: ResolvedConfig, task: tasks.Task, worker_factory: WorkerFactory | None = None) -> None:
        if worker_factory is not None and config.local_steps > 1:
            raise ConfigError(
                f"local_steps = {config.local_steps} is for simulated workers only: set it to 1, or see gy.diloco for "
                "local steps on real machines"
            )
        self.config, honest = setup.simulated_workers(config, task)
        self.model, self.parameters = honest.model, honest.parameters
        self.test = TaskTest.of(task, self.model)
        self.participation = honest.participation = config.participation()
        workers: Workers = worker_factory(self.config, honest) if worker_factory else honest
        self.schedule = Schedule.parse(config.lr)
        honest.local_rate = self.schedule.at
        rule = rules.parse(config.rule)
        sizes = None if honest.shards is None else [len(shard) for shard in honest.shards]
        self.copies = worker_weights.of(config.worker_weights, sizes, config.workers)
        if self.copies is not None:
            worker_weights.check_feasible(self.copies, rule, config.declared_byzantine)
        n, f = config.workers, config.declared_byzantine
        if self.participation is not None:
            n, f = self.participation.rows_given, self.participation.f
        self.ratio_bound = None if self.copies else rule.ratio_bound(n, f)
        at_workers = config.momentum in self.accumulating
        trusted = byzantine_gradients = None
        if "trusted" in rule.uses:
            momentum = self.make_worker_momentum() if at_workers or config.momentum == "server-kept" else None
            trusted = TrustedSamples(config.trusted, honest, momentum, config.seed)
        if config.byzantine:
            momentum_factory = self.make_worker_momentum if at_workers else None
            byzantine_gradients = ByzantineGradients(honest, config.byzantine, momentum_factory)
        self.round_config = RoundConfig(
            workers=workers,
            attack=None if config.attack == NO_ATTACK else attacks.parse(config.attack),
            byzantine=config.byzantine,
            momentum=config.momentum,
            mu=config.mu,
            seed=config.seed,
            trusted=trusted,
            byzantine_gradients=byzantine_gradients,
        )
        own = self.make_worker_momentum() if at_workers and not workers.accumulates else None
        optimizer = server_optimizer.parse(config.optimizer).begin(self.parameters)
        self.round_state = RoundState(self.round_config, self.make_aggregator(), own, optimizer, self.columns_here)
        self.metrics_state = MetricsState.begin(self.parameters)
        self.tables = {table: [] for table in self.columns(self.config, self.test.metric)}

    def make_worker_momentum(self) -> WorkerMomentum:
        """Return a momentum for workers that accumulate their gradients; a variant may return another kind."""
        return WorkerMomentum(self.config.mu, nesterov=self.config.nesterov)

    def make_aggregator(self) -> RobustAggregator:
        """Return the server's aggregator; a variant may return another kind."""
        config = self.config
        return RobustAggregator(
            config.rule,
            config.declared_byzantine,
            momentum=config.momentum,
            mu=config.mu,
            nesterov=config.nesterov,
            seed=config.seed,
            participation=self.participation,
            copies=self.copies,
        )

    def play_round(self, directory: RunDirectory | None = None, clock: Clock = UNTIMED) -> dict[str, Number]:
        played = self.compute_round(clock)
        if self.step + 1 < self.config.steps:
            self.round_config.workers.ask(self.step + 1)
        self.round_config.workers.judged(self.step, played.update)
        if self.step % self.config.measure_every == 0:
            row, self.metrics_state = measure(played, self.parameters, self.metrics_state, self.ratio_bound)
            clock.lap("measures")
            self.record_round(directory, row, played.update.weight)
        else:
            measured_next = (self.step + 1) % self.config.measure_every == 0
            self.metrics_state = follow(played, self.metrics_state, measured_next)
            row = {"step": self.step, "lr": played.lr}
            clock.lap("measures")
        self.step += 1
        return row

    def compute_round(self, clock: Clock) -> Round:
        """Compute the round of `self.step` and update the parameters; a variant may override this."""
        return play_round(self.round_config, self.round_state, self.step, self.schedule.at(self.step), clock)

    def record_round(self, directory: RunDirectory | None, row: dict[str, Number], weight: Tensor | None) -> None:
        """Add the round's measures and the workers' shares to the tables; a variant may add rows of its own."""
        self.record(directory, run_dir.METRICS, row)
        if weight is not None:
            shares = {f"worker_{worker}": share for worker, share in enumerate(weight.tolist())}
            self.record(directory, run_dir.WEIGHTS, {"step": self.step, **shares})

    def state(self) -> dict[str, Any]:
        """Return all that later steps read, as tensors and numbers for `torch.load(weights_only=True)`."""
        metrics = self.metrics_state
        return {
            "step": self.step,
            "experiment": self.config.experiment(),
            "parameters": self.parameters,
            "buffers": dict(self.model.named_buffers()),
            "attack": dict(self.round_state.adversary),
            "workers": self.round_config.workers.state(),
            "metrics": {**vars(metrics), "trajectory": vars(metrics.trajectory)},
            **{name: part.state_dict() for name, part in self._parts().items()},
        }

    def _parts(self) -> dict[str, Any]:
        """Return the objects of a round that have a state dict, by their keys in a checkpoint."""
        config, state = self.round_config, self.round_state
        parts = {
            "worker_momentum": state.worker_momentum,
            "aggregator": state.aggregator,
            "optimizer": state.optimizer if state.optimizer.state_dict() else None,
            "byzantine_gradients": config.byzantine_gradients,
            "trusted": config.trusted.momentum if config.trusted else None,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def restore(self, directory: RunDirectory) -> None:
        """Return to the last checkpoint, or to the start where there is none."""
        state = directory.load_checkpoint(self.parameters.device)
        if state is not None and "aggregator" not in state:
            raise RunDirectoryError(
                f"{directory.path} was interrupted under gyroscope 0.1, whose checkpoints this version does not read: "
                "continue it with 0.1, or begin anew with --overwrite"
            )
        if state is not None:
            self._check_same_experiment(directory, state.get("experiment", {}))
            self.load_state(state)
        kept = directory.cut_back(-1 if state is None else self.step)
        self.tables[run_dir.EVALUATIONS] = kept[run_dir.EVALUATIONS]

    def _check_same_experiment(self, directory: RunDirectory, before: Mapping[str, Any]) -> None:
        """Raise where config.toml does not say what the run began with: it would be neither experiment then."""
        now = self.config.experiment()
        changed = [f"{name} = {before.get(name)!r}, not {now[name]!r}" for name in now if before.get(name) != now[name]]
        if before and changed:
            raise RunDirectoryError(
                f"{directory.path / run_dir.CONFIG} was changed since this run began: its checkpoint was made with "
                f"{', '.join(changed)}. Put that back to continue, or train with the new settings in another directory"
            )

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.step, metrics = state["step"], state["metrics"]
        with torch.no_grad():
            self.parameters.copy_(state["parameters"])
            for name, buffer in self.model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self.round_config.workers.restore(state["workers"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.round_state.adversary = state["attack"]
        trajectory = theory.Trajectory(**metrics["trajectory"])
        self.metrics_state = MetricsState(**{**metrics, "trajectory": trajectory})

    def read_back(self, directory: RunDirectory, status: Mapping[str, Any]) -> Result:
        """Return the result of a run that has ended."""
        if not (directory.path / run_dir.MODEL).is_file():
            raise RunDirectoryError(f"{directory.path} has ended without {run_dir.MODEL}: begin anew with --overwrite")
        model = torch.load(directory.path / run_dir.MODEL, map_location=self.parameters.device, weights_only=True)
        self.model.load_state_dict(model)
        self.step = status["step"]
        return self.result(status["status"], directory)

    def title(self) -> str:
        config = self.config
        attack = "no attack" if config.attack == NO_ATTACK else f"{config.attack} x{config.byzantine}"
        parts = [f"{config.task} {config.rule}", attack, f"momentum {config.momentum}"]
        return ", ".join([*parts, *(f"{name} {value}" for name, value in config.unusual().items())])
