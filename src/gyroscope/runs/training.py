"""The loop: rounds, evaluation, checkpoints, resuming, progress."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyroscope import attacks, momentum, rules
from gyroscope.runs import run_dir, setup, tensorboard as tensorboard_log
from gyroscope._linalg import matrix
from gyroscope.simulation import tasks
from gyroscope._core import theory
from gyroscope._core.clock import Clock, UNTIMED
from gyroscope.runs.config import Config
from gyroscope.research.adaptive.curvature import Course
from gyroscope.simulation.data.splits import Split
from gyroscope._core.errors import ConfigError, RoundAbandonedError, RunDirectoryError, StorageError
from gyroscope.simulation.evaluation import evaluate, Evaluation
from gyroscope.simulation.metrics import follow, measure, MetricsState, Number
from gyroscope.simulation.byzantine_gradients import ByzantineGradients
from gyroscope.runs.progress import Progress, Silent
from gyroscope.runs.run_dir import RunDirectory
from gyroscope.research.replicated import round as replicated
from gyroscope.research.replicated.setup import servers_of
from gyroscope.runs.result import Result
from gyroscope.simulation.round import play, Players, Table
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.trusted import TrustedSamples
from gyroscope.simulation.workers import SimulatedWorkers, Workers

CHECKPOINT_SECONDS = 30.0

Hire = Callable[[Config, SimulatedWorkers], Workers]
"""Finds workers who take the place of the simulated honest ones."""


def train(
    config: Config,
    *,
    task: tasks.Task | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
    clock: Clock = UNTIMED,
    hire: Hire | None = None,
) -> Result:
    """Run one experiment.

    task: your own task; without it, the one that the configuration names.
    out: the run directory to write; without it, results are only returned.
    progress: who is told of each step (see `gyroscope.runs.progress`).
    stop: asked after every round; once it says True the run ends with a checkpoint and the status `interrupted`.
    clock: a `gyroscope._core.clock.Stopwatch` to tell where the time went.
    hire: finds other workers than the simulated ones (see `gyroscope.distributed`).

    The configuration's `threads` becomes torch's number of threads, and stays so.
    """
    config = config.resolve(task)
    if config.data_dir is not None:
        config = dataclasses.replace(config, data_dir=os.path.abspath(config.data_dir))  # to hold wherever it is re-run
    # What can go wrong at once does so before data is loaded or anything is written.
    if tensorboard:
        tensorboard_log.check(out)
    if out is not None:
        RunDirectory.check_free(Path(out), overwrite=overwrite)
    run = Run(config, task or load_task(config, _wants_bar(progress)), hire)
    config = run.config
    if out is None:
        return run.go(None, progress or Silent(), stop, tensorboard=False, clock=clock)
    with RunDirectory.create(out, config, overwrite=overwrite) as directory:
        return run.go(directory, progress or Silent(), stop, tensorboard, clock)


def resume(
    out: str | Path,
    *,
    task: tasks.Task | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    tensorboard: bool = False,
    machine: Mapping[str, Any] | None = None,
    clock: Clock = UNTIMED,
    hire: Hire | None = None,
) -> Result:
    """Continue an interrupted or killed run, to the same bits as if it had never stopped.

    machine: settings that do not change the experiment, to use instead of the recorded ones (`device`, `threads`,
    `data_dir`). Bits are the same only on the same device with the same number of threads.
    A run that has ended already is only read back.
    """
    if (Path(out) / run_dir.FLOWER).is_file():
        raise RunDirectoryError(
            f"{out} was written by a Flower app and cannot be resumed here: start it anew, flwr run"
        )
    with RunDirectory.reopen(out) as directory:
        config = dataclasses.replace(directory.config.resolve(task), **(machine or {}))
        run = Run(config, task or load_task(config, _wants_bar(progress)), hire)
        status = directory.status()
        if status["status"] in (run_dir.COMPLETE, run_dir.DIVERGED):
            return run.read_back(directory, status)
        if tensorboard:
            tensorboard_log.check(out)
        run.restore(directory)
        directory.add_session()
        directory.set_status(run_dir.RUNNING, step=run.step)
        return run.go(directory, progress or Silent(), stop, tensorboard, clock)


def load_task(config: Config, progress: bool = False) -> tasks.Task:
    """The configuration's task with its data; `progress` shows a bar while it is downloaded."""
    return tasks.parse(config.task).load(config.data_dir, progress)


def _wants_bar(progress: Progress | None) -> bool:
    return progress is not None and not isinstance(progress, Silent)


