"""The parameter server: a store for joining, links for the rounds, and the same run as in the simulation."""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import math
import multiprocessing
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from gyroscope import rules
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.memory import keep_freed_memory
from gyroscope.distributed.protocol import Offer, TCPStore
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.runs import events, run_dir, training
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import Config, ResolvedConfig
from gyroscope.runs.events import Events
from gyroscope.runs.progress import remark
from gyroscope.runs.result import Result
from gyroscope.simulation import tasks
from gyroscope.simulation.workers import SimulatedWorkers

HOST, PORT, DEADLINE, GRACE = "127.0.0.1", 29517, 10.0, 60.0
_FORKED_FROM = "gyroscope.distributed.server.link_process"
_BACKLOG = 128


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Where workers come to, and how long they are waited for."""

    host: str = HOST
    port: int = PORT
    """0: any port that is free."""
    deadline: float = DEADLINE
    """Seconds that a round waits for workers that are there, once it has enough rows."""
    grace: float = GRACE
    """Seconds that the run waits for enough workers, at the start and later."""

    def __post_init__(self) -> None:
        for name in ("deadline", "grace"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be from 0 (any that is free) to 65535, got {self.port}")
        if _is_wildcard(self.host):
            raise ConfigError(
                f"the host {self.host!r} stands for every network of this machine, and whoever reaches the server can "
                "read and write the run: name the one address that the workers use, in a private network"
            )


class Server:
    """Listens as soon as it is made, so that workers may come at any time; use it in a `with` block."""

    def __init__(
        self, options: ServerOptions, callbacks: Sequence[Callback] = (), stop: Callable[[], bool] = lambda: False
    ) -> None:
        if "forkserver" not in multiprocessing.get_all_start_methods():
            raise ConfigError("a server needs Linux or macOS: its links are processes of a kind that this system lacks")
        self.options, self.callbacks, self.stop = options, callbacks, stop
        self._socket = _listen(options.host, options.port)
        self.host, self.port = self._socket.getsockname()[:2]
        # The socket is ours, because the store by itself would listen on all networks of the machine.
        self._store = TCPStore(
            self.host, self.port, None, True, timedelta(seconds=30), wait_for_workers=False,
            master_listen_fd=self._socket.fileno(),
        )  # fmt: skip
        self._socket.detach()  # from here on the store closes it
        self.log = Events()
        self._workers: LinkedWorkers | None = None
        self._over = False

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Close the links. Where the run is over the workers are told, and end; else they wait for the next server."""
        workers, self._workers = self._workers, None
        if workers:
            workers.close(self._over)

    def train(
        self,
        config: Config,
        out: str | Path,
        overwrite: bool = False,
        task: tasks.Task | None = None,
        clock: Clock = UNTIMED,
    ) -> Result:
        """`gyroscope.train` with the workers that come. (A task of one's own needs workers of one's own.)"""
        return self._run(
            lambda: training.train(
                config, task=task, out=out, overwrite=overwrite, callbacks=self.callbacks, stop=self.stop, clock=clock,
                worker_factory=self._worker_factory(Path(out)),
            ),
        )  # fmt: skip

    def resume(self, out: str | Path, machine: Mapping[str, Any] | None = None) -> Result:
        """`gyroscope.resume` with the workers that come (back)."""
        return self._run(
            lambda: training.resume(
                out, callbacks=self.callbacks, stop=self.stop, machine=machine,
                worker_factory=self._worker_factory(Path(out)),
            ),
        )  # fmt: skip

    def _run(self, run: Callable[[], Result]) -> Result:
        keep_freed_memory()
        result = run()
        self._over = result.status in (run_dir.COMPLETE, run_dir.DIVERGED)
        if self._workers and not result.reason:  # a reason is in the log already
            self.log.step = result.step
            self.log.add(events.FINISHED if self._over else events.STOPPED, None, result.status)
        return result

    def _remark(self, text: str) -> None:
        for callback in self.callbacks:
            remark(callback, text)

    def _worker_factory(self, directory: Path) -> training.WorkerFactory:
        def worker_factory(config: ResolvedConfig, simulated: SimulatedWorkers) -> LinkedWorkers:
            offer = Offer(
                config,
                simulated.count,
                simulated.parameters.numel(),
                str(simulated.parameters.dtype).removeprefix("torch."),
                self.options.deadline,
            )
            # A rule that tolerates nothing needs every row.
            tolerated = config.declared_byzantine - config.byzantine if rules.parse(config.rule).resilient else 0
            # So that links start quickly: their processes are forked from one that has imported what they need.
            multiprocessing.get_context("forkserver").set_forkserver_preload([_FORKED_FROM])
            self._workers = LinkedWorkers(
                simulated,
                offer,
                self._store,
                (self.host, self.port),
                required=simulated.count - max(0, tolerated),
                grace=self.options.grace,
                log=self.log,
                stop=self.stop,
                remark=self._remark,
                opened=lambda: self.log.write_to(directory),
            )
            return self._workers

        return worker_factory


def _is_wildcard(host: str) -> bool:
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted server takes its port at once
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {problem.strerror or problem}. What to do: {_remedy(problem)}"
        ) from problem
    return listener


def _remedy(problem: OSError) -> str:
    if problem.errno == errno.EADDRNOTAVAIL:
        return "name an address of this machine with --host (127.0.0.1 is reached from this machine only)"
    return "choose another --port (0 takes any that is free), or stop the process that has it"
