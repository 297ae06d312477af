"""`RobustAggregator` for the ranks of a process group: each rank aggregates a share of the columns for all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._linalg import distances, matrix
from gyroscope.distributed.collectives import Exchange
from gyroscope.momentum import RobustAggregator
from gyroscope.rules import Aggregate, RuleContext, RuleState


class ShardedAggregator(RobustAggregator):
    """Aggregate the rows of all ranks: each calls `step` with its own row (1, d), and all get the same bits.

    A rule that reads columns or distances works on an (n, d/n) matrix per rank; one that reads whole rows on the
    (n, d) matrix on every rank.
    """

    def __init__(
        self, exchange: Exchange, rule: rules.Rule | str, f: int, *, watch: bool = False, **options: Any
    ) -> None:
        """Begin with the first round.

        Args:
            exchange: between the ranks.
            rule, f, options: as of `RobustAggregator`.
            watch: tell after each step, in `notice`, how far every rank's row was from the result.
        """
        super().__init__(rule, f, **options)
        self.rule.check_feasible(exchange.n, f)
        rules.refuse_trusted(self.rule, "RobustSGD")
        self.exchange = exchange
        self.width = 0
        """The number of columns without the padding to a multiple of the number of ranks."""
        self.watch, self.news = watch, 0.0
        """A number that this rank tells the others with its next result, if it is the first one."""
        self.notice = torch.zeros(0)
        """(n + 1,), float64: the squared distance of each row from the result, inf for rows that are not finite; then
        the first rank's news. The same bits on every rank."""

    def load_rule_state(self, rounds: int, state: RuleState) -> None:
        """Continue with the rule's state of so many rounds; momentum stays as it is."""
        self.rounds, self._rule_state = rounds, state

    def _aggregate(self, rows: Tensor, context: RuleContext) -> tuple[Aggregate, RuleState]:
        own = rows[0]
        if self.rule.reads == "rows":
            # Each rank computes it, so that an error in a rule stops them all; rules may be random, so rank 0's counts.
            everyone = self.exchange.rows(own)[:, : self.width]
            aggregate, state = self.rule.step(everyone, self.f, context)
            padding = own.new_zeros(len(own) - self.width)
            told = self._told(everyone, aggregate.vector)
            vector = torch.cat([aggregate.vector, padding, told])
            self.exchange.take_from_first(vector)
            self._hear(vector[len(own) :].unsqueeze(0))
            return Aggregate(vector[: len(own)], aggregate.weight), state
        columns = self.exchange.columns(own)
        table = None
        if self.rule.reads == "distances":
            # Padding is zero in every row, so it adds nothing to any distance.
            table = self.exchange.total(distances.squared_distances(columns))
        aggregate = self.rule.on_columns(columns, self.f, table)
        # A rank's part of the distances travels with its part of the result: another exchange would cost as much again.
        piece = torch.cat([aggregate.vector, self._told(columns, aggregate.vector)])
        pieces = self.exchange.joined(piece).view(-1, len(piece))
        width = columns.shape[1]
        self._hear(pieces[:, width:])
        return Aggregate(pieces[:, :width].reshape(-1), aggregate.weight), {}

    def _told(self, rows: Tensor, vector: Tensor) -> Tensor:
        """Return this rank's part of the notice: float64 values in the bits of the rows' own type."""
        if not self.watch:
            return vector[:0]
        # An aggregate that is not finite must not make rows look so that are.
        squared = matrix.squared_lengths(rows, vector.nan_to_num(0.0, 0.0, 0.0))
        return torch.cat([squared, squared.new_tensor([self.news])]).view(rows.dtype)

    def _hear(self, told: Tensor) -> None:
        """Add up the parts of the notice, one row for each rank, in the order of the ranks."""
        if self.watch:
            first, *others = told.clone(memory_format=torch.contiguous_format).view(torch.float64)
            self.notice = first
            for other in others:
                self.notice[:-1] += other[:-1]
