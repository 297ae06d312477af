"""One round with several servers, and the whole of it.

models of the servers -> median at each worker -> gradients -> worker momentum -> attack, per server -> aggregate at
each server -> update of its model -> median over the servers' models
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import AttackContext
from gyroscope.momentum import RobustAggregator, Update
from gyroscope.research.replicated import drift, quorums
from gyroscope.research.replicated.model_exchange import ModelExchange, median
from gyroscope.research.replicated.servers import Servers
from gyroscope.rules import Aggregate
from gyroscope.simulation.round import Round, RoundConfig, RoundState, present_rows
from gyroscope.simulation.workers import SimulatedWorkers, present_among

OwnGradients = Callable[[bool], Tensor]


def play_replicated_round(
    config: RoundConfig,
    state: RoundState,
    servers: Servers,
    workers: SimulatedWorkers,
    step: int,
    lr: float,
    clock: Clock = UNTIMED,
) -> Round:
    """Play one round: change the servers and the state in place, and return what happened at server 0.

    The model of server 0 becomes the run's parameters. `servers.drift` holds how far the servers are apart.
    """
    replication, parameters = servers.replication, workers.parameters
    losses = _sample(config, state, servers, workers, step, clock)
    sent = state.gradients
    if state.worker_momentum is not None:
        sent = state.worker_momentum.update(state.gradients, out=state.honest)
    clock.lap("momentum")
    of_sent = of_sampled = present_rows(sent, workers)
    if sent is not state.gradients:
        of_sampled = present_rows(state.gradients, workers)
    own = None
    if config.byzantine_gradients:  # computed when an attack asks, at the median of all honest servers' models
        parameters.copy_(median(servers.models))
        own = config.byzantine_gradients.at(step)
    start, servers.before = servers.models.clone(), servers.models.mean(dim=0)
    seen: list[tuple[Update, Tensor]] = []
    for server, model in enumerate(servers.models):
        update, attack = _aggregate(config, servers, server, sent, of_sent, own, step, clock)
        model.sub_(update.vector, alpha=lr)
        seen.append((update, attack))
    updated, exchanged = servers.models, None
    if (step + 1) % replication.exchange_every == 0:
        exchange = ModelExchange(
            "servers", step, config.seed, updated, servers.before, replication, servers.server_adversary
        )
        servers.models = exchanged = exchange.medians(replication.honest)
    parameters.copy_(servers.models[0])
    clock.lap("update")
    servers.drift = drift.measure(step, lr, [update.vector for update, _ in seen], start, updated, exchanged)
    clock.lap("measures")
    update, attack = seen[0]
    return Round(step, lr, config.mu, losses, of_sampled, of_sent, attack, update, workers.count)


def _sample(
    config: RoundConfig, state: RoundState, servers: Servers, workers: SimulatedWorkers, step: int, clock: Clock
) -> Tensor:
    """Compute the workers' gradients, each at the median of the models that it received, and return their losses."""
    exchange = ModelExchange(
        "workers", step, config.seed, servers.models, servers.before, servers.replication, servers.server_adversary
    )
    models = exchange.medians(workers.count)
    clock.lap("update")
    if bool((models == models[0]).all()):  # all workers at once, as with a single server
        workers.parameters.copy_(models[0])
        return workers.sample(step, out=state.gradients, clock=clock)[0]
    losses = []
    for worker, model in enumerate(models):
        workers.parameters.copy_(model)
        row = state.gradients[worker : worker + 1]
        losses.append(workers.alone(worker).sample(step, out=row, clock=clock)[0])
    workers.present = present_among(workers.finite_rows(state.gradients))
    return torch.cat(losses)


def _aggregate(
    config: RoundConfig,
    servers: Servers,
    server: int,
    sent: Tensor,
    honest: CachedMoments,
    own: OwnGradients | None,
    step: int,
    clock: Clock,
) -> tuple[Update, Tensor]:
    """Return the server's update from the rows in its quorum, and what the Byzantine workers sent to it."""
    aggregator, h = servers.aggregators[server], len(sent)
    attack = _attack_rows(config, servers, server, aggregator, honest, own, step)
    clock.lap("attack")
    count = servers.replication.worker_quorum - config.byzantine
    chosen = quorums.draw(config.seed, "rows to servers", server, step, h, count).to(attack.device)
    rows = torch.cat([sent.index_select(0, chosen), attack])
    update = aggregator.step(rows)
    n = h + config.byzantine
    if update.weight is not None and len(rows) < n:
        received = torch.cat([chosen, torch.arange(h, n, device=chosen.device)])
        weight = update.weight.new_zeros(n)
        weight[received.to(weight.device)] = update.weight
        update = Update(update.vector, Aggregate(update.aggregate.vector, weight), update.rows)
    clock.lap("rule")
    return update, attack


def _attack_rows(
    config: RoundConfig,
    servers: Servers,
    server: int,
    aggregator: RobustAggregator,
    honest: CachedMoments,
    own: OwnGradients | None,
    step: int,
) -> Tensor:
    """Return what the Byzantine workers send to this server. They know all honest rows, and may equivocate."""
    if config.attack is None:
        return honest.rows[:0]
    context = AttackContext(
        rule=aggregator.rule,
        declared_f=aggregator.f,
        generator=random_streams.generator(config.seed, "attack", step),
        step=step,
        parameters=servers.models[server].clone(),
        momentum=config.momentum,
        rule_context=aggregator.rule_context(),
        state=servers.worker_adversary.setdefault(str(server), {}),
        moments=honest,
        compute_gradients=own,
        server=server,
        servers=servers.replication.servers,
    )
    return config.attack(honest.rows, config.byzantine, context)
