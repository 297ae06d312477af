"""What is left to run of a grid, and running it: nothing complete is redone, what is half done is resumed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gyroscope._core.errors import GyroscopeError
from gyroscope.experiments import pool
from gyroscope.experiments.grid import Setup, fingerprint
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

FAILURES = "failures"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a grid, told apart by what has to be done for them."""

    complete: tuple[str, ...]
    jobs: tuple[pool.Job, ...]

    @property
    def total(self) -> int:
        return len(self.complete) + len(self.jobs)


def plan(setups: Sequence[Setup], out: Path, data_dir: str | None = None) -> Plan:
    """Compare the grid with what is in the folder. A run is known by its configuration, not by its folder's name."""
    present = _present(out)
    complete: list[str] = []
    jobs: list[pool.Job] = []
    taken = set(out.iterdir()) if out.is_dir() else set()  # whatever it is: it is not ours to overwrite
    for setup in setups:
        key = fingerprint(setup.config)
        # One thread per process, unless the grid says otherwise: processes use the cores.
        threads = setup.config.threads or 1
        config = dataclasses.replace(setup.config, data_dir=data_dir or setup.config.data_dir, threads=threads)
        if key in present:
            path, status = present[key]
            if status in (run_dir.COMPLETE, run_dir.DIVERGED):
                complete.append(setup.name)
            else:
                jobs.append(pool.Job(setup.name, config, path, resume=True))
            continue
        path = out / setup.name
        if path in taken:  # another configuration lives under that name
            path = out / f"{setup.name}-{key[:8]}"
        taken.add(path)
        jobs.append(pool.Job(setup.name, config, path))
    # What is half done comes first.
    return Plan(tuple(complete), tuple(sorted(jobs, key=lambda job: not job.resume)))


def _present(out: Path) -> dict[str, tuple[Path, str]]:
    """The runs in the folder by fingerprint: where they are and how far they got."""
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(out.glob(f"*/{run_dir.CONFIG}")):
        try:
            config = Config.load(path)
            status = json.loads((path.parent / run_dir.STATUS).read_text(encoding="utf-8"))["status"]
            found[fingerprint(config)] = (path.parent, status)
        except (OSError, ValueError, KeyError, GyroscopeError):
            continue  # not a run of ours, or damaged: the run will be made anew under another name
    return found


def execute(
    planned: Plan,
    out: Path,
    devices: Sequence[str | None],
    told: Callable[[pool.Now | pool.Outcome], None] = lambda event: None,
) -> list[pool.Outcome]:
    """Run what the plan has left. Logs of runs that failed twice go to the folder `failures` as soon as they fail."""
    out.mkdir(parents=True, exist_ok=True)

    def keep_log(event: pool.Now | pool.Outcome) -> None:
        if isinstance(event, pool.Outcome):
            log = out / FAILURES / f"{event.job.name}.log"
            if event.status == pool.FAILED:
                log.parent.mkdir(exist_ok=True)
                log.write_text(event.log, encoding="utf-8")
            else:
                log.unlink(missing_ok=True)
        told(event)

    return pool.run(planned.jobs, devices, keep_log)


def default_devices(jobs: int | None, devices: str | None) -> list[str | None]:
    """One process per device named, or per core: on a CPU one thread each and as many processes as cores.

    None stands for the device that the run's own configuration names.
    """
    named: list[str | None] = [device.strip() for device in devices.split(",") if device.strip()] if devices else [None]
    if jobs is None:
        jobs = len(named) if devices else cores()
    return [named[number % len(named)] for number in range(jobs)]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
