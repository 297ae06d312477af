"""The round: one synchronous step of Byzantine distributed SGD, and the whole of it.

gradients -> momentum at the workers -> attack -> momentum before the rule -> rule -> momentum after it -> parameters
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._linalg import memory
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import Attack, AttackContext
from gyroscope.momentum import Placement
from gyroscope.research.adaptive.curvature import Course
from gyroscope.research.adaptive.curvature import State as CourseState
from gyroscope.rules import Aggregate, Rule, RuleContext, RuleState
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.byzantine_gradients import ByzantineGradients
from gyroscope.simulation.trusted import TrustedSamples
from gyroscope.simulation.workers import Workers


@dataclasses.dataclass(frozen=True)
class Players:
    """Who takes part in a round, and by which rules."""

    workers: Workers
    placement: Placement
    attack: Attack | None
    byzantine: int
    """How many workers really are Byzantine: 0 without an attack."""
    rule: Rule
    declared_f: int
    """How many the rule is told to tolerate."""
    schedule: Schedule
    course: Course
    """What of momentum factor and learning rate adapts to the trajectory."""
    seed: int
    trusted: TrustedSamples | None = None
    """What the server holds itself, for a rule that compares with it."""
    own: ByzantineGradients | None = None
    """What the Byzantine workers would send if they were honest, for attacks that ask."""

    @property
    def n(self) -> int:
        return self.workers.count + self.byzantine


class Table:
    """The memory of a round, allocated once: an (n, d) matrix in which everyone has a row, and the placement's state.

    Rows of honest workers come first, those of Byzantine workers last.
    """

    def __init__(self, players: Players) -> None:
        h, parameters = players.workers.count, players.workers.parameters
        self.matrix = memory.table(players.n, parameters.numel(), parameters)
        self.honest, self.byzantine = self.matrix[:h], self.matrix[h:]
        self.state = players.placement.init(self.honest)
        self.memory: RuleState = {}
        """The rule's."""
        self.course: CourseState = {}
        self.notes: dict[str, Tensor] = {}
        """The adversary's."""
        # Gradients are sampled right where they are sent from, unless momentum comes between.
        self.sampled = self.honest
        if players.placement.accumulates_rows:
            self.sampled = memory.table(h, parameters.numel(), parameters)


@dataclasses.dataclass(frozen=True)
class Round:
    """What happened in a round. The rows are the table's own memory: they hold until the next round."""

    step: int
    lr: float
    mu: float
    losses: Tensor
    sampled: Tensor | None
    """(h, d): the honest workers' clipped gradients; None where only they themselves know them."""
    sent: Tensor
    """(h, d): what the rule was shown of them; with momentum before the rule, the accumulated gradients. NaN for who
    sent nothing."""
    attack: Tensor
    """(f, d): what the Byzantine workers sent; f may be 0."""
    aggregate: Aggregate
    """What the rule made of it."""
    of_sampled: CachedMoments | None
    of_sent: CachedMoments
    """The same rows, of those workers that are present, with their moments, which attack and measures share."""
    at_workers: bool | None = None
    """Where momentum was in this round, for a placement that switches."""


def play(players: Players, table: Table, step: int, clock: Clock = UNTIMED) -> Round:
    """Play one round: update the model's parameters and the table in place, and tell what happened."""
    parameters = players.workers.parameters
    advice = players.course.advice(table.course)
    placement = players.placement.at(advice.mu)
    losses, sampled = players.workers.sample(step, out=table.sampled, clock=clock)
    sent, table.state = placement.before(sampled, table.state, out=table.honest)
    clock.lap("momentum")
    present = players.workers.present
    of_sent = CachedMoments(sent if present is None else sent[present])
    of_sampled = of_sent
    if sent is not sampled:
        of_sampled = CachedMoments(sampled if present is None else sampled[present])
    trusted = None
    if players.trusted:
        trusted = players.trusted.gradient(step, advice.mu)
        clock.lap("gradients")
    context = RuleContext(step, players.seed, table.memory, trusted)
    attack = _attack_rows(players, placement, table, of_sent, context)
    table.byzantine.copy_(attack)
    clock.lap("attack")
    shown, table.state = placement.received(table.matrix, table.state, players.declared_f, players.workers.count)
    if shown is not table.matrix:
        sent = shown[: players.workers.count]
        of_sent = CachedMoments(sent if present is None else sent[present])
    clock.lap("momentum")
    aggregate, table.memory = players.rule.step(shown, players.declared_f, context)
    if players.trusted:
        players.trusted.played(aggregate.vector)
    clock.lap("rule")
    shared = placement.shared(table.state)
    direction, table.state = placement.after(aggregate.vector, table.state)
    accumulated = placement.accumulates_rows or not placement.knows_samples
    table.course = players.course.observe(table.course, table.matrix, parameters, advice.mu, accumulated, shared)
    clock.lap("momentum")
    lr = players.schedule.at(step) * advice.rate
    parameters.sub_(direction, alpha=lr)
    clock.lap("update")
    if not placement.knows_samples:
        return Round(step, lr, advice.mu, losses, None, sent, attack, aggregate, None, of_sent)
    switch = placement.at_workers(table.state)
    return Round(step, lr, advice.mu, losses, sampled, sent, attack, aggregate, of_sampled, of_sent, switch)


def _attack_rows(
    players: Players, placement: Placement, table: Table, honest: CachedMoments, context: RuleContext
) -> Tensor:
    if players.attack is None:
        return honest.rows[:0]
    state, h = table.state, players.workers.count
    # Where workers are missing, nobody knows what the server keeps of the others: it is left out then.
    foreseen = placement.sees_all_rows and players.workers.present is None
    view = AttackContext(
        rule=players.rule,
        declared_f=players.declared_f,
        generator=random_streams.generator(players.seed, "attack", context.step),
        step=context.step,
        parameters=players.workers.parameters.clone(),  # the adversary sees the parameters but cannot write them
        momentum=placement.name,
        rule_context=context,
        state=table.notes,
        moments=honest,
        compute_gradients=players.own.at(context.step, table.notes, state, placement.mu) if players.own else None,
        preview=(lambda rows: placement.received(rows, state, players.declared_f, h)[0]) if foreseen else None,
    )
    return players.attack(honest.rows, players.byzantine, view)
