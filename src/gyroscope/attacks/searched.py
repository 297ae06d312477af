"""Searched: in every round the direction, formation and magnitude that do most damage to the configured rule."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks._compressed_rule import CompressedRule, Kind, agree, kind_for
from gyroscope.attacks.base import Attack, AttackContext, MissingKnowledgeError

_MAGNITUDES = tuple(0.1 * 1.6**step for step in range(10))
"""Multiples of the honest rows' root-mean-square distance from their mean, which a full search tries."""
_BETWEEN = tuple(1.6 ** (step / 6) for step in range(-3, 4))
"""Multiples of the best of these, which it tries next for the best few directions and formations."""
_BEST = 5
_NEAR = (0.7, 0.85, 1.0, 1.2, 1.4)
"""Multiples of the last magnitude, which the rounds between full searches try."""
_REFINEMENTS = (0.84, 1.19, 0.92, 1.09, 0.96, 1.04, 0.98, 1.02)
_PRINCIPAL = 2
_FORMATIONS = ("together", "huddled", "disguised", "ladder")
_HUDDLE = 0.72
"""How far a huddled row is from the others, compared with honest rows: nearer than these, and not as near as copies."""


class Plan(NamedTuple):
    """What the f workers send: an honest position plus magnitude * direction, each in their formation."""

    direction: int
    formation: int
    magnitude: float


@dataclasses.dataclass(frozen=True)
class Searched(Attack):
    """Try directions, formations and magnitudes on the configured rule, and send what does most damage.

    goal: `distance`, as far from the honest mean as possible; `against`, as far against it; `drift`, as far along one
        direction that the adversary keeps in all rounds.
    drift: that direction: `std` and `mean`, minus the honest rows' deviation and mean of the first round; `signs`,
        random signs; `home`, from the first parameters to the present ones, so that the update undoes what was learned.
    formation: `together`, all at one place; `disguised`, each at an honest row, shifted; `huddled`, the same, but
        nearer to each other than honest rows are; `ladder`, evenly from the mean to twice the magnitude; `auto`, the
        one of these that does most damage.
    every: rounds from one full search to the next. In between the adversary adapts the magnitude only.

    Directions for the first two goals: minus the mean, minus the standard deviation, both ways along the principal
    directions of the honest rows, and the direction of the round before. A full search applies the rule to some 300
    candidates, other rounds to 13. Where the rule depends on inner products only (most rules that read whole rows), the
    adversary computes it in the span of the rows and of the rule's state, in some 50 coordinates in place of d: each
    full search compares the result with the rule's own. For other rules 4,096 random columns stand for all.
    """

    goal: Literal["distance", "against", "drift"] = registry.choice("distance", ("distance", "against", "drift"))
    drift: Literal["std", "mean", "signs", "home"] = registry.choice("std", ("std", "mean", "signs", "home"))
    formation: Literal["together", "huddled", "disguised", "ladder", "auto"] = registry.choice(
        "auto", (*_FORMATIONS, "auto")
    )
    every: int = registry.count(10)

    name = "searched"
    summary = "searches for the direction, formation and magnitude that do most damage to the configured rule"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        if context.rule is None:
            context.outcome(honest)  # raises the error that says what is missing
        mean = honest.mean(dim=0)
        lengths = torch.linalg.vector_norm(honest - mean, dim=1, dtype=torch.float64)
        scale = float(lengths.square().mean().sqrt()) or float(torch.linalg.vector_norm(mean, dtype=torch.float64))
        if not 0 < scale < math.inf:
            return mean.expand(f, -1)
        search = _Search(self, torch.cat([honest, self._extra(honest, mean, context)]), len(honest), f, scale, context)
        plan = search.best()
        context.state["plan"] = torch.tensor(plan, dtype=torch.float64)
        sent = search.coefficients(plan).to(honest) @ search.vectors
        step = sent.mean(dim=0) - mean
        context.state["last"] = step / torch.linalg.vector_norm(step).clamp_min(torch.finfo(step.dtype).tiny)
        return sent

    def _extra(self, honest: Tensor, mean: Tensor, context: AttackContext) -> Tensor:
        """Return directions outside of the rows' own span: the one to drift along, or the deviation and the last."""
        state = context.state
        deviation = torch.zeros_like(mean)
        if len(honest) > 1:
            deviation = -(context.moments or CachedMoments(honest)).std
        if self.goal != "drift":
            return torch.stack([deviation, *([state["last"]] if "last" in state else [])])
        if self.drift == "home":
            if context.parameters is None:
                raise MissingKnowledgeError("pushes the model back to its first parameters: give parameters=vector")
            state.setdefault("home", context.parameters.clone())
            away = context.parameters - state["home"]
            return (away.to(mean) if bool(away.any()) else -mean).unsqueeze(0)
        if "direction" not in state:
            signs = context.uniform(len(mean)).sub_(0.5).sign_().to(mean)
            state["direction"] = {"std": deviation, "mean": -mean, "signs": signs}[self.drift].clone()
        return state["direction"].unsqueeze(0)


