"""`RobustAggregator`: from the workers' rows to the direction of the update."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg import matrix
from gyroscope.momentum import worker_weights
from gyroscope.momentum.participation import Participation
from gyroscope.momentum.worker_momentum import WorkerMomentum, check_mu
from gyroscope.rules import Aggregate, Rule, RuleContext, RuleState
from gyroscope.rules.base import check_f


class Placement(NamedTuple):
    """Where momentum is computed."""

    name: str
    summary: str
    paper: str = "-"


PLACEMENTS: dict[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement(
            "workers",
            "before the rule, at each worker: G = F(sum of mu^(t-u) g_1, ..., sum of mu^(t-u) g_n)",
            "El Mhamdi, Guerraoui, Rouault 2020",
        ),
        Placement(
            "server",
            "after the rule, at the server: G = sum of mu^(t-u) F(g_1, ..., g_n)",
            "the usual formulation",
        ),
        Placement("none", "plain SGD: nobody accumulates"),
        Placement(
            "server-kept",
            "before the rule, at the server, which accumulates each worker's gradients: workers send plain gradients",
            "this one's idea, kept elsewhere",
        ),
    )
}


BASIC_PLACEMENTS = {name: PLACEMENTS[name] for name in ("workers", "server", "none")}
"""Those that need nothing of the server but the rule and its result: they work wherever gradients are exchanged."""


def check_placement(name: str, mu: float, nesterov: bool, known: Mapping[str, Placement] = PLACEMENTS) -> None:
    """Raise where there is no such placement of momentum, or no such momentum."""
    if name not in known:
        raise UnknownNameError("momentum placement", name, known)
    check_mu(mu)
    if name == "none" and nesterov:
        raise ConfigError("nesterov needs a momentum: choose the placement 'workers' or 'server'")


@dataclasses.dataclass(frozen=True, eq=False)
class Update:
    """What the server does with the rows of one round."""

    vector: Tensor
    """(d,): the direction of the update, momentum at the server included: parameters -= lr * vector."""
    aggregate: Aggregate
    """What the rule returned: its vector before momentum at the server, and each worker's share in it."""
    rows: Tensor
    """(n, d): what the rule was given: the rows sent, with `server-kept` the accumulated ones, and of workers that were
    not asked their last rows, or NaN where they are left out."""

    @property
    def weight(self) -> Tensor | None:
        """(n,): each worker's share in the aggregate; None for rules without such shares."""
        return self.aggregate.weight


