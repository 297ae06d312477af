"""`RobustAggregator` for the ranks of a process group: each rank aggregates a share of the columns for all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._linalg import distances
from gyroscope.distributed.collectives import Exchange
from gyroscope.momentum import RobustAggregator
from gyroscope.rules import Aggregate, RuleContext, RuleState


class ShardedAggregator(RobustAggregator):
    """Aggregate the rows of all ranks: each calls `step` with its own row (1, d), and all get the same bits.

    A rule that reads columns or distances works on an (n, d/n) matrix per rank; one that reads whole rows on the
    (n, d) matrix on every rank.
    """

    def __init__(self, exchange: Exchange, rule: rules.Rule | str, f: int, **options: Any) -> None:
        super().__init__(rule, f, **options)
        self.rule.check_feasible(exchange.n, f)
        rules.refuse_trusted(self.rule, "RobustSGD")
        self.exchange = exchange
        self.width = 0
        """The number of columns without the padding to a multiple of the number of ranks."""

    def load_rule_state(self, rounds: int, state: RuleState) -> None:
        """Continue with the rule's state of so many rounds; momentum stays as it is."""
        self.rounds, self._rule_state = rounds, state

    def _aggregate(self, rows: Tensor, context: RuleContext) -> tuple[Aggregate, RuleState]:
        own = rows[0]
        if self.rule.reads == "rows":
            # Each rank computes it, so that an error in a rule stops them all; rules may be random, so rank 0's counts.
            everyone = self.exchange.rows(own)[:, : self.width]
            aggregate, state = self.rule.step(everyone, self.f, context)
            vector = torch.zeros_like(own)
            vector[: self.width] = aggregate.vector
            self.exchange.take_from_first(vector)
            return Aggregate(vector, aggregate.weight), state
        columns = self.exchange.columns(own)
        table = None
        if self.rule.reads == "distances":
            # Padding is zero in every row, so it adds nothing to any distance.
            table = self.exchange.total(distances.squared_distances(columns))
        aggregate = self.rule.on_columns(columns, self.f, table)
        return Aggregate(self.exchange.joined(aggregate.vector), aggregate.weight), {}
