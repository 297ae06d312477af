"""One synchronous round of Byzantine distributed SGD, and the whole of it.

collect -> worker momentum -> attack -> aggregate -> update
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.clock import UNTIMED, Clock
from gyroscope._linalg import memory
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks import Attack, AttackContext
from gyroscope.momentum import RobustAggregator, Update, WorkerMomentum
from gyroscope.rules import RuleContext
from gyroscope.simulation.byzantine_gradients import ByzantineGradients
from gyroscope.simulation.server_optimizer import SGD, OptimizerSteps
from gyroscope.simulation.trusted import TrustedSamples
from gyroscope.simulation.workers import Workers, present_among


@dataclasses.dataclass(frozen=True)
class RoundConfig:
    """Who takes part in a round. It does not change from round to round."""

    workers: Workers
    """The honest ones."""
    attack: Attack | None
    byzantine: int
    """How many workers really are Byzantine: 0 without an attack."""
    momentum: str
    """Where momentum is computed."""
    mu: float
    seed: int
    trusted: TrustedSamples | None = None
    """Samples that the server holds, for a rule that compares with them."""
    byzantine_gradients: ByzantineGradients | None = None
    """What the Byzantine workers would send if they were honest, for attacks that ask."""


class RoundState:
    """What a round reads and writes: an (n, d) matrix of rows, honest workers first, and everybody's state."""

    def __init__(
        self,
        config: RoundConfig,
        aggregator: RobustAggregator,
        worker_momentum: WorkerMomentum | None,
        optimizer: OptimizerSteps | None = None,
        columns: int | None = None,
    ) -> None:
        """Begin with the first round; `columns` says how many of the rows are in this process, if not all."""
        h, parameters = config.workers.count, config.workers.parameters
        d = parameters.numel() if columns is None else columns
        self.aggregator = aggregator
        self.optimizer = optimizer or SGD().begin(parameters)
        self.worker_momentum = worker_momentum
        """Of the honest workers, where it is computed here."""
        self.adversary: dict[str, Tensor] = {}
        """The state of the attack."""
        self.rows = memory.table(h + config.byzantine, d, parameters)
        self.honest, self.byzantine = self.rows[:h], self.rows[h:]
        # Workers compute gradients right where they send them from, unless momentum comes between.
        self.gradients = self.honest
        if worker_momentum is not None:
            self.gradients = memory.table(h, d, parameters)


@dataclasses.dataclass(frozen=True)
class Round:
    """What happened in a round. The rows are the state's own memory: the next round overwrites them."""

    step: int
    lr: float
    mu: float
    losses: Tensor
    sampled: CachedMoments | None
    """(h, d): the honest workers' clipped gradients; None where only they themselves know them."""
    sent: CachedMoments
    """(h, d): what the rule was given of the honest workers that are present, momentum included. Where the server keeps
    the last rows of workers that it did not ask, those too."""
    attack: Tensor
    """(f, d): what the Byzantine workers sent, of those that were asked; f may be 0."""
    update: Update
    honest: int
    """How many honest workers there are, present or not."""
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Columns of metrics.csv that another kind of round fills."""


def play_round(config: RoundConfig, state: RoundState, step: int, lr: float, clock: Clock = UNTIMED) -> Round:
    """Play one round: change the model's parameters and the state in place, and return what happened."""
    workers = config.workers
    losses, gradients = workers.sample(step, out=state.gradients, clock=clock)
    sent = gradients
    if state.worker_momentum is not None:
        sent = state.worker_momentum.update(gradients, out=state.honest)
    clock.lap("momentum")
    of_sent = of_sampled = present_rows(sent, workers)
    if sent is not gradients:
        of_sampled = present_rows(gradients, workers)
    trusted = None
    if config.trusted is not None:
        trusted = config.trusted.gradient(step)
        clock.lap("gradients")
    # Where workers are missing, nobody can foresee what the server keeps of them.
    foreseen = state.aggregator.per_worker is not None and workers.present is None
    preview: Callable[[Tensor], Tensor] | None = state.aggregator.preview if foreseen else None
    asked: Tensor | None = None
    there = workers.present
    if state.aggregator.participation is not None:
        of_sent, there, asked, preview = participants(config, state, of_sent, step)
    if state.aggregator.copies is not None:
        preview = with_copies(state, there, preview)
    attack = attack_rows(config, state, of_sent, step, state.aggregator.rule_context(trusted), preview, asked)
    if asked is None:
        state.byzantine.copy_(attack)
    else:
        state.byzantine[asked] = attack
    clock.lap("attack")
    update = state.aggregator.step(state.rows, trusted=trusted)
    clock.lap("rule")
    state.optimizer.step(update.vector, lr)
    clock.lap("update")
    if asked is None and update.rows.data_ptr() != state.rows.data_ptr():  # the server accumulated them
        of_sent = present_rows(update.rows[: workers.count], workers)
    sampled = None if workers.accumulates or not len(of_sampled.rows) else of_sampled
    return Round(step, lr, config.mu, losses, sampled, of_sent, attack, update, workers.count)


