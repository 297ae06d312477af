"""`gyroscope serve`: a parameter server for worker processes; `gyroscope launch`: server and workers on one machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gyroscope.runs import command_options

_TRUST = """\
trust: with --keys a worker is who its certificate says, and TLS 1.3 encrypts what is sent. Without, the server listens
on this machine's loopback address only. Workers may send anything: the rule bounds what f of them do.
"""

_SERVE_EXAMPLES = f"""\
examples:
  a server whose rule expects 1 Byzantine worker of 5, and its workers, each in its own terminal:
    gyroscope serve --workers 5 --rule krum --declared-byzantine 1 --out runs/a
    gyroscope work 127.0.0.1:29517 --number 0        # and 1, 2, 3, 4

  workers on other machines, each with a certificate of its own (gyroscope keys --help):
    gyroscope keys init --host server.example
    gyroscope keys add worker-0                      # and 1, 2, 3, 4
    gyroscope serve --host 0.0.0.0 --keys keys --workers 5 --rule krum --declared-byzantine 1 --out runs/b
    gyroscope work https://server.example:29517 --cert worker-0.crt

  the columns of the rows in 4 processes, for models of which one cannot hold all rows:
    gyroscope serve --server-shards 4 --workers 5 --rule krum --declared-byzantine 1 --out runs/a

  after a crash or a kill (workers wait for the server, and continue by themselves); a run that had --keys needs them:
    gyroscope serve --resume runs/a
    gyroscope serve --host 0.0.0.0 --keys keys --resume runs/b

  under systemd or the like, which starts the same command again (documentation: Deploying a server for strangers):
    gyroscope serve --host 0.0.0.0 --keys keys --config run.toml --out runs/b --continue --status-port 29518

{_TRUST}
exit code 3: too few workers for longer than --grace, or a shard that died; the run can be resumed. 4: it diverged, its
parameters are no longer finite. events.csv lists joins and losses.
"""

_LAUNCH_EXAMPLES = f"""\
example:
    gyroscope launch --workers 8 --rule krum --attack little --byzantine 2 --out runs/a

starts a server and 6 workers, with certificates that are thrown away in the end; the server simulates the 2 Byzantine
ones, as `gyroscope train` does. The numbers are the same.