class _Search:
    """The candidates of one round, as combinations of few vectors, and the damage that each does."""

    def __init__(self, attack: Searched, vectors: Tensor, h: int, f: int, scale: float, context: AttackContext) -> None:
        self.attack, self.vectors, self.h, self.f, self.scale, self.context = attack, vectors, h, f, scale, context
        self._compress("columns" if "by_columns" in context.state else kind_for(vectors.shape[1], context))

    def _compress(self, kind: Kind) -> None:
        """Choose in which coordinates to apply the rule; directions are combinations of vectors."""
        self.rule = CompressedRule(self.vectors, self.context, kind)
        self.honest = self.rule.coordinates[: self.h]
        self.mean = self.honest.mean(dim=0)
        self.average = torch.zeros(len(self.vectors), dtype=torch.float64)
        self.average[: self.h] = 1 / self.h
        self.directions = self._directions()

    def _directions(self) -> Tensor:
        """Return (q, k): directions of unit length as combinations of the vectors."""
        k = len(self.vectors)
        extra = torch.eye(k, dtype=torch.float64)[self.h :]
        if self.attack.goal == "drift":
            found = extra
        else:
            deviations = self.honest - self.mean
            _, axes = torch.linalg.eigh(deviations @ deviations.T)
            main = torch.zeros(min(_PRINCIPAL, self.h), k, dtype=torch.float64)
            main[:, : self.h] = axes[:, -len(main) :].T
            main -= main[:, : self.h].sum(dim=1, keepdim=True) * self.average
            found = torch.cat([-self.average.unsqueeze(0), extra, main, -main])
        whole = found.to(self.vectors) @ self.vectors if self.rule.kind == "columns" else found @ self.rule.coordinates
        lengths = torch.linalg.vector_norm(whole, dim=1, keepdim=True, dtype=torch.float64)
        return torch.where(lengths > 0, found / lengths.clamp_min(1e-300), 0.0)

    def coefficients(self, plan: Plan) -> Tensor:
        """Return (f, k): the Byzantine rows as combinations of the vectors."""
        offset = self.scale * plan.magnitude * self.directions[plan.direction]
        if _FORMATIONS[plan.formation] in ("disguised", "huddled"):
            positions = torch.eye(len(self.vectors), dtype=torch.float64)[torch.arange(self.f) % self.h]
            kept = 1.0 if _FORMATIONS[plan.formation] == "disguised" else _HUDDLE
            return self.average + kept * (positions - self.average) + offset
        if _FORMATIONS[plan.formation] == "ladder":
            return self.average + offset * torch.linspace(0, 2, self.f + 1, dtype=torch.float64)[1:, None]
        return (self.average + offset).expand(self.f, -1)

    def damage(self, plan: Plan) -> float:
        """Return what the rule's result loses in these coordinates."""
        return self._measure(self.honest, self.coefficients(plan) @ self.rule.coordinates, plan)

    def _measure(self, honest: Tensor, byzantine: Tensor, plan: Plan) -> float:
        result = self.rule(torch.cat([honest, byzantine]))
        byzantine, mean = byzantine.double(), honest.mean(dim=0).double()
        if self.attack.goal == "distance":
            value = float(torch.linalg.vector_norm(result - mean))
        elif self.attack.goal == "against":
            value = -float(result @ mean)
        else:
            value = float((result - mean) @ (byzantine.mean(dim=0) - mean)) / (self.scale * plan.magnitude)
        return math.inf if math.isnan(value) else value

    def best(self) -> Plan:
        """Return the plan that does most damage, of all or of those near the last round's."""
        last = self.context.state.get("plan")
        if last is None or self.context.step % self.attack.every == 0:
            plan = self._searched()
            if self.rule.kind == "inner products" and not self._agrees(plan):
                self.context.state["by_columns"] = torch.ones(1)
                self._compress("columns")
                plan = self._searched()
            return plan
        direction, formation, magnitude = last.tolist()
        kept = min(int(direction), len(self.directions) - 1)
        return self._refined([Plan(kept, int(formation), magnitude * factor) for factor in _NEAR])

    def _searched(self) -> Plan:
        """Return the best plan of a full search: a coarse one everywhere, then a finer one around the best few."""
        wanted = self.attack.formation
        formations = range(len(_FORMATIONS)) if wanted == "auto" else [_FORMATIONS.index(wanted)]
        best = {}
        for direction, formation in itertools.product(range(len(self.directions)), formations):
            tried = {plan: self.damage(plan) for plan in (Plan(direction, formation, c) for c in _MAGNITUDES)}
            plan = max(tried, key=tried.__getitem__)
            best[plan] = tried[plan]
        few = sorted(best, key=best.__getitem__)[-_BEST:]
        return self._refined([plan._replace(magnitude=plan.magnitude * factor) for plan in few for factor in _BETWEEN])

    def _refined(self, plans: list[Plan]) -> Plan:
        tried = {plan: self.damage(plan) for plan in plans}
        best = max(tried, key=tried.__getitem__)
        for factor in _REFINEMENTS:
            plan = best._replace(magnitude=best.magnitude * factor)
            tried[plan] = self.damage(plan)
            best = max(best, plan, key=tried.__getitem__)
        return best

    def _agrees(self, plan: Plan) -> bool:
        """Return whether the rule itself does to the rows what it does to their coordinates."""
        sent = self.coefficients(plan).to(self.vectors) @ self.vectors
        return agree(self.damage(plan), self._measure(self.vectors[: self.h], sent, plan))
