"""Verdicts on ranks for Prometheus: a text at /metrics."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import get_args

from gyroscope.distributed.http_pages import Page, serve_pages
from gyroscope.distributed.prometheus_text import metric
from gyroscope.distributed.rank_verdicts import RankVerdicts, Verdict


def serve_metrics(verdicts: RankVerdicts, port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Answer GET /metrics in a thread of its own.

    Args:
        verdicts: What to tell; each answer has what is known then.
        port: The port, 0 for any that is free.
        host: The address to listen on. There is no password: give another than loopback in a private network only.

    Returns:
        The server; `server_port` is its port, `shutdown()` ends it.
    """

    return serve_pages({"/metrics": lambda: Page(metrics_text(verdicts))}, port, host)


def metrics_text(verdicts: RankVerdicts) -> str:
    """Return the verdicts in Prometheus' text format."""
    ranks = [(rank, {"rank": str(rank)}) for rank in range(verdicts.n)]
    states = [
        ({**who, "state": state}, int(verdicts.verdict(rank) == state))
        for rank, who in ranks
        for state in get_args(Verdict)
    ]
    lines = [
        *metric("gyroscope_steps_total", "counter", "Steps so far.", [({}, verdicts.steps)]),
        *metric(
            "gyroscope_rank_suspicion",
            "gauge",
            "The part of the recent steps in which the rank's row looked bad, from 0 to 1.",
            [(who, verdicts.suspicion[rank]) for rank, who in ranks],
        ),
        *metric(
            "gyroscope_rank_non_finite_steps_total",
            "counter",
            "Steps in which the rank's row had a NaN or an infinity.",
            [(who, verdicts.non_finite_steps[rank]) for rank, who in ranks],
        ),
        *metric("gyroscope_rank_state", "gauge", "1 for the state that the rank is in, 0 for the others.", states),
    ]
    return "\n".join(lines) + "\n"
