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

WORKERS = (51, 255)
"""Numbers of workers of MNIST runs whose memory beyond the data is counted in matrices of one row per worker."""
MATRICES = 4
"""The rows, the momentum, and two more."""

_ROUNDS = {"mnist": 300, "cifar10": 2}
_IMAGES = 1000
"""Images of the CIFAR-10 test set: more need more time, but no more memory, since they are evaluated in batches."""


def measure(task: str, data_dir: str | None) -> list[Line]:
    """Return the peak memory of a run of a task."""
    peak = float(_in_a_process(task, data_dir)[0])
    what = f"peak memory of {'an MNIST' if task == 'mnist' else 'a full-size CIFAR-10'} run"
    lines = [Line("memory", what, None, None, peak, "MB", limit=LIMITS[task])]
    for n in WORKERS if task == "mnist" else ():
        matrices = float(_in_a_process(task, data_dir, n)[1])
        what = f"memory of an MNIST run beyond its data, in matrices of {n} rows"
        lines.append(Line("memory", what, None, None, matrices, "", limit=MATRICES))
    return lines


def _in_a_process(task: str, data_dir: str | None, workers: int = 0) -> list[str]:
    """Return the peak in megabytes, and by how many (n, d) matrices it exceeds the memory before the run."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", task, str(workers), *([data_dir] if data_dir else [])]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    if done.returncode != 0:
        raise ConfigError(f"a run of {task} in a process of its own failed: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.split()[-2:]


def main(task: str, workers: int, data_dir: str | None) -> None:
    """Train, and print the two numbers."""
    from gyroscope.runs import training

    config = {"mnist": lower_bound.MNIST, "cifar10": lower_bound.CIFAR10}[task]
    config = dataclasses.replace(config, steps=_ROUNDS[task], data_dir=data_dir)
    loaded = training.load_task(config)
    if task == "cifar10":
        whole = Split.of(loaded.test)
        few = dataclasses.replace(whole, inputs=whole.inputs[:_IMAGES], targets=whole.targets[:_IMAGES])
        loaded = dataclasses.replace(loaded, test=few)
    if workers:
        config = dataclasses.replace(config, workers=workers, byzantine=workers // 4, steps=20)
        training.train(dataclasses.replace(config, workers=5, byzantine=1, steps=1), task=loaded)  # loads the kernels
    before = _memory("VmRSS")
    result = training.train(config, task=loaded)
    d = sum(parameter.numel() for parameter in result.model.parameters())
    size = config.resolve(loaded).workers * d * 4 / 2**20
    print(_memory("VmHWM"), (_memory("VmHWM") - before) / size)


def _memory(kind: str) -> float:
    """Return the memory of this process in megabytes: now (VmRSS), or at its peak (VmHWM)."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the memory of the parent process, too
        line = next(line for line in status.read_text().splitlines() if line.startswith(kind))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2  # macOS counts in bytes


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
