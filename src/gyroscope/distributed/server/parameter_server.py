"""The parameter server: links to workers, and the simulation's run with their rows."""

from __future__ import annotations

import dataclasses
import errno
import functools
import ipaddress
import math
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gyroscope import rules
from gyroscope._core.errors import ConfigError
from gyroscope._linalg.memory import keep_freed_memory
from gyroscope.distributed import row_formats
from gyroscope.distributed.certificates import ServerKeys
from gyroscope.distributed.http_pages import serve_pages
from gyroscope.distributed.protocol import Offer
from gyroscope.distributed.server import descriptors, quarantine
from gyroscope.distributed.server.links import Links
from gyroscope.distributed.server.monitor import ServerMonitor
from gyroscope.distributed.server.quarantine import Quarantine
from gyroscope.distributed.server.shards.sharded_links import FrontLinks, ShardedLinks
from gyroscope.distributed.server.shards.sharded_run import ShardedRun
from gyroscope.distributed.server.shards.sharded_workers import ShardedWorkers
from gyroscope.distributed.server.worker_links import LinkedWorkers
from gyroscope.runs import events, run_dir, training
from gyroscope.runs.callbacks import Callback
from gyroscope.runs.config import Config, ResolvedConfig
from gyroscope.runs.events import EventLog
from gyroscope.runs.result import Result
from gyroscope.simulation.workers import SimulatedWorkers