def present_rows(rows: Tensor, workers: Workers) -> CachedMoments:
    """Return the rows of the honest workers that are present, with their moments computed once."""
    return CachedMoments(rows if workers.present is None else rows[workers.present])


def participants(
    config: RoundConfig, state: RoundState, fresh: CachedMoments, step: int
) -> tuple[CachedMoments, Tensor | None, Tensor, Callable[[Tensor], Tensor] | None]:
    """Return what a round that does not ask everybody shows the adversary.

    Returns:
        What the rule will be given of honest workers, last rows of absent ones included; the numbers of these workers,
        None for all; which of the Byzantine workers are asked, counted from 0; and what the rule will be given if they
        send certain rows, where that is more.
    """
    participation, h = state.aggregator.participation, config.workers.count
    assert participation is not None
    asked = torch.tensor([worker - h for worker in participation.asked(step) if worker >= h], dtype=torch.int64)
    if not participation.keeps:
        return fresh, config.workers.present, asked, None
    # A Byzantine worker that is not asked cannot send anything: the rule is given what it sent when it last was.
    shown = participation.given(step, state.rows)
    there = present_among(shown[:h].sum(dim=1).isfinite())
    honest = CachedMoments(shown[:h] if there is None else shown[there])

    def preview(rows: Tensor) -> Tensor:
        sent, colluding = rows[len(honest.rows) :], shown[h:].clone()
        colluding[asked] = sent[asked]
        return torch.cat([rows[: len(honest.rows)], colluding])

    return honest, there, asked, preview


def with_copies(
    state: RoundState, there: Tensor | None, preview: Callable[[Tensor], Tensor] | None
) -> Callable[[Tensor], Tensor]:
    """Return what the rule will be given if the Byzantine workers send certain rows, where workers count unequally."""
    everybody = torch.arange(len(state.rows))
    honest = everybody[: len(state.honest)] if there is None else there.cpu()
    numbers = torch.cat([honest, everybody[len(state.honest) :]])

    def repeated(rows: Tensor) -> Tensor:
        return state.aggregator.repeated(rows if preview is None else preview(rows), numbers)

    return repeated


def attack_rows(
    config: RoundConfig,
    state: RoundState,
    honest: CachedMoments,
    step: int,
    rule_context: RuleContext,
    preview: Callable[[Tensor], Tensor] | None,
    asked: Tensor | None = None,
) -> Tensor:
    """Return what the Byzantine workers send, who see the honest rows and all that the server knows.

    Args:
        asked: which of them are asked, where not all are. With a preview the rule is given rows of all of them, old or
            new, and the adversary plans for all; else for those asked.
    """
    if config.attack is None or (asked is not None and not len(asked)):
        return honest.rows[:0]
    own = config.byzantine_gradients.at(step) if config.byzantine_gradients else None
    alone = asked if preview is None else None
    f = config.byzantine if alone is None else len(alone)
    context = AttackContext(
        rule=state.aggregator.rule,
        declared_f=state.aggregator.f,
        generator=random_streams.generator(config.seed, "attack", step),
        step=step,
        parameters=config.workers.parameters.clone(),  # the adversary reads the parameters but cannot write them
        momentum=config.momentum,
        rule_context=rule_context,
        state=state.adversary,
        moments=honest,
        compute_gradients=own if own is None or alone is None else lambda flipped: own(flipped)[alone],
        preview=preview,
    )
    rows = config.attack(honest.rows, f, context)
    return rows if asked is None or alone is not None else rows[asked]
