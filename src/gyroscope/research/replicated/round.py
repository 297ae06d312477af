"""The round of several servers, and the whole of it.

servers' models -> median at each worker -> gradients -> momentum at the workers -> attack, per server -> rule and
momentum at each server -> its model -> median over the servers' models
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import AttackContext
from gyroscope.research.replicated import drift, quorums
from gyroscope.research.replicated.models import ModelExchange, median
from gyroscope.research.replicated.servers import Servers
from gyroscope.rules import Aggregate, RuleContext
from gyroscope.simulation.round import Players, Round, Table

Own = Callable[[bool], Tensor]


def play(players: Players, table: Table, servers: Servers, step: int, clock: Clock = UNTIMED) -> Round:
    """Play one round: update the servers and the table in place, and tell what happened, as server 0 saw it.

    Its model becomes the run's parameters. What the servers disagree about is in `servers.drift`.
    """
    placement, replication = players.placement, servers.replication
    losses = _sample(players, table, servers, step, clock)
    sent, table.state = placement.before(table.sampled, table.state, out=table.honest)
    clock.lap("momentum")
    of_sent = CachedMoments(sent)
    of_sampled = of_sent if sent is table.sampled else CachedMoments(table.sampled)
    own = None
    if players.own:  # computed when an attack asks: at what someone takes for the model who hears all honest servers
        players.workers.parameters.copy_(median(servers.models))
        own = players.own.at(step, table.notes, table.state)
    lr = players.schedule.at(step)
    start, servers.before = servers.models.clone(), servers.models.mean(dim=0)
    seen: list[tuple[Aggregate, Tensor]] = []
    directions: list[Tensor] = []
    for server, model in enumerate(servers.models):
        aggregate, attack = _aggregate(players, servers, server, of_sent, own, step, clock)
        direction, servers.states[server] = placement.after(aggregate.vector, servers.states[server])
        clock.lap("momentum")
        model.sub_(direction, alpha=lr)
        seen.append((aggregate, attack))
        directions.append(direction)
    updated, exchanged = servers.models, None
    if (step + 1) % replication.exchange_every == 0:
        post = ModelExchange("servers", step, players.seed, updated, servers.before, replication, servers.server_notes)
        exchanged = post.medians(replication.honest)
        servers.models = exchanged
    players.workers.parameters.copy_(servers.models[0])
    clock.lap("update")
    servers.drift = drift.measure(step, lr, directions, start, updated, exchanged)
    clock.lap("measures")
    return Round(step, lr, players.course.mu, losses, table.sampled, sent, seen[0][1], seen[0][0], of_sampled, of_sent)


def _sample(players: Players, table: Table, servers: Servers, step: int, clock: Clock) -> Tensor:
    """The workers' losses; their gradients are written into the table, each at the median of the models it heard."""
    parameters, workers = players.workers.parameters, servers.workers
    post = ModelExchange(
        "workers", step, players.seed, servers.models, servers.before, servers.replication, servers.server_notes
    )
    models = post.medians(workers.count)
    clock.lap("update")
    if bool((models == models[0]).all()):  # as with a single server, and as fast
        parameters.copy_(models[0])
        return workers.sample(step, out=table.sampled, clock=clock)[0]
    losses = []
    for worker, model in enumerate(models):
        parameters.copy_(model)
        losses.append(workers.alone(worker).sample(step, out=table.sampled[worker : worker + 1], clock=clock)[0])
    return torch.cat(losses)


def _aggregate(
    players: Players, servers: Servers, server: int, honest: CachedMoments, own: Own | None, step: int, clock: Clock
) -> tuple[Aggregate, Tensor]:
    """(what the server's rule makes of the rows in its quorum, what the Byzantine workers sent to this server)."""
    context = RuleContext(step, players.seed, servers.memories[server])
    attack = _attack_rows(players, servers, server, honest, own, context)
    clock.lap("attack")
    h = len(honest.rows)
    count = servers.replication.worker_quorum - players.byzantine
    chosen = quorums.draw(players.seed, "rows to servers", server, step, h, count).to(attack.device)
    rows = torch.cat([honest.rows.index_select(0, chosen), attack])
    aggregate, servers.memories[server] = players.rule.step(rows, players.declared_f, context)
    if aggregate.weight is not None and len(rows) < players.n:
        heard = torch.cat([chosen, torch.arange(h, players.n, device=chosen.device)])
        weight = aggregate.weight.new_zeros(players.n)
        weight[heard.to(weight.device)] = aggregate.weight
        aggregate = Aggregate(aggregate.vector, weight)
    clock.lap("rule")
    return aggregate, attack


def _attack_rows(
    players: Players, servers: Servers, server: int, honest: CachedMoments, own: Own | None, context: RuleContext
) -> Tensor:
    """What the Byzantine workers send to this server. They see all honest rows, and equivocate if the attack does."""
    if players.attack is None:
        return honest.rows[:0]
    view = AttackContext(
        rule=players.rule,
        declared_f=players.declared_f,
        generator=random_streams.generator(players.seed, "attack", context.step),
        step=context.step,
        parameters=servers.models[server].clone(),
        momentum=players.placement.name,
        rule_context=context,
        state=servers.worker_notes.setdefault(str(server), {}),
        moments=honest,
        compute_gradients=own,
        server=server,
        servers=servers.replication.servers,
    )
    return players.attack(honest.rows, players.byzantine, view)
