"""The parameter server: a store through which workers join, links for the rounds, and the simulation's run."""

from __future__ import annotations

import dataclasses
import errno
import functools
import ipaddress
import math
import multiprocessing
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from gyroscope import rules
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.memory import keep_freed_memory
from gyroscope.distributed.protocol import Offer, TCPStore
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.runs import events, run_dir, training
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import Config, ResolvedConfig
from gyroscope.runs.events import EventLog
from gyroscope.runs.result import Result
from gyroscope.simulation.workers import SimulatedWorkers

_FORKED_FROM = "gyroscope.distributed.server.link_process"
_BACKLOG = 128


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Where the server listens, and how long it waits for workers."""

    host: str = "127.0.0.1"
    port: int = 29517
    """0 takes any free port."""
    deadline: float = 10.0
    """Seconds that a round waits for linked workers, once it has enough rows."""
    grace: float = 60.0
    """Seconds that the run waits for enough workers, at the start and later."""

    def __post_init__(self) -> None:
        for name in ("deadline", "grace"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be from 0 (any that is free) to 65535, got {self.port}")


class Server:
    """Train with worker processes (`gyroscope.distributed.worker.Worker`) that connect over the network.

        with Server(ServerOptions(host="10.0.0.5", port=29517)) as server:
            result = server.train(config, "runs/a")

    The server listens from its construction on, so workers may come at any time. Up to f of them may send anything,
    stay silent or be missing; a round takes place with n - f finite rows. The network is trusted: neither the links
    nor the store are authenticated or encrypted.
    """

    def __init__(
        self, options: ServerOptions, callbacks: Sequence[Callback] = (), stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Begin to listen.

        Args:
            options: address, deadline and grace period.
            callbacks: called at every round and evaluation, and with the numbers of missing workers.
            stop: called after every round and while waiting; once it returns True the run is interrupted.

        Raises:
            ConfigError: the address cannot be used, or the system has no forkserver (Windows).
        """
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigError("a server needs Linux or macOS: its links are processes of a kind that this system lacks")
        self.options, self.callbacks, self.stop = options, callbacks, stop
        listener = _listen(options.host, options.port)
        self.host, self.port = listener.getsockname()[:2]
        # The socket is ours, because the store by itself would listen on all networks of the machine.
        self._store = TCPStore(
            self.host, self.port, None, True, timedelta(seconds=30), wait_for_workers=False,
            master_listen_fd=listener.fileno(),
        )  # fmt: skip
        listener.detach()  # from here on the store closes it
        self._workers: LinkedWorkers | None = None
        self._over = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close the links. If the run is over the workers end, too; else they wait for the next server."""
        workers, self._workers = self._workers, None
        if workers:
            workers.close(self._over)

    def train(self, config: Config, out: str | Path, **options: Any) -> Result:
        """Run `gyroscope.train` with the workers that connect; `options` are its `overwrite`, `task` and `clock`.

        Workers find their task by its name in the configuration: your own `task` needs your own workers.
        """
        return self._run(out, training.train, config, out=out, **options)

    def resume(self, out: str | Path) -> Result:
        """Run `gyroscope.resume` with the workers that connect."""
        return self._run(out, training.resume, out)

    def _run(self, directory: str | Path, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        keep_freed_memory()
        factory = functools.partial(self._link_workers, EventLog(Path(directory)))
        result = function(*arguments, callbacks=self.callbacks, stop=self.stop, worker_factory=factory, **options)
        self._over = result.status in (run_dir.COMPLETE, run_dir.DIVERGED)
        if self._workers and self._workers.is_open and not result.reason:  # a reason is in the log already
            event = events.FINISHED if self._over else events.STOPPED
            self._workers.log.add(result.step, event, None, result.status)
        return result

    def _link_workers(self, log: EventLog, config: ResolvedConfig, simulated: SimulatedWorkers) -> LinkedWorkers:
        parameters = simulated.parameters
        dtype = str(parameters.dtype).removeprefix("torch.")
        # A rule that tolerates nothing needs every row.
        tolerated = config.declared_byzantine - config.byzantine if rules.parse(config.rule).resilient else 0
        # Links start quickly because their processes are forked from one that has imported what they need.
        multiprocessing.get_context("forkserver").set_forkserver_preload([_FORKED_FROM])
        self._workers = LinkedWorkers(
            simulated,
            Offer(config, simulated.count, parameters.numel(), dtype, self.options.deadline),
            self._store,
            (self.host, self.port),
            log,
            required=simulated.count - max(0, tolerated),
            grace=self.options.grace,
            stop=self.stop,
            remark=self._remark,
        )
        return self._workers

    def _remark(self, text: str) -> None:
        for callback in self.callbacks:
            callback.remark(text)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted server takes its port at once
    try:
        listener.bind((host, port))
        # The address that was bound, because a wildcard has many spellings: "", "0", "0x0", "::ffff:0.0.0.0".
        bound: Any = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
        if (getattr(bound, "ipv4_mapped", None) or bound).is_unspecified:
            listener.close()
            raise ConfigError(
                f"the host {host!r} stands for every network of this machine, and whoever reaches the server can read "
                "and write the run: name the one address that the workers use, in a private network"
            )
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        remedy = "choose another --port (0 takes any that is free), or stop the process that has it"
        if problem.errno == errno.EADDRNOTAVAIL:
            remedy = "name an address of this machine with --host (127.0.0.1 is reached from this machine only)"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {problem.strerror or problem}. What to do: {remedy}"
        ) from problem
    return listener
