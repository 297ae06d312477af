"""Verdicts on ranks for Prometheus: a text at /metrics."""

from __future__ import annotations

from http.server import ThreadingHTTPServer
from typing import get_args

from gyroscope.distributed.http_pages import Page, serve_pages
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
    lines = ["# TYPE gyroscope_steps_total counter", f"gyroscope_steps_total {verdicts.steps}"]
    ranks = range(verdicts.n)
    lines.append("# TYPE gyroscope_rank_suspicion gauge")
    lines += [f'gyroscope_rank_suspicion{{rank="{rank}"}} {verdicts.suspicion[rank]:g}' for rank in ranks]
    lines.append("# TYPE gyroscope_rank_non_finite_steps_total counter")
    lines += [
        f'gyroscope_rank_non_finite_steps_total{{rank="{rank}"}} {verdicts.non_finite_steps[rank]}' for rank in ranks
    ]
    lines.append("# TYPE gyroscope_rank_state gauge")
    lines += [
        f'gyroscope_rank_state{{rank="{rank}",state="{state}"}} {int(verdicts.verdict(rank) == state)}'
        for rank in ranks
        for state in get_args(Verdict)
    ]
    return "\n".join(lines) + "\n"
