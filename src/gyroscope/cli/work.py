"""`gyroscope work`: one worker process of a `gyroscope serve`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import Any

from gyroscope._core.errors import ConfigError
from gyroscope.runs.command_options import STOPPED

_EPILOG = """\
A worker may join at any time, and join again at any time: the server sends it the momentum that it had. While the
server is unreachable it tries again, for --patience seconds. With --cert it does so, too, while whoever answers does
not prove to be the server: without TLS, or with a certificate of another authority. Exit codes: 0 the run is over, 2 a
mistake or a number that is taken, 3 the server is gone for good.

examples:
    gyroscope work https://server.example:29517 --cert worker-3.crt      # worker-3.key and ca.crt beside it
    gyroscope work 127.0.0.1:29517 --number 3                            # a server on this machine, without --keys
"""


def add(commands: Any) -> None:
    command = commands.add_parser(
        "work",
        help="one worker of a parameter server",
        description="Join a gyroscope serve as worker K and compute gradients until its run is over. The server "
        "sends the configuration; the data must be on this machine.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("address", metavar="https://HOST:PORT", help="where the server listens")
    command.add_argument("--cert", metavar="FILE",
                         help="this worker's certificate, which says who it is (gyroscope keys add)")  # fmt: skip
    command.add_argument("--number", type=int, metavar="K", help="which worker this is, from 0, without a certificate")
    command.add_argument("--patience", type=float, default=120.0, metavar="S",
                         help="seconds without the server before giving up (default: 120)")  # fmt: skip
    command.add_argument("--device", metavar="DEV", help="cpu, cuda, cuda:1, ... (default: cpu)")
    command.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as many as the server uses)")
    command.add_argument("--data-dir", metavar="DIR", help="folder that holds the data set (or set GYROSCOPE_DATA)")
    command.add_argument("--quiet", action="store_true", help="print errors only")
    command.add_argument("--attached", action="store_true", help="end when standard input is closed")
    command.set_defaults(run=_work)


def _work(options: argparse.Namespace) -> int:
    from gyroscope.distributed.protocol import UNKNOWN
    from gyroscope.distributed.worker import ServerGoneError, Worker

    host, port = server_address(options.address, options.cert is not None)
    if options.cert is None and options.number is None:
        raise ConfigError("which worker is this? Give its certificate with --cert, or its --number")
    if options.number is not None and options.number < 0:
        raise ConfigError(f"--number must be at least 0, the first worker's, got {options.number}")
    if not options.patience > 0:
        raise ConfigError(f"patience must be a positive number of seconds, got {options.patience}")
    if options.attached:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us handles Ctrl-C
        threading.Thread(target=_end_with_input, daemon=True).start()

    def say(text: str) -> None:
        if not options.quiet:
            print(f"worker {worker.number}: {text}", file=sys.stderr, flush=True)

    given = {name: getattr(options, name) for name in ("device", "threads", "data_dir")}
    machine = {name: value for name, value in given.items() if value is not None}
    number = UNKNOWN if options.number is None else options.number
    worker = Worker(
        host, port, number, certificate=options.cert, patience=options.patience, machine=machine, report=say
    )
    try:
        worker.work()
    except ServerGoneError as problem:
        print(f"gyroscope: error: {problem}", file=sys.stderr)
        return STOPPED
    return 0


def server_address(text: str, certified: bool) -> tuple[str, int]:
    """Return host and port of an address, which begins with https:// if there are certificates."""
    scheme, _, rest = text.rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("", "http", "https") or not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"cannot read the address {text!r}: it is written https://HOST:PORT, or HOST:PORT such as 127.0.0.1:29517"
        )
    if scheme and certified != (scheme == "https"):
        remedy = (
            "write https://, and only for a server that was started without --keys leave out --cert"
            if certified
            else "give this worker's certificate with --cert"
        )
        raise ConfigError(f"the address {text!r} is one {'without' if certified else 'with'} TLS: {remedy}")
    return host.strip("[]"), int(port)


def _end_with_input() -> None:
    # Not sys.stdin: a thread that reads it holds a lock without which the interpreter aborts at its end.
    while os.read(0, 1024):
        pass
    os._exit(0)