class RobustAggregator:
    """Aggregate n rows, up to f of them Byzantine, into the direction of the update: rule, then momentum if it is here.

    With momentum at the workers (the default) the rows have it in them already, from `WorkerMomentum`; the rule's
    result is the direction. With "server" the aggregator accumulates the rule's results. With "server-kept" it
    accumulates each worker's rows before the rule, which takes n * d values: when nobody lies that equals "workers",
    and a worker that joins late or restarts has lost nothing.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> parameters = torch.zeros(2)
        >>> server = gy.RobustAggregator("median", f=1)
        >>> rows = torch.tensor([[1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0], [float("nan"), -1e30]])
        >>> parameters -= 0.5 * server.step(rows).vector
        >>> parameters
        tensor([-1.5000, -1.5000])
    """

    def __init__(
        self,
        rule: Rule | str,
        f: int,
        *,
        momentum: str = "workers",
        mu: float = 0.9,
        nesterov: bool = False,
        seed: int = 0,
        participation: Participation | None = None,
        copies: Sequence[int] | None = None,
    ) -> None:
        """Begin with the first round.

        Args:
            rule: a rule or its spec, such as "krum" or "nnm+median".
            f: how many rows may be Byzantine.
            momentum: where momentum is: "workers", "server", "server-kept" or "none".
            mu: the momentum factor of "server" and "server-kept".
            nesterov: use Nesterov's look-ahead there.
            seed: of a rule that draws at random.
            participation: who is asked in a round, where not everybody is; its `f` replaces this one. There is no form
                of it with "server-kept".
            copies: how often each worker's row counts; None for once (`gyroscope.momentum.worker_weights`).

        Raises:
            UnknownNameError: there is no such rule or placement.
            ConfigError: mu is out of range.
        """
        check_placement(momentum, mu, nesterov)
        self.rule = rules.parse(rule)
        check_f(f)
        self.f = f if participation is None else participation.f
        """How many Byzantine rows the rule is told to tolerate."""
        self.copies = None if copies is None else torch.tensor(copies)
        if copies is not None:
            self.f = worker_weights.byzantine(copies, self.f)
        self.momentum, self.seed, self.participation = momentum, seed, participation
        self.rounds = 0
        """How many rounds were aggregated."""
        self._rule_state: RuleState = {}
        self.per_worker = WorkerMomentum(mu, nesterov=nesterov) if momentum == "server-kept" else None
        """Each worker's momentum, where the server accumulates it."""
        self.after_rule = WorkerMomentum(mu, nesterov=nesterov) if momentum == "server" else None
        """The momentum of the rule's results, where it is here."""
        self._accumulated: Tensor | None = None

    def step(self, rows: Tensor | Sequence[Tensor], *, trusted: Tensor | None = None) -> Update:
        """Aggregate the rows of one round.

        Args:
            rows: (n, d), or n vectors; row i is the same worker's in every round. They do not change. Rows of workers
                that the participation does not ask are not read.
            trusted: (d,), a gradient at samples that the server itself holds, for rules that compare with it. Where
                workers send momentum, the server computes it for this gradient, too: `fltrust` takes its length over.

        Returns:
            The update. With "server-kept" its `rows` are overwritten by the next step. If more than f rows are not
            finite, its `vector` may not be either: look before you apply it.

        Raises:
            InfeasibleError: the rule cannot tolerate f of n workers.
            RowsError: the rows are not n floating-point vectors of one length, type and device.
        """
        shown = matrix.check(rows)
        if self.per_worker is not None:
            if self._accumulated is None or self._accumulated.shape != shown.shape:
                self._accumulated = torch.empty_like(shown)
            shown = self.per_worker.update(shown, out=self._accumulated)
        participation, step = self.participation, self.rounds
        if participation is not None:
            shown = participation.take(step, shown)
        aggregate, self._rule_state = self._aggregate(self.repeated(shown), self.rule_context(trusted))
        if self.copies is not None and aggregate.weight is not None:
            whose = self.repeated(torch.arange(len(shown), device=aggregate.weight.device))
            share = aggregate.weight.new_zeros(len(shown)).index_add_(0, whose, aggregate.weight)
            aggregate = aggregate._replace(weight=share)
        if participation is not None:
            shown = participation.of_all(step, shown, torch.nan)
            if aggregate.weight is not None:
                aggregate = aggregate._replace(weight=participation.of_all(step, aggregate.weight, 0.0))
        vector = aggregate.vector if self.after_rule is None else self.after_rule.update(aggregate.vector)
        self.rounds += 1
        return Update(vector, aggregate, shown)

    def repeated(self, rows: Tensor, workers: Tensor | None = None) -> Tensor:
        """Return the rows, and behind them further copies of those that count more than once.

        Args:
            rows: one for each of the workers.
            workers: their numbers; None for all n.
        """
        if self.copies is None:
            return rows
        more = (self.copies if workers is None else self.copies[workers.cpu()]) - 1
        return torch.cat([rows, rows[torch.repeat_interleave(more).to(rows.device)]])

    @property
    def mu(self) -> float | None:
        """The momentum factor here; None where there is no momentum here. A schedule may set it between steps."""
        accumulator = self.per_worker or self.after_rule
        return None if accumulator is None else accumulator.mu

    @mu.setter
    def mu(self, mu: float) -> None:
        for accumulator in (self.per_worker, self.after_rule):
            if accumulator is not None:
                accumulator.mu = mu

    def rule_context(self, trusted: Tensor | None = None) -> RuleContext:
        """Return what the rule will know besides the rows in the next step."""
        return RuleContext(self.rounds, self.seed, self._rule_state, trusted)

    def preview(self, rows: Tensor) -> Tensor:
        """Return the rows that the rule would be given for these, and change nothing."""
        return rows if self.per_worker is None else self.per_worker.preview(rows)

    def state_dict(self) -> dict[str, Any]:
        """Return all that later rounds depend on: tensors and numbers only."""
        return {
            "rounds": self.rounds,
            "rule": dict(self._rule_state),
            "momentum": (self.per_worker or self.after_rule or WorkerMomentum()).state_dict(),
            **({} if self.participation is None else {"participation": self.participation.state_dict()}),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.rounds, self._rule_state = state["rounds"], dict(state["rule"])
        accumulator = self.per_worker or self.after_rule
        if accumulator is not None:
            accumulator.load_state_dict(state["momentum"])
        if self.participation is not None:
            self.participation.load_state_dict(state["participation"])

    def _aggregate(self, rows: Tensor, context: RuleContext) -> tuple[Aggregate, RuleState]:
        """Apply the rule. (A variant that shards the columns overrides this.)"""
        return self.rule.step(rows, self.f, context)