_BACKLOG = 4096
"""Connections that the system keeps until they are accepted: all workers may come at once. It may allow fewer."""


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
    keys: str | Path | None = None
    """The folder with the server's keys (`gyroscope keys init`); None for connections without TLS."""
    trust_network: bool = False
    """Whether other machines may connect without TLS: whoever reaches the port then reads and changes the run."""
    status_port: int | None = None
    """Where to answer /metrics, /healthz and /status.json, on loopback; 0 takes any free port, None answers nowhere."""
    quarantine: int = 0
    """After how many rounds in which its row is of no use to the rule a worker is left out for a while; 0 for never."""
    row_format: str = "full"
    """How workers send their rows: "full", "float16", "bfloat16" or "top-k:share=0.01" (`row_formats`)."""
    shards: int = 1
    """Over how many processes the columns of the rows are split; 1 keeps them all in this one."""
    shard_port: int = 0
    """The first of as many ports as there are shards, on which they listen; 0 takes any free ports."""

    def __post_init__(self) -> None:
        for name in ("deadline", "grace"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
        if self.quarantine < 0:
            raise ConfigError(f"quarantine must be a number of rounds, or 0 for never, got {self.quarantine}")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port must be from 0 (any that is free) to 65535, got {self.port}")
        row_formats.parse(self.row_format)  # raises where there is no such format
        if self.shards > 1 and self.row_format != "full":
            raise ConfigError(
                f"a server with shards reads whole values only, not rows in the format {self.row_format}: leave out "
                "--row-format, or --server-shards"
            )
        if self.shards < 1:
            raise ConfigError(f"server_shards must be at least 1 (no shards), got {self.shards}")
        if not 0 <= self.shard_port <= 65536 - self.shards:
            raise ConfigError(
                f"server_shard_port must be from 0 (any that are free) to {65536 - self.shards}, so that {self.shards} "
                f"ports follow, got {self.shard_port}"
            )


class Server:
    """Train with worker processes (`gyroscope.distributed.worker.Worker`) that connect over the network.

        with Server(ServerOptions(host="10.0.0.5", port=29517)) as server:
            result = server.train(config, "runs/a")

    The server listens from its construction on, so workers may come at any time. Up to f of them may send anything,
    stay silent or be missing; a round takes place with n - f finite rows. With `keys` a worker is who its certificate
    says, and what is sent is encrypted. Without them the server listens on loopback only.
    """

    def __init__(
        self,
        options: ServerOptions,
        callbacks: Sequence[Callback] = (),
        stop: Callable[[], bool] = lambda: False,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Begin to listen.

        Args:
            options: address, deadline and grace period.
            callbacks: called at every round and evaluation, and with the numbers of missing workers.
            stop: called after every round and while waiting; once it returns True the run is interrupted.
            on_event: called with each line of events.csv, as it is written.

        Raises:
            ConfigError: the address cannot be used, or other machines reach it and there are no keys.
            CertificateError: the keys cannot be used.
        """
        self.options, self.callbacks, self.stop, self._on_event = options, callbacks, stop, on_event
        keys = None if options.keys is None else Path(options.keys)
        ports = [options.port]
        if options.shards > 1:
            ports += [options.shard_port and options.shard_port + number for number in range(options.shards)]
        listeners: list[socket.socket] = []
        try:
            for port in ports:
                listeners.append(listen(options.host, port, keys is not None, options.trust_network))
            self.links = (FrontLinks if options.shards > 1 else Links)(listeners[0], keys, self._remark)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._keys, self._shard_listeners = keys, listeners[1:]
        self.host, self.port, self.address = self.links.host, self.links.port, self.links.address
        self.monitor = ServerMonitor() if options.status_port is not None or options.quarantine else None
        if self.monitor is not None and keys is not None:
            self.monitor.expires = ServerKeys.load(keys).expiry.timestamp()
        self._pages = None
        if self.monitor is not None and options.status_port is not None:
            self._pages = serve_pages(self.monitor.pages(), options.status_port)
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
        else:
            self.links.close(self._over, 0.0)
        while self._shard_listeners:
            self._shard_listeners.pop().close()
        if self._pages:
            self._pages.shutdown()
            self._pages.server_close()
            self._pages = None

    def train(self, config: Config, out: str | Path, **options: Any) -> Result:
        """Run `gyroscope.train` with the workers that connect; `options` are its `overwrite`, `task` and `clock`.

        Workers find their task by its name in the configuration: your own `task` needs your own workers.
        """
        return self._run(out, training.train, config, out=out, **options)

    def resume(self, out: str | Path) -> Result:
        """Run `gyroscope.resume` with the workers that connect.

        Raises:
            ConfigError: The run was served with keys, and this server has none.
        """
        if self.options.keys is None and events.served_with_keys(Path(out)):
            raise ConfigError(
                f"the run in {out} was served with keys, and without them anybody could be its workers, who would not "
                "come: add --keys DIR, the folder that it had (ServerOptions(keys=...) in Python). A run of gyroscope "
                "launch is continued by gyroscope launch --resume"
            )
        return self._run(out, training.resume, out)

    def _run(self, directory: str | Path, function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        keep_freed_memory()
        factory = functools.partial(self._link_workers, EventLog(Path(directory), self._on_event))
        watching = [*self.callbacks, self.monitor] if self.monitor else self.callbacks
        options["run_type"] = ShardedRun if self.options.shards > 1 else None
        result = function(*arguments, callbacks=watching, stop=self.stop, worker_factory=factory, **options)
        self._over = result.status in (run_dir.COMPLETE, run_dir.DIVERGED)
        if self._workers and self._workers.is_open and not result.reason:  # a reason is in the log already
            event = events.FINISHED if self._over else events.STOPPED
            self._workers.log.add(result.step, event, None, result.status)
        return result

    @property
    def status_port(self) -> int | None:
        """The port of /metrics and /status.json; None where nothing answers."""
        return self._pages.server_port if self._pages else None

    def _link_workers(self, log: EventLog, config: ResolvedConfig, simulated: SimulatedWorkers) -> LinkedWorkers:
        descriptors.allow(simulated.count)
        parameters = simulated.parameters
        dtype = str(parameters.dtype).removeprefix("torch.")
        row_format = row_formats.parse(self.options.row_format)
        # A rule that tolerates nothing needs every row.
        tolerated = config.declared_byzantine - config.byzantine if rules.parse(config.rule).resilient else 0
        offer = Offer(config, simulated.count, parameters.numel(), dtype, self.options.deadline, row_format)
        links: Any = self.links
        if self._shard_listeners:
            listeners, self._shard_listeners = self._shard_listeners, []
            links = ShardedLinks(links, listeners, self._keys, offer.dimension, self.stop)
            offer = dataclasses.replace(offer, shards=links.where())
        self._workers = (ShardedWorkers if offer.shards else LinkedWorkers)(
            simulated,
            offer,
            links,
            log,
            required=simulated.count - max(0, tolerated),
            grace=self.options.grace,
            stop=self.stop,
            remark=self._remark,
            quarantine=Quarantine(self.options.quarantine, max(0, tolerated), log.directory / quarantine.FILE),
            monitor=self.monitor,
        )
        return self._workers

    def _remark(self, text: str) -> None:
        for callback in self.callbacks:
            callback.remark(text)


def listen(host: str, port: int, exposed: bool = False, trusted: bool = False) -> socket.socket:
    """Return a listening socket.

    Args:
        host: An address of this machine.
        port: 0 for any that is free.
        exposed: Whether strangers may reach it: there are certificates.
        trusted: Whether other machines may reach it all the same.

    Raises:
        ConfigError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restarted server takes its port at once
    try:
        listener.bind((host, port))
        # The address that was bound, because a wildcard has many spellings: "", "0", "0x0", "::ffff:0.0.0.0".
        bound: Any = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
        bound = getattr(bound, "ipv4_mapped", None) or bound
        if not exposed and (bound.is_unspecified or not (trusted or bound.is_loopback)):
            listener.close()
            what = (
                "stands for every network of this machine" if bound.is_unspecified else "is reached by other machines"
            )
            raise ConfigError(
                f"the host {host!r} {what}, and without certificates whoever reaches the server can read and change "
                "the run. What to do: gyroscope keys init, then --keys keys; or, in a private network where everybody "
                "is trusted, name one address and add --trust-network"
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
