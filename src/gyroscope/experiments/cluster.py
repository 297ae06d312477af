"""The same runs on a SLURM cluster, through submitit. Runs are idempotent: what is complete is never submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError, MissingExtraError
from gyroscope._core.registry import parse_value
from gyroscope.experiments.pool import FAILED, Job, Outcome


def submit(
    jobs: Sequence[Job], out: Path, cluster: str = "slurm", parameters: Mapping[str, Any] | None = None
) -> list[tuple[Job, Any]]:
    """Send each job as one task of a job array; returns (job, submitit job) pairs. cluster: `slurm` or `local`."""
    try:
        import submitit
    except ImportError as problem:
        raise MissingExtraError("--executor slurm needs submitit: pip install 'gyroscope[slurm]'") from problem
    if not jobs:
        return []
    try:
        executor = submitit.AutoExecutor(folder=str(out / "slurm" / "%j"), cluster=cluster)
        executor.update_parameters(name="gyroscope", **(parameters or {}))
    except (RuntimeError, NameError, TypeError, ValueError) as problem:
        raise ConfigError(f"submitit cannot use the cluster {cluster!r}: {problem}") from problem
    return list(zip(jobs, executor.map_array(run_job, list(jobs)), strict=True))


def run_job(job: Job) -> tuple[str, float]:
    """What one task of the array does: run or resume one experiment. (status, maximum accuracy)"""
    from gyroscope.runs import training

    result = training.resume(job.path) if job.resume else training.train(job.config, out=job.path, overwrite=True)
    return result.status, result.max_accuracy


def wait(submitted: Sequence[tuple[Job, Any]]) -> list[Outcome]:
    """Wait for submitted jobs; a failed one is reported with its log."""
    outcomes = []
    for job, handle in submitted:
        try:
            status, accuracy = handle.result()
            outcomes.append(Outcome(job, status, accuracy))
        except Exception as problem:
            outcomes.append(Outcome(job, FAILED, log=str(problem)))
    return outcomes


def parse_parameters(pairs: Sequence[str]) -> dict[str, Any]:
    """`["timeout_min=60"]` -> `{"timeout_min": 60}`."""
    parameters = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"cannot read --slurm {pair!r}: write KEY=VALUE, e.g. timeout_min=60")
        parameters[key] = parse_value(value)
    return parameters
