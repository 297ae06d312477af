"""The configuration of a run with several servers: `--servers 6 --byzantine-servers 1 --server-attack nan`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

from gyroscope import attacks, rules
from gyroscope._core.errors import ConfigError
from gyroscope.momentum import BASIC_PLACEMENTS
from gyroscope.research.replicated import quorums
from gyroscope.research.replicated.model_exchange import Replication
from gyroscope.runs.config import NO_ATTACK, Config, ResolvedConfig, names_the_nearest, option
from gyroscope.simulation import tasks

_SERVERS = "several servers, some of them Byzantine"


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class ReplicatedConfig(Config):
    """`Config` with several servers that hold the model, some of them Byzantine."""

    shown_if_unusual: ClassVar[tuple[str, ...]] = (*Config.shown_if_unusual, "servers", "server_attack")
    specs: ClassVar[Mapping[str, tuple[type, Callable[[str], object]]]] = {
        **Config.specs,
        "server_attack": (attacks.Attack, attacks.parse),
    }
    bounds: ClassVar[Mapping[str, int]] = {
        **Config.bounds,
        "servers": 1,
        "byzantine_servers": 0,
        "declared_byzantine_servers": 0,
        "exchange_every": 1,
    }

    servers: int = option(
        1,
        _SERVERS,
        "how many hold the model, the Byzantine ones included (documentation: Byzantine servers)",
        metavar="N",
    )
    byzantine_servers: int = option(0, _SERVERS, "how many of them really are Byzantine", metavar="F")
    declared_byzantine_servers: int | None = option(
        None, _SERVERS, "how many the others tolerate (default: as many as there are)", metavar="F"
    )
    server_attack: str = option(
        "none", _SERVERS, "what Byzantine servers make of the honest ones' updates, e.g. sign-flip", metavar="ATTACK"
    )
    server_quorum: int | None = option(
        None, _SERVERS, "models that workers and servers wait for (default: n - f servers)", metavar="Q"
    )
    worker_quorum: int | None = option(
        None, _SERVERS, "rows that a server waits for (default: n - f workers)", metavar="Q"
    )
    exchange_every: int = option(1, _SERVERS, "rounds between exchanges of the servers' models", metavar="K")

    def resolve(self, task: tasks.Task | None = None) -> ResolvedReplicatedConfig:
        """Return the complete configuration, checked before anything runs. Quorums left out are as large as can be."""
        if self.servers == 1:
            known = {field.name for field in dataclasses.fields(Config)}
            extra = [field for field in dataclasses.fields(self) if field.name not in known]
            used = [field.name for field in extra if getattr(self, field.name) != field.default]
            name = next(iter(used), type(self).__name__)
            raise ConfigError(f"{name} is for several servers, and there is one: set servers to more")
        values = self.complete_values(task)
        f = self.byzantine_servers if self.declared_byzantine_servers is None else self.declared_byzantine_servers
        values["declared_byzantine_servers"] = f
        if self.server_quorum is None:
            values["server_quorum"] = self.servers - f
        if self.worker_quorum is None:
            values["worker_quorum"] = values["workers"] - values["declared_byzantine"]
        config = ResolvedReplicatedConfig(**values)
        config.check()
        return config


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class ResolvedReplicatedConfig(ResolvedConfig, ReplicatedConfig):
    """A `ReplicatedConfig` that can run."""

    if TYPE_CHECKING:
        declared_byzantine_servers: int = 0
        server_quorum: int = 0
        worker_quorum: int = 0

    def check(self) -> None:
        """Raise a GyroscopeError that says what cannot be, if anything."""
        super().check()
        if self.optimizer != "sgd" or self.local_steps > 1:
            raise ConfigError(
                "several servers exchange models after a step of SGD each: set optimizer = sgd and local_steps = 1, "
                f"got {self.optimizer} and {self.local_steps}"
            )
        if self.sample is not None or self.worker_weights != "equal":
            raise ConfigError(
                "several servers wait for quorums of all workers, which count alike: leave out sample and "
                f"worker_weights, got sample = {self.sample} and worker_weights = {self.worker_weights}"
            )
        if (self.server_attack == NO_ATTACK) != (self.byzantine_servers == 0):
            raise ConfigError(
                f"{self.byzantine_servers} Byzantine servers and the server attack {self.server_attack!r} do not go "
                "together: set both byzantine_servers and server_attack, or neither"
            )
        for kind, really, declared in (
            ("servers", self.byzantine_servers, self.declared_byzantine_servers),
            ("workers", self.byzantine, self.declared_byzantine),
        ):
            if really > declared:
                raise ConfigError(
                    f"{really} {kind} are Byzantine but only {declared} are declared: with several servers no quorum "
                    f"tolerates more than are declared; declare {really}"
                )
        if self.server_attack != NO_ATTACK:
            attacks.parse(self.server_attack).check_feasible(self.servers, self.byzantine_servers)
        quorums.check("servers", self.servers, self.declared_byzantine_servers, self.server_quorum)
        quorums.check("workers", self.workers, self.declared_byzantine, self.worker_quorum)
        rule = rules.parse(self.rule)
        rule.check_feasible(self.worker_quorum, self.declared_byzantine)
        if "trusted" in rule.uses:
            raise ConfigError(
                f"the rule {rule} compares with samples that one server holds: with several use another rule"
            )
        if self.momentum not in BASIC_PLACEMENTS:
            raise ConfigError(
                f"momentum {self.momentum!r} has a form for one server only: with {self.servers} servers use "
                + " or ".join(BASIC_PLACEMENTS)
            )

    def replication(self) -> Replication:
        """Return the settings of the servers."""
        return Replication(
            servers=self.servers,
            byzantine=self.byzantine_servers,
            declared_f=self.declared_byzantine_servers,
            server_quorum=self.server_quorum,
            worker_quorum=self.worker_quorum,
            attack=None if self.server_attack == NO_ATTACK else attacks.parse(self.server_attack),
            exchange_every=self.exchange_every,
        )
