"""A few pages over HTTP, such as /metrics for Prometheus, from a thread of their own."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from gyroscope._core.errors import ConfigError

_MOST_CONNECTIONS = 32
"""Each is a thread and a descriptor of the process that trains. Beyond, the oldest is closed."""


class Page(NamedTuple):
    """What a path answers with."""

    text: str
    kind: str = "text/plain; version=0.0.4; charset=utf-8"
    status: int = 200


class _PageServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[Any, None] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open[request] = None
        if len(self._open) > _MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            del self._open[oldest]
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: somebody has gone before the answer."""


def _is_ours(host: str, bound: str) -> bool:
    """Return whether a request was meant for this server.

    A page in the operator's browser may have had its own name resolve to loopback, to read what is answered here. Where
    other machines reach the server, anybody may read it, under whatever name.
    """
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    with contextlib.suppress(ValueError):
        if not ipaddress.ip_address(bound).is_loopback or ipaddress.ip_address(name.strip("[]")):
            return True
    return name.lower() in ("", "localhost", bound.lower())


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
            if not _is_ours(self.headers.get("Host", ""), host):
                self.send_error(421, "ask for it by its address, or as localhost")
                return
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
        server = _PageServer((host, port), Handler)
    except (OSError, OverflowError) as problem:
        raise ConfigError(f"cannot answer at {host}:{port} ({problem}): choose another port") from problem
    threading.Thread(target=server.serve_forever, name="gyroscope-pages", daemon=True).start()
    return server
