"""`gyroscope serve`: a parameter server for worker processes; `gyroscope launch`: server and workers on one machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from gyroscope.runs import command_options

_TRUST = """\
trust: neither links nor store are authenticated or encrypted. Whoever reaches the port reads and writes the run. Use a
private network or a VPN, never the open internet. Workers may send anything; the machines between are trusted.
"""

_SERVE_EXAMPLES = f"""\
examples:
  a server whose rule expects 1 Byzantine worker of 5, and its workers, each in its own terminal:
    gyroscope serve --workers 5 --rule krum --declared-byzantine 1 --out runs/a
    gyroscope work 127.0.0.1:29517 --number 0        # and 1, 2, 3, 4

  workers on other machines of a private network:
    gyroscope serve --host 10.0.0.5 --workers 5 --rule krum --declared-byzantine 1 --out runs/a
    gyroscope work 10.0.0.5:29517 --number 0

  after a crash or a kill (workers wait for the server, and continue by themselves):
    gyroscope serve --resume runs/a

{_TRUST}
exit code 3: too few workers for longer than --grace; the run can be resumed. events.csv lists joins and losses.
"""

_LAUNCH_EXAMPLES = f"""\
example:
    gyroscope launch --workers 8 --rule krum --attack little --byzantine 2 --out runs/a

starts a server and 6 workers; the server simulates the 2 Byzantine ones, as `gyroscope train` does. The numbers are the
same.

{_TRUST}"""


def add(commands: Any) -> None:
    _add(
        commands,
        "serve",
        "a parameter server for worker processes",
        "Train a model with workers that are separate processes (gyroscope work), here or on other machines.",
        _SERVE_EXAMPLES,
        port=29517,
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
    )
    command_options.add_files(command)
    group = command.add_argument_group("where the server listens, and how long it waits for workers")
    for flag, kind, default, metavar, text in (
        ("--host", str, "127.0.0.1", "ADDR", "address of this machine to listen on"),
        ("--port", int, port, "P", "port to listen on; 0 takes any that is free"),
        ("--deadline", float, 10.0, "S", "seconds that a round waits for late workers, once it has enough rows"),
        ("--grace", float, 60.0, "S", "seconds to wait for enough workers; then the run stops with a checkpoint"),
    ):
        group.add_argument(flag, type=kind, default=default, metavar=metavar, help=f"{text} (default: {default})")
    command_options.add_configuration(command)
    command.add_argument_group("what is shown").add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=_run, launch=name == "launch", reword=command_options.in_options)


def _run(options: argparse.Namespace) -> int:
    from gyroscope.distributed.server.parameter_server import Server, ServerOptions
    from gyroscope.runs.run_dir import RunDirectory

    launch, resuming = options.launch, command_options.resuming(options)
    server_options = ServerOptions(options.host, options.port, options.deadline, options.grace)
    if resuming:
        config = RunDirectory.read_config(options.resume).resolve()
    else:
        config, out, overwrite = command_options.configuration(options)
        config = config.resolve()
        if launch and config.threads is None:
            config = dataclasses.replace(config, threads=_threads_each(config))
    with command_options.interruption() as stop, Server(server_options, command_options.shown(options), stop) as server:
        count = config.workers - config.byzantine
        if not launch and not hasattr(options, "quiet"):
            join = f"gyroscope work {server.host}:{server.port} --number K"
            print(f"workers join with: {join}    (K from 0 to {count - 1})", file=sys.stderr, flush=True)
        with _workers(server.host, server.port, count, config) if launch else contextlib.nullcontext():
            result = server.resume(options.resume) if resuming else server.train(config, out, overwrite=overwrite)
            server.end()
    return command_options.conclude(result, "launch" if launch else "serve")


def _threads_each(config: Any) -> int:
    """Return each process's share of the machine's cores: threads beyond that would spin, waiting for each other."""
    return max(1, (os.cpu_count() or 1) // int(1 + config.workers - config.byzantine))


@contextlib.contextmanager
def _workers(host: str, port: int, count: int, config: Any) -> Iterator[None]:
    """Run worker processes, which end with the run, with an interruption, and when this process is killed."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    arguments = [sys.executable, "-m", "gyroscope", "work", address, "--quiet", "--attached", "--device", config.device]
    arguments += ["--threads", str(config.threads or _threads_each(config))]
    if config.data_dir:
        arguments += ["--data-dir", config.data_dir]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(count):
            processes.append(subprocess.Popen([*arguments, "--number", str(number)], stdin=subprocess.PIPE))
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
