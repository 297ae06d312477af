"""Measure the peak memory of a run, in a process of its own: `python -m benchmarks.peak_memory mnist`."""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks import lower_bound
from benchmarks.results import Line
from gyroscope._core.errors import ConfigError
from gyroscope.simulation.data.batches import Split

LIMITS = {"mnist": 700.0, "cifar10": 2500.0}
"""Megabytes."""

_ROUNDS = {"mnist": 300, "cifar10": 2}
_IMAGES = 1000
"""Images of the CIFAR-10 test set: more need more time, but no more memory, since they are evaluated in batches."""


def measure(task: str, data_dir: str | None) -> list[Line]:
    """Return the peak memory of a run of a task."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", task, *([data_dir] if data_dir else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode != 0:
        raise ConfigError(f"a run of {task} in a process of its own failed: {done.stderr.strip().splitlines()[-1]}")
    what = f"peak memory of {'an MNIST' if task == 'mnist' else 'a full-size CIFAR-10'} run"
    return [Line("memory", what, None, None, float(done.stdout.split()[-1]), "MB", limit=LIMITS[task])]


def main(task: str, data_dir: str | None) -> None:
    """Train, and print the peak in megabytes."""
    from gyroscope.runs import training

    config = {"mnist": lower_bound.MNIST, "cifar10": lower_bound.CIFAR10}[task]
    config = dataclasses.replace(config, steps=_ROUNDS[task], data_dir=data_dir)
    loaded = training.load_task(config)
    if task == "cifar10":
        whole = Split.of(loaded.test)
        few = dataclasses.replace(whole, inputs=whole.inputs[:_IMAGES], targets=whole.targets[:_IMAGES])
        loaded = dataclasses.replace(loaded, test=few)
    training.train(config, task=loaded)
    print(_peak())


def _peak() -> float:
    """Return the peak memory of this process in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the memory of the parent process, too
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2  # macOS counts in bytes


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
