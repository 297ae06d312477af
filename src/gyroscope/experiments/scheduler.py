"""Plan and run a grid: complete runs are not repeated, interrupted ones are resumed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

from gyroscope._core.errors import ConfigError
from gyroscope.experiments import pool, results
from gyroscope.experiments.grid import Setup, fingerprint
from gyroscope.runs.run_dir import disk_errors

FAILURES = "failures"


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """The names of a grid's complete runs, and the jobs that are left."""

    complete: tuple[str, ...]
    jobs: tuple[pool.Job, ...]

    @property
    def total(self) -> int:
        return len(self.complete) + len(self.jobs)


def plan(setups: Sequence[Setup], out: Path, data_dir: str | None = None) -> RunPlan:
    """Compare the grid with the runs in the folder, which are known by their configuration, not by their name."""
    present = {fingerprint(config): (path, status["status"]) for path, config, status in results.scan(out)}
    complete: list[str] = []
    jobs: list[pool.Job] = []
    taken = set(out.iterdir()) if out.is_dir() else set()  # no file of another run is overwritten
    for setup in setups:
        key = fingerprint(setup.config)
        # One thread per process, unless the grid says otherwise: processes use the cores.
        threads = setup.config.threads or 1
        config = dataclasses.replace(setup.config, data_dir=data_dir or setup.config.data_dir, threads=threads)
        if key in present:
            path, status = present[key]
            if status in results.ENDED:
                complete.append(setup.name)
            else:
                jobs.append(pool.Job(setup.name, config, path, resume=True))
            continue
        path = out / setup.name
        if path in taken:  # by another configuration
            path = out / f"{setup.name}-{key[:8]}"
        taken.add(path)
        jobs.append(pool.Job(setup.name, config, path))
    return RunPlan(tuple(complete), tuple(sorted(jobs, key=lambda job: not job.resume)))  # interrupted runs first


def execute(
    planned: RunPlan, out: Path, devices: Sequence[str | None], on_event: pool.OnEvent = lambda event: None
) -> list[pool.JobOutcome]:
    """Run the jobs of the plan. The log of a run that failed twice is written to the folder `failures` at once."""
    with disk_errors(out, "runs"):
        out.mkdir(parents=True, exist_ok=True)

    def keep_log(event: pool.JobProgress | pool.JobOutcome) -> None:
        if isinstance(event, pool.JobOutcome):
            log = out / FAILURES / f"{event.job.name}.log"
            with contextlib.suppress(OSError):  # a full disk, most likely what the run failed for: the others go on
                if event.status == pool.FAILED:
                    log.parent.mkdir(exist_ok=True)
                    log.write_text(event.log, encoding="utf-8")
                else:
                    log.unlink(missing_ok=True)
        on_event(event)

    return pool.run(planned.jobs, devices, keep_log)


def default_devices(jobs: int | None, devices: str | None) -> list[str | None]:
    """Return the device of each process: those named in turn, or None for the one that the configuration names.

    Without a number of jobs there is a process per device named, or per core.
    """
    named: list[str | None] = [device.strip() for device in devices.split(",") if device.strip()] if devices else [None]
    if not named:
        raise ConfigError(f"--devices {devices!r} names no device: write cpu, or cuda:0,cuda:1")
    if jobs is None:
        jobs = len(named) if devices else cores()
    return [named[number % len(named)] for number in range(jobs)]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
