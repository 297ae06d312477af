"""A server and workers for `benchmarks.soak`: each worker keeps to a pace, and misbehaves while a file tells it to."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.pages import DOCS

sys.path.append(str(DOCS.parent / "tests" / "distributed"))

from clusters import Cluster, FaultyWorker, Started  # type: ignore[import-not-found]

from gyroscope._core.errors import LinkError

LIES = ("nan", "garbage", "half", "long", "huge", "replay", "twice", "foreign", "future")
"""What a worker may do with its answers; see `FaultyWorker`, and below."""


class SoakWorker(FaultyWorker):  # type: ignore[misc]
    """Answers step s not before s times the pace, so that a run takes as long as it should."""

    begun: float
    """When the run began, by the clock that all processes of a machine share."""
    pace: float

    def reply(self, connection: Any, answer: Any, step: int) -> None:
        time.sleep(max(0.0, self.begun + step * self.pace - time.monotonic()))
        self.faults = {}
        with contextlib.suppress(FileNotFoundError):
            self.faults[step] = (self.folder / f"lie-{self.number}").read_text()
        super().reply(connection, answer, step)

    def _garbage(self, connection: Any, answer: Any, step: int) -> None:
        answer.values.normal_().mul_(1e6)
        self._none(connection, answer, step)


def work(address: str, number: int, folder: str, begun: float, pace: float) -> int:
    """Be a worker process until the run is over."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    certificate = Path(folder) / "keys" / f"worker-{number}.crt"
    worker = SoakWorker(host, int(port), certificate=certificate, machine={"threads": 1})
    worker.folder, worker.begun, worker.pace, worker.faults = Path(folder), begun, pace, {}
    try:
        worker.work()
    except LinkError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


class SoakCluster(Cluster):  # type: ignore[misc]
    """A server with a status page, and workers that keep to a pace."""

    pace: float
    begun: float

    def worker(self, number: int) -> Started:
        process = Started(work, self.address, number, str(self.folder), self.begun, self.pace)
        self.others.append(process)
        return process

    def status(self) -> dict[str, Any]:
        """Ask the server how it goes."""
        said = (self.server.files / "err").read_text(errors="replace")
        found = re.search(r"gyroscope status (\S+)", said)
        assert found, said
        with urllib.request.urlopen(f"http://{found[1]}/status.json", timeout=20) as answer:
            known: dict[str, Any] = json.load(answer)
            return known
