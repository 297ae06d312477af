"""What an operator may ask a running server: /metrics for Prometheus, /healthz, and /status.json for people."""

from __future__ import annotations

import collections
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gyroscope import __version__
from gyroscope.distributed.http_pages import Page
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.momentum import Update
from gyroscope.runs.callbacks import Callback, Row

STATES = ("ok", "suspect", "late", "missing", "not finite", "quarantined")
_SAMPLED_COLUMNS = 4096
"""How many columns the distance between a row and the aggregate is estimated from, where the rule has no weights."""
_HEALTHY_SECONDS = 120.0
"""Without a round for so long the server is not healthy."""


class ServerMonitor(Callback):
    """Follow a run, and tell others how it goes. The run writes, the threads of the pages read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._last_round = time.monotonic()
        self.title, self.step_number, self.steps, self.rounds, self.seconds = "", 0, 0, 0, 0.0
        self.last_seconds = math.nan
        self.verdicts: RankVerdicts | None = None
        self.names: list[str] = []
        self.states: list[str] = []
        self.rows: list[collections.Counter[str]] = []
        self.evaluation: dict[str, float] = {}
        self.refused: Mapping[str, int] = {}
        self.running = True

    # -- what the run tells -------------------------------------------------------------------------------------------

    def begin(self, title: str, step: int, steps: int) -> None:
        with self._lock:
            self.title, self.step_number, self.steps = title, step, steps

    def evaluated(self, row: Row) -> None:
        with self._lock:
            self.evaluation = {
                name: float(value)
                for name, value in row.items()
                if isinstance(value, (int, float)) and name != "samples"
            }

    def end(self) -> None:
        self.running = False

    def begin_with(self, n: int, f: int, refused: Mapping[str, int]) -> None:
        """Say how many workers there are, how many the rule tolerates, and where refusals are counted."""
        with self._lock:
            self.verdicts = RankVerdicts(n, f)
            self.names, self.states = [""] * n, ["missing"] * n
            self.rows = [collections.Counter() for _ in range(n)]
            self.refused = refused

    def judged(self, step: int, update: Update, links: Sequence[tuple[str, str]]) -> set[int]:
        """Take in a round, and return the workers whose rows were of no use to the rule.

        Args:
            step: The round.
            update: What the rule made of it.
            links: The name of each worker that is linked, and the state of its link.
        """
        assert self.verdicts is not None
        count = len(links)
        rows, weight = update.rows[:count], update.weight
        finite, distances = _distances(rows, update.aggregate.vector)
        seen = [
            Seen(bool(ok), float(distance), state in ("missing", "late", "quarantined"))
            for ok, distance, (_, state) in zip(finite, distances, links, strict=True)
        ]
        with self._lock:
            self.verdicts.note(seen, None if weight is None else weight[:count])
            self.step_number, self.rounds = step + 1, self.rounds + 1
            now = time.monotonic()
            self.last_seconds, self._last_round = now - self._last_round, now
            self.seconds += self.last_seconds
            for worker, (name, state) in enumerate(links):
                self.names[worker] = name or self.names[worker]
                if state == "ok" and self.verdicts.verdict(worker) == "suspect":
                    state = "suspect"
                self.states[worker] = state
                self.rows[worker][state] += 1
            return set(self.verdicts.bad)

    # -- what is asked ------------------------------------------------------------------------------------------------

    def pages(self) -> dict[str, Any]:
        """Return the functions behind the paths."""
        return {"/metrics": self._metrics, "/healthz": self._health, "/status.json": self._status}

    def status(self) -> dict[str, Any]:
        """Return all that is known, for `gyroscope status`."""
        with self._lock:
            verdicts = self.verdicts
            workers = [
                {
                    "number": worker,
                    "name": name,
                    "state": self.states[worker],
                    "suspicion": verdicts.suspicion[worker] if verdicts else 0.0,
                    "weight": _share(verdicts, worker),
                    "rows": dict(self.rows[worker]),
                }
                for worker, name in enumerate(self.names)
            ]
            return {
                "version": __version__,
                "title": self.title,
                "step": self.step_number,
                "steps": self.steps,
                "rounds": self.rounds,
                "seconds_per_round": self.seconds / self.rounds if self.rounds else None,
                "last_round_seconds": self.last_seconds if self.rounds else None,
                "seconds_since_round": time.monotonic() - self._last_round,
                "up_seconds": time.monotonic() - self._begun,
                "evaluation": self.evaluation,
                "refused": dict(self.refused),
                "workers": workers,
            }

    def _status(self) -> Page:
        return Page(json.dumps(self.status()), "application/json")

    def _health(self) -> Page:
        silent = time.monotonic() - self._last_round
        if silent > _HEALTHY_SECONDS:
            return Page(f"no round for {silent:.0f} s\n", status=503)
        return Page("ok\n")

    def _metrics(self) -> Page:
        status = self.status()
        lines = [
            *_metric("gyroscope_rounds_total", "counter", [({}, status["rounds"])]),
            *_metric("gyroscope_step", "gauge", [({}, status["step"])]),
            *_metric("gyroscope_round_seconds_sum", "counter", [({}, self.seconds)]),
            *_metric("gyroscope_round_seconds_last", "gauge", [({}, self.last_seconds)]),
            *_metric("gyroscope_evaluation", "gauge", [({"name": k}, v) for k, v in status["evaluation"].items()]),
            *_metric("gyroscope_refused_total", "counter", [({"reason": k}, v) for k, v in status["refused"].items()]),
        ]
        workers = [({"worker": str(each["number"]), "name": each["name"]}, each) for each in status["workers"]]
        lines += _metric("gyroscope_worker_suspicion", "gauge", [(who, each["suspicion"]) for who, each in workers])
        shares = [(who, each["weight"]) for who, each in workers if each["weight"] is not None]
        lines += _metric("gyroscope_worker_weight", "gauge", shares)
        states = [({**who, "state": state}, int(each["state"] == state)) for who, each in workers for state in STATES]
        lines += _metric("gyroscope_worker_state", "gauge", states)
        rows = [({**who, "state": state}, each["rows"].get(state, 0)) for who, each in workers for state in STATES]
        lines += _metric("gyroscope_worker_rows_total", "counter", rows)
        return Page("\n".join(lines) + "\n")


def _distances(rows: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows are finite, and their distances from a vector, estimated from some of the columns."""
    d = rows.shape[1]
    stride = max(1, d // _SAMPLED_COLUMNS)
    sample = rows[:, ::stride].to(torch.float64)
    finite = sample.isfinite().all(dim=1)
    distances = (sample - vector[::stride].to(torch.float64)).norm(dim=1) * math.sqrt(d / sample.shape[1])
    return finite, distances


def _share(verdicts: RankVerdicts | None, worker: int) -> float | None:
    return None if verdicts is None or verdicts.weight is None else float(verdicts.weight[worker])


def _metric(name: str, kind: str, values: Sequence[tuple[Mapping[str, str], float]]) -> list[str]:
    """Return a metric in Prometheus' text format; nothing where there are no values."""
    lines = [f"# TYPE {name} {kind}"] if values else []
    for labels, value in values:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inner}}} {value:g}" if inner else f"{name} {value:g}")
    return lines


def _escaped(text: str) -> str:
    """Return a label's text: a worker's name is a stranger's."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
