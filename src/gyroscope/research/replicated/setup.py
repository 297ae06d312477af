"""From a configuration to the servers that it speaks of."""

from __future__ import annotations

from gyroscope import attacks
from gyroscope._core.errors import ConfigError
from gyroscope.research.replicated.models import Replication
from gyroscope.research.replicated.servers import Servers
from gyroscope.runs.config import NO_ATTACK, Config
from gyroscope.simulation.round import Players, Table
from gyroscope.simulation.workers import SimulatedWorkers


def servers_of(
    config: Config, players: Players, table: Table, workers: SimulatedWorkers, hired: bool = False
) -> Servers | None:
    """The servers of a resolved configuration; None for a single one, which needs none of this.

    hired: whether the workers are processes of their own.
    """
    if config.servers == 1:
        return None
    if hired:
        raise ConfigError(
            "several servers exist in the simulation only (gyroscope train): with worker processes, leave servers out"
        )
    assert config.server_quorum and config.worker_quorum and config.declared_byzantine_servers is not None
    replication = Replication(
        servers=config.servers,
        byzantine=config.byzantine_servers,
        declared_f=config.declared_byzantine_servers,
        server_quorum=config.server_quorum,
        worker_quorum=config.worker_quorum,
        attack=None if config.server_attack == NO_ATTACK else attacks.parse(config.server_attack),
        exchange_every=config.exchange_every,
    )
    return Servers(players, table, workers, replication)
