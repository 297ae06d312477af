"""Run the same jobs on a SLURM cluster, through submitit. What is complete is never submitted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope._core.optional import extra
from gyroscope._core.registry import parse_value
from gyroscope.experiments.pool import FAILED, Job, JobOutcome, run_job


def submit(
    jobs: Sequence[Job], out: Path, cluster: str = "slurm", parameters: Mapping[str, Any] | None = None
) -> list[tuple[Job, Any]]:
    """Submit each job as one task of a job array; return (job, submitit job) pairs. cluster: `slurm` or `local`."""
    with extra("slurm", "--executor slurm"):
        import submitit
    if not jobs:
        return []
    try:
        executor = submitit.AutoExecutor(folder=str(out / "slurm" / "%j"), cluster=cluster)
        executor.update_parameters(name="gyroscope", **(parameters or {}))
    except (RuntimeError, NameError, TypeError, ValueError) as problem:
        raise ConfigError(f"submitit cannot use the cluster {cluster!r}: {problem}") from problem
    return list(zip(jobs, executor.map_array(_run_task, list(jobs)), strict=True))


def _run_task(job: Job) -> tuple[str, str]:
    result = run_job(job)
    return result.status, result.best_text()


def wait(submitted: Sequence[tuple[Job, Any]]) -> list[JobOutcome]:
    """Wait for submitted jobs; a failed one is reported with its log."""
    outcomes = []
    for job, handle in submitted:
        try:
            outcomes.append(JobOutcome(job, *handle.result()))
        except Exception as problem:
            outcomes.append(JobOutcome(job, FAILED, log=str(problem)))
    return outcomes


def parse_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """Return `{"timeout_min": 60}` for `["timeout_min=60"]`."""
    parameters = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"cannot read --slurm {pair!r}: write KEY=VALUE, e.g. timeout_min=60")
        parameters[key] = parse_value(value)
    return parameters
