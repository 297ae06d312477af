"""A few pages over HTTP, such as /metrics for Prometheus, from a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from gyroscope._core.errors import ConfigError


class Page(NamedTuple):
    """What a path answers with."""

    text: str
    kind: str = "text/plain; version=0.0.4; charset=utf-8"
    status: int = 200


def serve_pages(pages: Mapping[str, Callable[[], Page]], port: int, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Answer GET for each of these paths, with what its function returns at that moment.

    Args:
        pages: Functions by path.
        port: The port, 0 for any that is free.
        host: The address to listen on. There is no password: give another than loopback in a private network only.

    Returns:
        The server; `server_port` is its port, `shutdown()` ends it.

    Raises:
        ConfigError: The address cannot be used.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # for somebody who connects and says nothing

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self.send_error(404)
                return
            text, kind, status = page()
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: Prometheus asks every few seconds."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as problem:
        raise ConfigError(f"cannot answer at {host}:{port} ({problem}): choose another port") from problem
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="gyroscope-pages", daemon=True).start()
    return server
