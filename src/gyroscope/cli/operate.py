"""`gyroscope status` and `gyroscope quarantine`: look after a running `gyroscope serve`."""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError
from gyroscope._core.foreign_text import shortened

if TYPE_CHECKING:
    from rich.console import RenderableType

_STATUS = """\
example:
    gyroscope serve --status-port 29518 ...                 # answers on loopback only
    gyroscope status 127.0.0.1:29518                        # a table that follows the run; Ctrl-C ends it
    gyroscope status 127.0.0.1:29518 --once

From another machine: ssh -L 29518:127.0.0.1:29518 server. Prometheus reads http://127.0.0.1:29518/metrics.
"""
_QUARANTINE = """\
examples:
    gyroscope quarantine runs/a                            # who is left out by hand
    gyroscope quarantine runs/a --leave-out 3              # and worker-3: both names are understood
    gyroscope quarantine runs/a --release 3

The server of that run follows within a second, and notes it in events.csv. Without a worker the run needs n - f others;
where there would be too few rows, those in quarantine take part all the same. gyroscope keys revoke closes a link.
"""


def add(commands: Any) -> None:
    status = commands.add_parser(
        "status",
        help="a live table of a running parameter server",
        description="Show the rounds and the workers of a gyroscope serve --status-port.",
        epilog=_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    status.add_argument("address", metavar="HOST:PORT", help="where the server answers: its --status-port")
    status.add_argument("--once", action="store_true", help="print the table once")
    status.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")
    status.set_defaults(run=_status)
    command = commands.add_parser(
        "quarantine",
        help="leave workers of a running parameter server out, or release them",
        description="Leave workers out of a run, or let them take part again, while the server runs.",
        epilog=_QUARANTINE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("directory", metavar="RUN", type=Path, help="the run directory of the server")
    command.add_argument("--leave-out", nargs="+", default=[], metavar="K", help="workers to leave out")
    command.add_argument("--release", nargs="+", default=[], metavar="K", help="workers that take part again")
    command.set_defaults(run=_quarantine)


def _status(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    if not options.every > 0:
        raise ConfigError(f"--every must be a positive number of seconds, got {options.every}")
    shown = table(fetch(options.address))
    if options.once:
        Console(highlight=False).print(shown)
        return 0
    with Live(shown, auto_refresh=False) as live:
        while True:
            time.sleep(options.every)
            try:
                live.update(table(fetch(options.address)), refresh=True)
            except ConfigError:
                print("the server has ended")
                return 0


def fetch(address: str) -> dict[str, Any]:
    """Return what a server says of itself."""
    url = (address if "://" in address else f"http://{address}").rstrip("/") + "/status.json"
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            status = json.load(answer)
    except (OSError, ValueError, urllib.error.URLError) as problem:
        raise ConfigError(
            f"no server answers at {url} ({shortened(problem)}): start it with gyroscope serve --status-port"
        ) from problem
    if not isinstance(status, dict) or "workers" not in status:
        raise ConfigError(f"what answers at {url} is no gyroscope server")
    return status


def table(status: dict[str, Any]) -> RenderableType:
    """Return the status as a table, worst workers first."""
    from rich.markup import escape
    from rich.table import Table

    pace = status["seconds_per_round"]
    evaluation = "  ".join(f"{name} {value:.4g}" for name, value in status["evaluation"].items() if name != "step")
    title = f"{escape(str(status['title']))}\nstep {status['step']}/{status['steps']}  "
    ago = f"the last one {status['seconds_since_round']:.0f} s ago"
    title += "no round yet" if pace is None else f"{pace:.3g} s a round, {ago}"
    found = Table(title=f"{title}  {evaluation}", title_justify="left")
    for heading in ("worker", "name", "state", "suspicion", "weight", "rows"):
        found.add_column(heading, justify="left" if heading in ("name", "state") else "right")
    for each in sorted(status["workers"], key=lambda each: (-each["suspicion"], each["number"])):
        weight = "-" if each["weight"] is None else f"{each['weight']:.1%}"
        style = {"ok": "", "missing": "dim"}.get(each["state"], "bold")
        cells = (str(each["number"]), escape(str(each["name"])), each["state"], f"{each['suspicion']:.2f}", weight)
        sent = sum(count for state, count in each["rows"].items() if state not in ("missing", "not asked"))
        found.add_row(*cells, str(sent), style=style)
    refused = ", ".join(f"{count} {reason}" for reason, count in status["refused"].items())
    found.caption = f"refused: {refused}" if refused else None
    return found


def _quarantine(options: argparse.Namespace) -> int:
    from gyroscope.distributed.server import quarantine
    from gyroscope.runs.run_dir import RunDirectory

    RunDirectory.read_config(options.directory)  # an error where there is no run
    path = options.directory / quarantine.FILE
    try:
        out = quarantine.read_numbers(path) if path.exists() else set()
        leave = {quarantine.number_of(text) for text in options.leave_out}
        release = {quarantine.number_of(text) for text in options.release}
    except ValueError as problem:
        raise ConfigError(str(problem)) from problem
    if leave & release:
        raise ConfigError(f"worker {min(leave & release)} cannot be left out and released at the same time")
    if leave or release:
        out = (out | leave) - release
        quarantine.write_numbers(path, out)
    print(f"left out by hand: {', '.join(map(str, sorted(out))) or 'nobody'}")
    return 0
