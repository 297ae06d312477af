"""SafeGuard: leave out workers that drift away from the others over many rounds, however small each step is."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg import distances, matrix
from gyroscope.rules.base import Aggregate, ContextualRule, RuleContext, RuleState


@dataclasses.dataclass(frozen=True)
class SafeGuard(ContextualRule):
    """The mean of the rows of workers whose sums over the last rounds are near the others'. Needs n >= 2f + 1.

    The rule adds up each worker's rows over a short and a long window. In either, the central worker is the one whose
    majority of nearest sums (itself included) is within the smallest radius. A worker farther from it than `factor`
    times that radius is left out, from this round until the long window ends; then everything starts again, so that
    bad luck excludes no worker for ever.

    Guarantee: honest sums drift apart like the square root of the number of rounds, but a bias in one direction grows
    like the number itself. So the rule detects, in time, a small and steady deviation that no single round shows. In
    the first round of a window the result is within (2 factor + 3) times the distance of the farthest honest row from
    their mean; later ones depend on the sums.

    A row with a NaN or an infinity is left out of its round, and counts in its sender's sums as the result of that
    round: missing a round is not held against a worker. A row of 3e38 is far from all others, and so is its sender
    until both windows end. Cost: 2 tables of distances, O(n^2 d). The state is 2 n vectors. Weights: equal for the
    workers that are not left out.

    Other implementations: this is the paper's double safeguard with the radius found from the sums, as in its
    experiments. In the paper the row that excludes its sender still counts in that round, and an excluded worker stays
    excluded. The paper divides each row by the number of good workers before it adds it up, takes the centre among the
    good workers, and adds a random perturbation to the update; this rule does none of the three. It does not use f.
    """

    short: int = registry.number(20, "a whole number of rounds of at least 1", lambda value: value >= 1, whole=True)
    long: int = registry.number(100, "a whole number of rounds of at least 1", lambda value: value >= 1, whole=True)
    factor: float = registry.number(1.5, "a finite number of at least 1", lambda factor: factor >= 1)

    name = "safeguard"
    summary = "the mean of the workers whose rows, added up over many rounds, stay near the others'"
    needs = "n >= 2f + 1"
    paper = "Allen-Zhu et al. 2021"
    uses = frozenset({"state"})
    tracks_workers = True
    unsupported: ClassVar = {"mean at f = 0": "far workers are left out for any f"}

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        age = int(context.state["age"]) if context.state else 0
        good = context.state["good"] if age % self.long else torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        present = matrix.squared_lengths(rows).isfinite()
        complete = rows.is_cpu and bool(present.all())  # (on a GPU the host would have to wait for the answer)
        own = rows if complete else rows.masked_fill(~present.unsqueeze(1), 0.0)
        before = {window: context.state[window] for window, rounds in self._windows() if age % rounds}
        sums = {window: own + before[window] if window in before else own.clone() for window, _ in self._windows()}
        near = present
        for window in sums if before else ["short"]:  # in the first round both sums are the same
            near = near & self._near(sums[window], present)
        kept = good & near
        kept = torch.where(kept.any(), kept, near)  # if nobody would be left, only this round's distances count
        chosen = kept.to(torch.float64)
        vector = matrix.weighted_sum(rows, chosen, chosen.sum())
        for window in () if complete else sums:
            sums[window] = torch.where(present.unsqueeze(1), sums[window], sums[window] + vector)
        state = {**sums, "good": kept | (good & ~present), "age": torch.tensor(age + 1)}
        return Aggregate(vector, chosen / chosen.sum()), state

    def _windows(self) -> tuple[tuple[str, int], ...]:
        return ("short", self.short), ("long", self.long)

    def _near(self, sums: Tensor, present: Tensor) -> Tensor:
        """Return (n,) of bool: which workers are near the central one of those present."""
        n = sums.shape[0]
        together = present.unsqueeze(0) & present.unsqueeze(1)
        table = distances.squared_distances(sums).masked_fill(~together, torch.inf)
        radii = table.sort(dim=1).values[:, n // 2]
        central = radii.argmin()
        from_it = table.index_select(0, central.unsqueeze(0))[0]
        return from_it.isfinite() & (from_it <= self.factor**2 * radii.min())
