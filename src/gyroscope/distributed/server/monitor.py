"""What an operator may ask a running server: /metrics for Prometheus, /healthz, and /status.json for people."""

from __future__ import annotations

import collections
import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from gyroscope import __version__
from gyroscope.distributed.http_pages import Page
from gyroscope.distributed.prometheus_text import Histogram, metric
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.distributed.server.refusals import Reason
from gyroscope.momentum import Update
from gyroscope.runs.callbacks import Callback, Row

NOT_ASKED = "not asked"
"""The state of a worker that a round did not ask."""
STATES = ("ok", "suspect", "late", "missing", "not finite", "quarantined", "linked", NOT_ASKED)
"""What became of a worker's row in the last round; `linked` before the first round since it came."""
SAMPLED_COLUMNS = 4096
"""How many columns the distance between a row and the aggregate is estimated from, where the rule has no weights."""
_HEALTHY_SECONDS = 120.0
"""Without a round for so long the server is not healthy."""
_ROUND_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
"""The bounds of the histogram of rounds."""


class Link(NamedTuple):
    """Who is linked now."""

    name: str
    expires: float | None
    """When its certificate expires, in seconds since 1970; None without TLS."""


class ServerMonitor(Callback):
    """Follow a run, and tell others how it goes. The run writes, the threads of the pages read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = self._last_round = time.monotonic()
        self.title, self.step_number, self.steps, self.rounds = "", 0, 0, 0
        self.latency, self.last_seconds = Histogram(_ROUND_SECONDS), 0.0
        self.expires: float | None = None
        """When the server's certificate or its authority's expires, in seconds since 1970; None without TLS."""
        self.verdicts: RankVerdicts | None = None
        self.names: list[str] = []
        self.states: list[str] = []
        self.rows: list[collections.Counter[str]] = []
        self.evaluation: dict[str, float] = {}
        self.required = 0
        self.refused: Mapping[str, int] = {}
        self._linked: Callable[[], Mapping[int, Link]] = dict

    # -- what the run tells -------------------------------------------------------------------------------------------

    def begin(self, title: str, step: int, steps: int) -> None:
        with self._lock:
            self.title, self.step_number, self.steps = title, step, steps

    def evaluated(self, row: Row) -> None:
        with self._lock:
            self.evaluation = {
                name: float(value)
                for name, value in row.items()
                if isinstance(value, (int, float)) and name not in ("samples", "step")
            }

    def begin_with(
        self, n: int, f: int, required: int, refused: Mapping[str, int], linked: Callable[[], Mapping[int, Link]]
    ) -> None:
        """Say what the run consists of.

        Args:
            n: How many workers there are.
            f: How many of them the rule tolerates.
            required: How many finite rows a round needs.
            refused: Where refusals are counted, by reason.
            linked: Returns who is linked at this moment, by number.
        """
        with self._lock:
            self.required, self._linked = required, linked
            self.verdicts = RankVerdicts(n, f)
            self.names, self.states = [""] * n, ["missing"] * n
            self.rows = [collections.Counter() for _ in range(n)]
            self.refused = refused

    def assembled(self) -> None:
        """Say that the workers have come: the first round does not last from the server's start on."""
        with self._lock:
            self._last_round = time.monotonic()

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
            Seen(bool(ok), float(distance), state in ("missing", "late", "quarantined"), state != NOT_ASKED)
            for ok, distance, (_, state) in zip(finite, distances, links, strict=True)
        ]
        with self._lock:
            self.verdicts.note(seen, None if weight is None else weight[:count])
            self.step_number, self.rounds = step + 1, self.rounds + 1
            now = time.monotonic()
            self.last_seconds, self._last_round = now - self._last_round, now
            self.latency.observe(self.last_seconds)
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
        linked = self._linked()
        with self._lock:
            verdicts = self.verdicts
            workers = [
                {
                    "number": worker,
                    "name": linked[worker].name if worker in linked else name,
                    "state": self._state_now(worker, linked),
                    "linked": worker in linked,
                    "suspicion": verdicts.suspicion[worker] if verdicts else 0.0,
                    "weight": _share(verdicts, worker),
                    "rows": dict(self.rows[worker]),
                    "certificate_expires": linked[worker].expires if worker in linked else None,
                }
                for worker, name in enumerate(self.names)
            ]
            return {
                "version": __version__,
                "title": self.title,
                "step": self.step_number,
                "steps": self.steps,
                "rounds": self.rounds,
                "required": self.required,
                "seconds_per_round": self.latency.sum / self.rounds if self.rounds else None,
                "last_round_seconds": self.last_seconds if self.rounds else None,
                "seconds_since_round": time.monotonic() - self._last_round,
                "up_seconds": time.monotonic() - self._begun,
                "certificate_expires": self.expires,
                "evaluation": self.evaluation,
                "refused": dict(self.refused),
                "workers": workers,
            }

    def _state_now(self, worker: int, linked: Mapping[int, Link]) -> str:
        """Return the state of the last round, unless the worker has come or gone since."""
        if worker not in linked:
            return "missing"
        return "linked" if self.states[worker] == "missing" else self.states[worker]

    def _status(self) -> Page:
        return Page(json.dumps(self.status()), "application/json")

    def _health(self) -> Page:
        silent = time.monotonic() - self._last_round
        if silent > _HEALTHY_SECONDS:
            return Page(f"no round for {silent:.0f} s\n", status=503)
        return Page("ok\n")

    def _metrics(self) -> Page:
        status = self.status()
        refused = {**dict.fromkeys(get_args(Reason), 0), **status["refused"]}  # a rate needs the zero before the one
        workers = [({"worker": str(each["number"])}, each) for each in status["workers"]]
        with self._lock:
            latency = self.latency.lines("gyroscope_round_seconds", "Time from the end of a round to that of the next.")
        lines = [
            *metric("gyroscope_build_info", "gauge", "The server's version.", [({"version": status["version"]}, 1)]),
            *metric("gyroscope_rounds_total", "counter", "Rounds since this process began.", [({}, status["rounds"])]),
            *metric("gyroscope_step", "gauge", "Rounds of the run, with those before it was resumed.",
                    [({}, status["step"])]),
            *metric("gyroscope_steps_planned", "gauge", "The step at which the run is over.", [({}, status["steps"])]),
            *latency,
            *metric("gyroscope_evaluation", "gauge", "The last evaluation, by measure.",
                    [({"measure": name}, value) for name, value in status["evaluation"].items()]),
            *metric("gyroscope_workers_expected", "gauge", "How many workers the run has.", [({}, len(workers))]),
            *metric("gyroscope_workers_required", "gauge", "How many finite rows a round needs.",
                    [({}, status["required"])]),
            *metric("gyroscope_workers_linked", "gauge", "How many workers have a connection now.",
                    [({}, sum(each["linked"] for _, each in workers))]),
            *metric("gyroscope_connections_refused_total", "counter", "Connections that did not become a link.",
                    [({"reason": reason}, count) for reason, count in refused.items()]),
            *metric("gyroscope_worker_info", "gauge", "The name of each worker that has been here.",
                    [({**who, "name": each["name"]}, 1) for who, each in workers if each["name"]]),
            *metric("gyroscope_worker_state", "gauge", "1 for the state that the worker is in, 0 for the others.",
                    [({**who, "state": state}, int(each["state"] == state))
                     for who, each in workers for state in STATES]),
            *metric("gyroscope_worker_rows_total", "counter", "Rounds, by what became of the worker's row.",
                    [({**who, "state": state}, each["rows"].get(state, 0))
                     for who, each in workers for state in STATES if state != "linked"]),
            *metric("gyroscope_worker_suspicion", "gauge",
                    "The part of the recent rounds in which the worker's row looked bad, from 0 to 1.",
                    [(who, each["suspicion"]) for who, each in workers]),
            *metric("gyroscope_worker_weight", "gauge",
                    "The worker's share in the last aggregate; absent with rules that have no such shares.",
                    [(who, each["weight"]) for who, each in workers if each["weight"] is not None]),
            *metric("gyroscope_certificate_expiry_timestamp_seconds", "gauge",
                    "When the server's certificate, or its authority's, expires.",
                    [({}, status["certificate_expires"])] if status["certificate_expires"] else []),
            *metric("gyroscope_worker_certificate_expiry_timestamp_seconds", "gauge",
                    "When the certificate of a linked worker expires.",
                    [(who, each["certificate_expires"]) for who, each in workers if each["certificate_expires"]]),
        ]  # fmt: skip
        return Page("\n".join(lines) + "\n")


def _distances(rows: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows are finite, and their distances from a vector, estimated from some of the columns."""
    d = rows.shape[1]
    stride = max(1, d // SAMPLED_COLUMNS)
    sample = rows[:, ::stride].to(torch.float64)
    finite = sample.isfinite().all(dim=1)
    distances = (sample - vector[::stride].to(torch.float64)).norm(dim=1) * math.sqrt(d / sample.shape[1])
    return finite, distances


def _share(verdicts: RankVerdicts | None, worker: int) -> float | None:
    return None if verdicts is None or verdicts.weight is None else float(verdicts.weight[worker])
