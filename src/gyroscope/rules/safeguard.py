"""SafeGuard: who drifts away from the others over many rounds is left out, however small each step of it is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import blockwise
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules.base import Aggregate, ContextualRule, Property, RuleContext, RuleState


@dataclasses.dataclass(frozen=True)
class SafeGuard(ContextualRule):
    """The mean of the rows of those whose sums over the last rounds lie near the others'. Needs n >= 2f + 1.

    Each worker's rows are added up over a short and a long window. In either, the central worker is the one whose
    majority of nearest sums (itself included) lies within the smallest radius, and who is farther from it than `factor`
    times that radius is left out, from this very round until the long window ends; then everything begins anew, so
    that nobody is lost for ever by bad luck.

    Guarantee: honest sums drift apart like the square root of the number of rounds, a bias in one direction grows like
    the number itself, so a small but steady lie, which no rule that looks at one round can see, is seen in time. In the
    first round of a window the result is within (2 factor + 3) times the distance of the farthest honest row from
    their mean; later ones depend on the sums.

    A row that holds a NaN or an infinity is left out of its round, and counts in its sender's sums as the result of
    that round: to miss a round is no crime. A row of 3e38 is far from all, and so is its sender until both windows end.
    Cost: 2 tables of distances, O(n^2 d). It remembers 2 n vectors. Weights: equal for those not left out.

    Who does what: this is the paper's double safeguard with the radius found from the sums, as in its experiments.
    There the row that convicts its sender still counts in that round, and who is left out stays so. f is not used.
    """

    short: int = 20
    long: int = 100
    factor: float = 1.5

    name = "safeguard"
    summary = "the mean of those whose rows, added up over many rounds, stay near the others'"
    needs = "n >= 2f + 1"
    paper = "Allen-Zhu et al. 2021"
    uses = frozenset({"state"})
    knows_workers = True
    lacks: ClassVar[Mapping[Property, str]] = {"mean at f = 0": "who is far is left out whatever f is"}

    def __post_init__(self) -> None:
        for name in ("short", "long"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"SafeGuard's {name} must be a whole number of rounds of at least 1, got {value!r}")
        number = isinstance(self.factor, (int, float)) and not isinstance(self.factor, bool)
        if not number or not 1 <= self.factor < math.inf:
            raise ConfigError(f"SafeGuard's factor must be a finite number of at least 1, got {self.factor!r}")

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def advance(self, rows: Tensor, f: int, context: RuleContext) -> tuple[Aggregate, RuleState]:
        age = int(context.state["age"]) if context.state else 0
        good = context.state["good"] if age % self.long else torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        present = blockwise.squared_lengths(rows).isfinite()
        sums = {}
        near = present
        for window, rounds in (("short", self.short), ("long", self.long)):
            own = rows.masked_fill(~present.unsqueeze(1), 0.0)
            sums[window] = own.add_(context.state[window]) if age % rounds else own
            near = near & self._near(sums[window], present)
        kept = good & near
        kept = torch.where(kept.any(), kept, near)  # never nobody: then this round's verdict alone counts
        chosen = kept.to(torch.float64)
        vector = blockwise.combined(rows, chosen.unsqueeze(0), chosen.sum().unsqueeze(0))[0]
        for window in sums:
            sums[window] = torch.where(present.unsqueeze(1), sums[window], sums[window] + vector)
        memory = {**sums, "good": kept | (good & ~present), "age": torch.tensor(age + 1)}
        return Aggregate(vector, chosen / chosen.sum()), memory

    def _near(self, sums: Tensor, present: Tensor) -> Tensor:
        """Who is near the central one of those that are present."""
        n = sums.shape[0]
        together = present.unsqueeze(0) & present.unsqueeze(1)
        table = squared_distances(sums).masked_fill(~together, torch.inf)
        radii = table.sort(dim=1).values[:, n // 2]
        central = radii.argmin()
        from_it = table.index_select(0, central.unsqueeze(0))[0]
        return from_it.isfinite() & (from_it <= self.factor**2 * radii.min())
