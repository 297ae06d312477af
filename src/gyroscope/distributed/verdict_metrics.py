"""Verdicts on ranks for Prometheus: a text at /metrics."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import get_args

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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = metrics_text(verdicts).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: Prometheus asks every few seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="gyroscope-metrics", daemon=True).start()
    return server


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