class Run:
    """One run in memory: everything that changes from step to step is `state()`, and nothing else is."""

    def __init__(self, config: Config, task: tasks.Task, hire: Hire | None = None) -> None:
        config, honest = setup.simulated_workers(config, task)
        assert config.workers and config.lr and config.steps and config.evaluate_every
        assert config.mu is not None and config.declared_byzantine is not None
        self.config = config
        self.steps, self.evaluate_every = config.steps, config.evaluate_every
        self.model, self.parameters = honest.model, honest.parameters
        self.test = Split.of(task.test).to(self.parameters.device)
        workers = hire(config, honest) if hire else honest
        placement = momentum.make(config.momentum, config.mu, config.nesterov)
        if hire and placement.one_process:
            raise ConfigError(
                f"the placement {placement.name!r} exists in the simulation only (gyroscope train): with workers of "
                "their own use workers, server, server-kept, adaptive or none"
            )
        rule = rules.parse(config.rule)
        trusted = None
        if "trusted" in rule.uses:
            trusted = TrustedSamples(config.trusted, honest, placement, config.seed)
        own = ByzantineGradients(honest, config.byzantine, placement) if config.byzantine else None
        if workers.accumulates:
            placement = momentum.Elsewhere(config.mu, config.nesterov)
            if "mu" in config.adapt:
                raise ConfigError(
                    "the workers accumulate with a factor of their own, which cannot adapt: use momentum server-kept, "
                    "or adapt the learning rate only"
                )
        self.ratio_bound = rule.ratio_bound(config.workers, config.declared_byzantine)
        self.players = Players(
            workers=workers,
            placement=placement,
            attack=None if config.attack == "none" else attacks.parse(config.attack),
            byzantine=config.byzantine,
            rule=rule,
            declared_f=config.declared_byzantine,
            schedule=Schedule.parse(config.lr),
            course=Course(config.adapt, config.mu),
            seed=config.seed,
            trusted=trusted,
            own=own,
        )
        self.step = 0
        self.reason = ""
        self.table = Table(self.players)
        self.servers = servers_of(config, self.players, self.table, honest, hired=hire is not None)
        self.memory = MetricsState.begin(self.parameters)
        self.tables: dict[str, list[dict[str, Number]]] = {
            run_dir.METRICS: [],
            run_dir.EVALUATIONS: [],
            run_dir.WEIGHTS: [],
            **({run_dir.DRIFT: []} if self.servers else {}),
        }

    def go(
        self,
        directory: RunDirectory | None,
        progress: Progress,
        stop: Callable[[], bool],
        tensorboard: bool,
        clock: Clock = UNTIMED,
    ) -> Result:
        """Play the rounds that are left."""
        board = tensorboard_log.Board(directory, self.step) if tensorboard and directory else None
        progress.begin(self._title(), self.step, self.steps)
        saved = time.monotonic()
        status = run_dir.COMPLETE
        try:
            clock.start()
            if not self.tables[run_dir.EVALUATIONS]:
                self._evaluate(directory, progress, board, clock)
            while self.step < self.steps:
                row = self.play_round(directory, clock)
                progress.step(row)
                if board:
                    board.write(row)
                if not bool(matrix.all_finite(self.parameters)):
                    status = run_dir.DIVERGED
                    break
                clock.lap("record")
                if self.step % self.evaluate_every == 0 or self.step == self.steps:
                    self._evaluate(directory, progress, board, clock)
                if stop() and self.step < self.steps:
                    status = run_dir.INTERRUPTED
                    break
                if directory and self.step < self.steps and self._checkpoint_due(saved):
                    directory.save_checkpoint(self.state())
                    saved = time.monotonic()
                clock.lap("record")
        except RoundAbandonedError as problem:
            status, self.reason = run_dir.INTERRUPTED, str(problem)
        except Exception as problem:
            if directory and not isinstance(problem, StorageError):
                reason = f"{type(problem).__name__}: {problem}"
                directory.set_status(run_dir.FAILED, step=self.step, reason=reason)
            raise
        finally:
            progress.end()
            if board:
                board.close()
        if directory:
            self._conclude(directory, status)
        return self._result(status, directory)

    def play_round(self, directory: RunDirectory | None = None, clock: Clock = UNTIMED) -> dict[str, Number]:
        """Play, measure and record one round; returns its measures."""
        if self.servers:
            played = replicated.play(self.players, self.table, self.servers, self.step, clock)
        else:
            played = play(self.players, self.table, self.step, clock)
        if self.step + 1 < self.steps:
            self.players.workers.ask(self.step + 1)
        if self.step % self.config.measure_every == 0:
            row, self.memory = measure(played, self.parameters, self.memory, self.ratio_bound)
            clock.lap("measures")
            self._record(directory, row, played.aggregate.weight)
        else:
            measured_next = (self.step + 1) % self.config.measure_every == 0
            self.memory = follow(played, self.memory, measured_next)
            row = {"step": self.step, "lr": played.lr}
            clock.lap("measures")
        self.step += 1
        return row

    def _record(self, directory: RunDirectory | None, row: dict[str, Number], weight: Tensor | None) -> None:
        self.tables[run_dir.METRICS].append(row)
        if self.servers:
            self.tables[run_dir.DRIFT].append(self.servers.drift)
        if weight is not None:
            shares = {f"worker_{worker}": share for worker, share in enumerate(weight.tolist())}
            self.tables[run_dir.WEIGHTS].append({"step": self.step, **shares})
        if directory:
            directory.append(run_dir.METRICS, row)
            if self.servers:
                directory.append(run_dir.DRIFT, self.servers.drift)
            if weight is not None:
                directory.append(run_dir.WEIGHTS, self.tables[run_dir.WEIGHTS][-1])

    def _evaluate(
        self, directory: RunDirectory | None, progress: Progress, board: tensorboard_log.Board | None, clock: Clock
    ) -> Evaluation:
        evaluation = evaluate(self.model, self.test, self.config.seed)
        clock.lap("evaluation")
        row: dict[str, Number] = {
            "step": self.step,
            "accuracy": evaluation.accuracy,
            "correct": evaluation.correct,
            "samples": evaluation.samples,
        }
        self.tables[run_dir.EVALUATIONS].append(row)
        if directory:
            directory.append(run_dir.EVALUATIONS, row)
            directory.flush()
        if board:
            board.write(row)
        progress.evaluated(self.step, evaluation.accuracy)
        clock.lap("record")
        return evaluation

    def _checkpoint_due(self, saved: float) -> bool:
        if self.config.checkpoint_every is not None:
            return self.step % self.config.checkpoint_every == 0
        return time.monotonic() - saved >= CHECKPOINT_SECONDS

    def _conclude(self, directory: RunDirectory, status: str) -> None:
        if status == run_dir.INTERRUPTED:
            directory.save_checkpoint(self.state())
            directory.set_status(status, step=self.step)
            return
        result = self._result(status, directory)
        directory.finish(
            status,
            self.model.state_dict(),
            step=self.step,
            max_accuracy=result.max_accuracy,
            final_accuracy=result.final_accuracy,
        )

    # -- state: everything that a step reads from the steps before it -------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Tensors and numbers only, so that `torch.load(weights_only=True)` reads it."""
        return {
            "step": self.step,
            "parameters": self.parameters,
            "buffers": dict(self.model.named_buffers()),
            "momentum": self.table.state,
            "rule": dict(self.table.memory),
            "attack": self.table.notes,
            "course": dict(self.table.course),
            "trusted": self.players.trusted.state if self.players.trusted else {},
            "workers": self.players.workers.state(),
            "servers": self.servers.state() if self.servers else {},
            "start": self.memory.start,
            "previous": self.memory.previous,
            "past": self.memory.trajectory.past,
            "omega2": self.memory.trajectory.omega2,
            "lambda2": self.memory.trajectory.lambda2,
        }

    def restore(self, directory: RunDirectory) -> None:
        """Stand where the last checkpoint stands, or at the start where there is none."""
        state = directory.load_checkpoint()
        if state is None:
            directory.cut_back(-1)
            return
        device = self.parameters.device
        self.step = state["step"]
        with torch.no_grad():
            self.parameters.copy_(state["parameters"])
            for name, buffer in self.model.named_buffers():
                buffer.copy_(state["buffers"][name])
        self.players.workers.restore(state.get("workers", {}))
        self.table.state = _to(state["momentum"], device)
        self.table.memory = _to(state.get("rule", {}), device)
        self.table.notes = _to(state.get("attack", {}), device)
        self.table.course = _to(state.get("course", {}), device)
        if self.players.trusted:
            self.players.trusted.state = _to(state["trusted"], device)
        if self.servers:
            self.servers.restore(state["servers"])
        self.memory = MetricsState(
            state["start"].to(device),
            theory.Trajectory(state["past"].to(device), state["omega2"], state["lambda2"]),
            _to(state["previous"], device),
        )
        directory.cut_back(self.step)
        self.tables = {table: directory.rows(table) for table in self.tables}

    def read_back(self, directory: RunDirectory, status: Mapping[str, Any]) -> Result:
        """The result of a run that has ended."""
        if not (directory.path / run_dir.MODEL).is_file():
            raise RunDirectoryError(f"{directory.path} has ended but lacks {run_dir.MODEL}: begin anew with --overwrite")
        model = torch.load(directory.path / run_dir.MODEL, map_location=self.parameters.device, weights_only=True)
        self.model.load_state_dict(model)
        self.step = status["step"]
        self.tables = {table: directory.rows(table) for table in self.tables}
        return self._result(status["status"], directory)

    def _result(self, status: str, directory: RunDirectory | None) -> Result:
        path = directory.path if directory else None
        return Result(self.config, status, self.step, self.model, path, self.tables, self.reason)

    def _title(self) -> str:
        attack = "no attack" if self.config.attack == "none" else f"{self.config.attack} x{self.config.byzantine}"
        parts = [f"{self.config.task} {self.config.rule}", attack, f"momentum {self.config.momentum}"]
        parts += [f"{name} {value}" for name, value in self.config.unusual().items()]
        if self.servers:
            parts.append(f"{self.config.servers} servers")
        if self.config.byzantine_servers:
            parts.append(f"{self.config.server_attack} x{self.config.byzantine_servers}")
        return ", ".join(parts)


def _to(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name: tensor.to(device) for name, tensor in tensors.items()}