{_TRUST}"""


_ROW_FORMATS = """\
how workers send rows: full; float16 or bfloat16, half the bytes; top-k:share=0.1, a tenth of the values, which costs
accuracy and suits few rules: documentation: A parameter server with worker processes"""
_USUAL: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 29517,
    "deadline": 10.0,
    "grace": 60.0,
    "row_format": "full",
    "server_shards": 1,
    "server_shard_port": 0,
    "keys": None,
    "status_port": None,
    "quarantine": 0,
    "log_events": False,
    "trust_network": False,
}
"""The defaults of what a run directory does not hold."""
_OF_THE_OPERATOR = ("trust_network", "status_port", "quarantine")


def add(commands: Any) -> None:
    _add(
        commands,
        "serve",
        "a parameter server for worker processes",
        "Train a model with workers that are separate processes (gyroscope work), here or on other machines.",
        _SERVE_EXAMPLES,
        port=_USUAL["port"],
    )
    _add(
        commands,
        "launch",
        "a server and its worker processes on this machine",
        "Start a parameter server and its workers as processes on this machine, to try it out.",
        _LAUNCH_EXAMPLES,
        port=0,
    )


def _add(commands: Any, name: str, help: str, description: str, examples: str, port: int) -> None:
    command = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        options=functools.partial(_add_options, name, port),
    )
    command.set_defaults(run=_run, launch=name == "launch", reword=command_options.in_options)


def _add_options(name: str, port: int, command: command_options.CommandParser) -> None:
    command_options.add_files(command)
    group = command.add_argument_group("where the server listens, and how long it waits for workers")
    usual = {**_USUAL, "port": port}
    for option, kind, metavar, text in (
        ("host", str, "ADDR", "address of this machine to listen on"),
        ("port", int, "P", "port to listen on; 0 takes any that is free"),
        ("deadline", float, "S", "seconds that a round waits for late workers, once it has enough rows"),
        ("grace", float, "S", "seconds to wait for enough workers; then the run stops with a checkpoint"),
        ("row_format", str, "FORMAT", _ROW_FORMATS),
    ):
        flag, default = f"--{option.replace('_', '-')}", usual[option]
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default})")
    group.add_argument("--server-shards", type=int, metavar="S", default=1,
                       help="split the columns of all rows over S processes on this machine; for rules that read "
                       "columns or distances (default: 1, no shards)")  # fmt: skip
    group.add_argument("--server-shard-port", type=int, metavar="P", default=0,
                       help="the shards listen on ports P to P + S - 1 (default: any that are free)")  # fmt: skip
    if name == "serve":
        group.add_argument("--keys", metavar="DIR", default=None,
                           help="folder with the server's keys (gyroscope keys init); workers need theirs")  # fmt: skip
        group.add_argument("--status-port", type=int, metavar="P", default=None,
                           help="answer /metrics, /healthz and /status.json here, on loopback")  # fmt: skip
        group.add_argument("--quarantine", type=int, metavar="K", default=0,
                           help="leave a worker out for a while after K rounds without use for its row")  # fmt: skip
        group.add_argument("--log-events", action="store_true", default=False,
                           help="print each event as a line of JSON, too")  # fmt: skip
        group.add_argument("--trust-network", action="store_true", default=False,
                           help="let other machines connect without TLS: they can read and change the run")  # fmt: skip
    command_options.add_configuration(command)
    command.add_argument_group("what is shown").add_argument("--quiet", action="store_true", help="no progress")


def _run(options: argparse.Namespace) -> int:
    from gyroscope.distributed.server.parameter_server import Server, ServerOptions
    from gyroscope.runs.run_dir import RunDirectory

    launch, resuming = options.launch, command_options.resuming(options)
    throw_away = tempfile.TemporaryDirectory(prefix="gyroscope-keys-") if launch else contextlib.nullcontext()
    if resuming:
        config = RunDirectory.read_config(options.resume).resolve()
    else:
        config, out, overwrite = command_options.configuration(options)
        config = config.resolve()
        if launch and config.threads is None:
            config = dataclasses.replace(config, threads=_threads_each(config))
    count = config.workers - config.byzantine
    with command_options.interruption() as stop, throw_away as folder:
        keys = _make_keys(Path(folder), options.host, count) if folder else options.keys
        given = {} if launch else {name: getattr(options, name) for name in _OF_THE_OPERATOR}
        given["row_format"] = options.row_format
        given |= {"shards": options.server_shards, "shard_port": options.server_shard_port}
        where = ServerOptions(options.host, options.port, options.deadline, options.grace, keys, **given)
        on_event = _print_event if not launch and options.log_events else None
        with Server(where, command_options.shown(options), stop, on_event) as server:
            if server.status_port is not None and not hasattr(options, "quiet"):
                print(f"status: gyroscope status 127.0.0.1:{server.status_port}", file=sys.stderr, flush=True)
            if not launch and not hasattr(options, "quiet"):
                where_from = server.address.replace("//0.0.0.0:", "//HOST:").replace("//[::]:", "//HOST:")
                join = f"gyroscope work {where_from} " + ("--cert worker-K.crt" if keys else "--number K")
                print(f"workers join with: {join}    (K from 0 to {count - 1})", file=sys.stderr, flush=True)
            with _workers(server.address, keys, count, config) if launch else contextlib.nullcontext():
                result = server.resume(options.resume) if resuming else server.train(config, out, overwrite=overwrite)
                server.end()
    return command_options.conclude(result, "launch" if launch else "serve", "" if launch else _again(options))


def _again(options: argparse.Namespace) -> str:
    """Return the options that say who may connect, where, and how long to wait: a run directory does not hold them."""
    given = {name: getattr(options, name) for name in _USUAL if getattr(options, name) != _USUAL[name]}
    return "".join(
        f" --{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")
        for name, value in given.items()
    )


def _print_event(event: dict[str, Any]) -> None:
    print(json.dumps(event), file=sys.stderr, flush=True)


def _threads_each(config: Any) -> int:
    """Return each process's share of the machine's cores: threads beyond that would spin, waiting for each other."""
    return max(1, (os.cpu_count() or 1) // int(1 + config.workers - config.byzantine))


def _make_keys(folder: Path, host: str, count: int) -> Path:
    """Make an authority for one run, with a certificate for each worker."""
    from gyroscope.distributed import certificates

    certificates.create_authority(folder, [host])
    certificates.add_workers(folder, [f"worker-{number}" for number in range(count)])
    return folder


@contextlib.contextmanager
def _workers(address: str, keys: Path, count: int, config: Any) -> Iterator[None]:
    """Run worker processes, which end with the run, with an interruption, and when this process is killed."""
    arguments = [sys.executable, "-m", "gyroscope", "work", address, "--quiet", "--attached", "--device", config.device]
    arguments += ["--threads", str(config.threads or _threads_each(config))]
    if config.data_dir:
        arguments += ["--data-dir", config.data_dir]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            certificate = str(keys / f"worker-{number}.crt")
            processes.append(subprocess.Popen([*arguments, "--cert", certificate], stdin=subprocess.PIPE))
        yield
    finally:
        for process in processes:
            assert process.stdin
            process.stdin.close()  # tells those that have not ended by themselves to end
        for process in processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:  # stopped, or stuck
                process.kill()
                process.wait()
