"""Real processes that start fast: forked from a server that has imported torch already, with files for their output.

Also the custom task that such processes train, because a child must be able to import it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["gyroscope.cli", "gyroscope.runs.training", "rich.progress", "tomli_w"])

PATIENCE = 120.0
"""Seconds after which a process that should have done something long ago counts as hanging."""


@dataclasses.dataclass(frozen=True)
class Finished:
    code: int
    out: str
    err: str


class Started:
    """A running process, and its output so far."""

    def __init__(self, work: Callable[..., Any], *arguments: Any, cwd: Path | None = None, tty: str = "") -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="gyroscope-test-")
        self.files = Path(self.folder.name)
        place = os.fspath(cwd) if cwd else self.folder.name
        self.process = _context.Process(target=_child, args=(work, arguments, place, self.folder.name, tty))
        self.process.start()

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def until(self, happened: Callable[[], bool]) -> bool:
        """Wait until something has happened or the process has ended; return whether it happened."""
        begun = time.monotonic()
        while self.running:
            if happened():
                return True
            if time.monotonic() - begun > PATIENCE:
                self.kill()
                raise AssertionError("the process hangs")
            time.sleep(0.001)
        return happened()

    def signal(self, number: int) -> None:
        pid = self.process.pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill(self) -> Finished:
        self.signal(signal.SIGKILL)
        return self.end()

    def end(self) -> Finished:
        self.process.join(PATIENCE)
        if self.running:
            self.process.kill()
            raise AssertionError("the process hangs")
        out, err = ((self.files / name).read_text() if (self.files / name).exists() else "" for name in ("out", "err"))
        self.folder.cleanup()
        code = self.process.exitcode
        assert code is not None
        return Finished(code, out, err)


def _child(work: Callable[..., Any], arguments: tuple[Any, ...], cwd: str, folder: str, tty: str) -> None:
    if tty:
        os.environ.update(TERM="xterm-256color")
        for name in ("COLUMNS", "LINES", "NO_COLOR", "CI"):
            os.environ.pop(name, None)  # so that the width is the terminal's
        terminal = os.open(tty, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(terminal, number)
    else:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(work(*arguments))


def _main(*arguments: str) -> int:
    from gyroscope.cli import main

    sys.argv = ["gyroscope", *arguments]
    return main(arguments)


def start(*arguments: object, cwd: Path | None = None, tty: str = "") -> Started:
    """Start `gyroscope ARGUMENTS` in a process of its own."""
    return Started(_main, *map(str, arguments), cwd=cwd, tty=tty)


def gyroscope(*arguments: object, cwd: Path | None = None) -> Finished:
    """Run `gyroscope ARGUMENTS` to its end."""
    return start(*arguments, cwd=cwd).end()


def lines(path: Path) -> int:
    """Return how many complete lines a file has; 0 where there is no file."""
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


# -- a custom task: convolutions, batch-norm, dropout, augmentation ---------------------------------------------


def custom_task() -> Any:
    import torch
    from torch import nn

    import gyroscope as gy
    from gyroscope.simulation.data import digits

    pictures, labels = digits.load()
    inputs = torch.from_numpy(pictures).float().div(16).view(-1, 1, 8, 8)
    targets = torch.from_numpy(labels)

    def noisy(batch: torch.Tensor, stream: torch.Generator) -> torch.Tensor:
        return batch + 0.05 * torch.randn(batch.shape, generator=stream)

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 10)
        )

    return gy.Task(
        model=model,
        train=gy.Split(inputs[300:], targets[300:], noisy),
        test=(inputs[:300], targets[:300]),
        loss=nn.functional.cross_entropy,
    )


def train_custom(out: str, steps: int) -> int:
    """Train the custom task in a run directory, or resume the run that is there."""
    import gyroscope as gy

    if (Path(out) / "config.toml").exists():
        gy.resume(out, task=custom_task())
    else:
        config = gy.Config(
            steps=steps, workers=7, rule="krum", attack="gaussian", byzantine=2, batch=8, evaluate_every=6,
            checkpoint_every=7, seed=3, threads=1,
        )  # fmt: skip
        gy.train(config, task=custom_task(), out=out)
    return 0
