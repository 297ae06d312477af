"""Mixtures: another rule in each round, drawn at random or in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope.rules.base import Aggregate, ContextualRule, Guarantee, Rule, RuleContext, RuleState, Uses, scoped
from gyroscope.rules.composition import Composed, formula, share_f

MIXTURES: dict[str, str] = {
    "random": "one of the rules in each round, drawn at random",
    "round-robin": "the rules in turn, one in each round",
}
"""The orders in which a mixture applies its rules. Written `random:krum/median`."""


@dataclasses.dataclass(frozen=True)
class Mixture(ContextualRule):
    """Another one of several rules in each round, so that no attack made for one of them fits every round.

    order: "random" draws a rule uniformly in each round (a rule listed twice is drawn twice as often); "round-robin"
    applies them in turn. A mixture needs as many workers as the most demanding of its rules.

    Guarantee: what all of its rules guarantee. An omniscient adversary knows which rule each round applies; the mixture
    only forces it to defeat all of them.

    Written `random:krum/median`: a `/` separates the rules after the colon, each with its parameters and
    pre-aggregations (`random:nnm+krum:m=1/median`); pre-aggregations before the mixture apply to all of them
    (`nnm+random:krum/median`). A mixture cannot contain a mixture.

    Each rule keeps a state of its own, which the rounds of the other rules do not change. Cost, weights and the
    treatment of NaN are those of the rule that is applied.
    """

    rules: Sequence[Rule]
    order: Literal["random", "round-robin"] = "random"

    def __post_init__(self) -> None:
        if self.order not in MIXTURES:
            raise UnknownNameError("order", self.order, MIXTURES, of="a mixture")
        for rule in self.rules:
            inner = rule.rule if isinstance(rule, Composed) else rule
            if not isinstance(inner, Rule) or isinstance(inner, Mixture):
                raise ConfigError(f"a mixture is one of rules, got {rule!r}: list the rules themselves")
        if len(self.rules) < 2:
            raise ConfigError(f"a mixture needs at least two rules: write {self.order}:krum/median")
        rules = share_f(self, self.rules)
        chance: frozenset[Uses] = frozenset({"randomness"} if self.order == "random" else ())
        # What is a class variable of other rules depends here on the parts.
        vars(self).update(rules=rules)
        vars(self).update(
            name=self.order,
            needs=formula(self.min_workers),
            resilient=all(rule.resilient for rule in rules),
            guarantee=self._guarantee(),
            tracks_workers=any(rule.tracks_workers for rule in rules),
            uses=chance.union(*(rule.uses for rule in rules)),
            unsupported={key: why for rule in reversed(rules) for key, why in rule.unsupported.items()},
        )

    def __str__(self) -> str:
        return f"{self.order}:" + "/".join(map(str, self.rules))

    def min_workers(self, f: int) -> int:
        return max(rule.min_workers(f) for rule in self.rules)

    def bound_factor(self, n: int, f: int) -> float:
        bounded = self.guarantee in ("range", "distance", "norm")
        return max(rule.bound_factor(n, f) for rule in self.rules) if bounded else 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        return tuple(sorted({worker for rule in self.rules for worker in rule.trusts(n)}))

    def _guarantee(self) -> Guarantee:
        guarantees = {rule.guarantee for rule in self.rules}
        if len(guarantees) == 1:
            return guarantees.pop()
        return "none" if "none" in guarantees else "finite"

    def check_feasible(self, n: int, f: int) -> None:
        f = self.resolve_f(f)
        for rule in sorted(self.rules, key=lambda rule: -rule.min_workers(f)):
            try:
                rule.check_feasible(n, f)
            except (ConfigError, InfeasibleError) as problem:
                raise type(problem)(f"{problem} (in {self})") from None

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        if self.order == "random":
            turn = int(torch.randint(len(self.rules), (), generator=context.generator("turn")))
        else:
            turn = context.step % len(self.rules)
        part = f"{turn}:{self.rules[turn].name}"
        aggregate, state = self.rules[turn].step(rows, f, context.within(part))
        others = {key: value for key, value in context.state.items() if not key.startswith(f"{part}/")}
        return aggregate, {**others, **scoped(state, part)}
