"""`gyroscope bench`: how fast it is on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError, DataError, UnknownNameError

if TYPE_CHECKING:
    from benchmarks.results import Line

_PARTS = ("rules", "attacks", "growth", "training", "memory", "distributed", "ddp")

_EPILOG = """\
examples:
  gyroscope bench                          everything; ten minutes or so, on a machine with nothing else to do
  gyroscope bench rules --seconds 20
  gyroscope bench distributed              server and workers, RobustSGD and DistributedDataParallel, as real processes
  gyroscope bench ddp                      a step of gy.ddp beside one of DistributedDataParallel, on a GPT and a CNN
  GYROSCOPE_DATA=DIR gyroscope bench training memory

to have other libraries beside ours: pip install 'gyroscope[bench]' and pip install --no-deps byzfl
(with its dependencies, byzfl would bring torchvision and with it another torch)

what comes out: a table of ratios here; bench.csv, bench.png, profile.txt and machine.json in --out.
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "bench",
        help="measure how fast the rules and the trainer are on this machine",
        description="Rules beside torch's operations and other libraries' rules, in one process and in turn; a "
        "training run beside the time of its matrix products; peak memory; a parameter server beside the bare transfer "
        "of its bytes. Look at the ratios: machines are noisy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(_PARTS)} (default: all)")
    command.add_argument("--seconds", type=float, default=60.0, metavar="S",
                         help="for each size and each growth series (default: 60)")  # fmt: skip
    command.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as torch chooses)")
    command.add_argument("--data-dir", metavar="DIR", help="folder that holds the data sets (or set GYROSCOPE_DATA)")
    command.add_argument("--out", default="bench", metavar="DIR", help="where to write (default: bench)")
    command.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    import torch

    from benchmarks import other_libraries, plot, results
    from gyroscope._linalg import _kernels

    parts = _parts(options.parts)
    if options.seconds <= 0:
        raise ConfigError(f"--seconds must be positive, got {options.seconds}")
    if options.threads is not None:
        if options.threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {options.threads}")
        torch.set_num_threads(options.threads)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    _kernels.warm_up()
    warm = time.perf_counter() - begin
    print(f"{torch.get_num_threads()} threads; kernels compiled or loaded from disk in {warm:.1f} s; "
          + ", ".join(f"{name} {version}" for name, version in other_libraries.versions().items()))  # fmt: skip
    lines: list[Line] = []
    profiles: list[str] = []
    for part in parts:
        for entry in _measure(part, options, profiles):
            lines.append(entry)
    print(results.table(lines))
    if profiles:
        print("\n" + "\n\n".join(profiles))
        (out / "profile.txt").write_text("\n\n".join(profiles) + "\n", encoding="utf-8")
    results.write(lines, out / "bench.csv")
    _describe(out / "machine.json", warm)
    if {"rules", "growth"} <= set(parts):
        plot.draw(lines, out / "bench.png")
    broken = sum(entry.holds is False for entry in lines)
    print(f"{sum(entry.holds is True for entry in lines)} promises hold, {broken} do not -> {out}")
    return 0


def _parts(asked: list[str]) -> list[str]:
    for part in asked:
        if part not in _PARTS:
            raise UnknownNameError("part", part, _PARTS)
    return [part for part in _PARTS if part in asked or not asked]


def _measure(part: str, options: argparse.Namespace, profiles: list[str]) -> Iterable[Line]:
    from benchmarks import attacks, growth, rules

    with _Status() as status:
        if part in ("rules", "attacks"):
            measure = rules.measure if part == "rules" else attacks.measure
            for shape in (rules.SMALL, rules.LARGE):
                yield from measure(shape, options.seconds, status.about(f"{part} at ({shape[0]}, {shape[1]:,})"))
        elif part == "growth":
            yield from growth.in_workers(options.seconds, status.about("growth in n"))
            yield from growth.in_parameters(options.seconds, status.about("growth in d"))
        elif part == "distributed":
            yield from _distributed(options.seconds, status.about(part), profiles)
        elif part == "ddp":
            from benchmarks import ddp_steps

            yield from ddp_steps.measure(options.seconds, status.about(part))
        else:
            for task in ("mnist", "cifar10"):
                try:
                    yield from _with_data(part, task, options.data_dir, options.seconds, status, profiles)
                except DataError as problem:
                    status.clear()
                    print(f"left out, no data: {problem}", file=sys.stderr)


def _distributed(seconds: float, on_start: Any, profiles: list[str]) -> Iterable[Line]:
    from benchmarks import ranks, rules, server_round

    for d in dict.fromkeys(d for _, d in (rules.SMALL, rules.LARGE)):
        for together in (server_round.TOGETHER, 1):
            lines, clock = server_round.measure(d, seconds / 2, on_start, together)
            if together > 1:
                profiles.append(f"parameter server, {server_round.WORKERS} workers, d = {d:,}, with TLS\n{clock}")
            yield from lines
        yield from ranks.measure(d, seconds / 2, on_start)


def _with_data(
    part: str, task: str, data_dir: str | None, seconds: float, status: _Status, profiles: list[str]
) -> Iterable[Line]:
    from benchmarks import lower_bound, peak_memory, runs
    from gyroscope.runs import training
    from gyroscope.runs.config import Config

    status.about(part)(task)
    loaded = training.load_task(Config(task=task, data_dir=data_dir))
    if part == "memory":
        del loaded
        return peak_memory.measure(task, data_dir)
    lines, clock = lower_bound.mnist_run(loaded) if task == "mnist" else lower_bound.cifar10_rounds(loaded)
    profiles.append(f"{task}\n{clock}")
    return lines + (runs.measure(loaded, seconds, status.about(part)) if task == "mnist" else [])


def _describe(path: Path, warm: float) -> None:
    import json
    import os

    from benchmarks import other_libraries
    from gyroscope.runs.environment import environment

    facts = {
        **environment(),
        "cores": os.cpu_count(),
        "kernels_ready_seconds": round(warm, 2),
        **other_libraries.versions(),
    }
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


class _Status:
    """One line on the terminal with what is being measured; nothing elsewhere."""

    def __enter__(self) -> _Status:
        self.shown = sys.stderr.isatty()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def about(self, title: str) -> Any:
        def show(what: str) -> None:
            if self.shown:
                print(f"\r\033[Kmeasuring {title}: {what}", end="", file=sys.stderr, flush=True)

        return show

    def clear(self) -> None:
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
