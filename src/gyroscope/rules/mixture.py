"""Mixtures: another rule in each round, drawn at random or in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope.rules.base import (
    Aggregate,
    ContextualRule,
    Promise,
    Rule,
    RuleContext,
    RuleState,
    Uses,
    check_f,
    labelled,
)
from gyroscope.rules.composition import Composed, formula

MIXTURES: dict[str, str] = {
    "random": "one of the rules in each round, drawn at random",
    "round-robin": "the rules in turn, one in each round",
}
"""The orders in which a mixture takes its rules. Written `random:krum/median`."""


@dataclasses.dataclass(frozen=True)
class Mixture(ContextualRule):
    """Another one of several rules in each round, so that no attack made for one of them fits every round.

    order: "random" draws one anew for each round, all alike (a rule that is given twice comes twice as often);
    "round-robin" takes them in turn. Needs as many workers as the most demanding of them. Resilient where all are. An
    omniscient adversary knows which one comes: what is gained is that it must be beaten by all of them.

    Written `random:krum/median`: everything after the colon is rules with a `/` between them, each with its parameters
    and pre-aggregations (`random:nnm+krum:m=1/median`); pre-aggregations before the mixture are for all of them
    (`nnm+random:krum/median`). A mixture within a mixture is not possible.

    Each rule has a memory of its own, which stays as it is while others have their turn. Cost, weights and what is
    done to NaN are those of the rule whose turn it is.
    """

    rules: Sequence[Rule]
    order: Literal["random", "round-robin"] = "random"

    def __post_init__(self) -> None:
        if self.order not in MIXTURES:
            raise UnknownNameError("order", self.order, MIXTURES, of="a mixture")
        object.__setattr__(self, "rules", tuple(self.rules))
        for rule in self.rules:
            inner = rule.rule if isinstance(rule, Composed) else rule
            if not isinstance(inner, Rule) or isinstance(inner, Mixture):
                raise ConfigError(f"a mixture is one of rules, got {rule!r}: list the rules themselves")
        if len(self.rules) < 2:
            raise ConfigError(f"a mixture needs at least two rules: write {self.order}:krum/median")
        chance: frozenset[Uses] = frozenset({"randomness"} if self.order == "random" else ())
        # What other rules say of their class, this one knows of itself.
        facts: dict[str, object] = {
            "name": self.order,
            "needs": formula(self.min_workers),
            "resilient": all(rule.resilient for rule in self.rules),
            "promise": self._promise(),
            "knows_workers": any(rule.knows_workers for rule in self.rules),
            "uses": chance.union(*(rule.uses for rule in self.rules)),
            "lacks": {key: why for rule in reversed(self.rules) for key, why in rule.lacks.items()},
        }
        for fact, value in facts.items():
            object.__setattr__(self, fact, value)

    def __str__(self) -> str:
        return f"{self.order}:" + "/".join(map(str, self.rules))

    def min_workers(self, f: int) -> int:
        return max(rule.min_workers(f) for rule in self.rules)

    def reach(self, n: int, f: int) -> float:
        return max(rule.reach(n, f) for rule in self.rules) if self.promise in ("range", "distance", "norm") else 0.0

    def trusts(self, n: int) -> tuple[int, ...]:
        return tuple(sorted({worker for rule in self.rules for worker in rule.trusts(n)}))

    def _promise(self) -> Promise:
        """What all of them promise."""
        promises = {rule.promise for rule in self.rules}
        if len(promises) == 1:
            return promises.pop()
        return "none" if "none" in promises else "finite"

    def check_feasible(self, n: int, f: int) -> None:
        check_f(f)
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
        aggregate, remembered = self.rules[turn].step(rows, f, context.within(part))
        others = {key: value for key, value in context.state.items() if not key.startswith(f"{part}/")}
        return aggregate, {**others, **labelled(remembered, part)}
