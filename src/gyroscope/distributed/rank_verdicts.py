"""`RankVerdicts`: which ranks look bad, from what every step shows of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gyroscope._core.errors import ExchangeError

Verdict = Literal["ok", "suspect", "non-finite", "missing"]

FAR = 10.0
"""A row so many times farther from the aggregate than the middle one looks bad in this step. An honest rank may send
one, too, when its batch is unlike the others, most of all in the first steps."""
GARBAGE = 1000.0
"""A row so many times farther is garbage, whatever its cause."""
_MEMORY = 0.95
"""With which factor past steps are forgotten: some 20 of them count."""
_SETTLED = 20
"""From how many steps on more than f ranks that are often far off stop the job."""
_SUSPECT = 0.5
"""A rank is suspect when this part of its remembered steps looked bad."""


class Seen(NamedTuple):
    """What one step shows of a rank's row."""

    finite: bool
    distance: float
    """From the aggregate, Euclidean."""
    missing: bool = False
    asked: bool = True
    """Whether it was to send a row. Nothing is concluded of a rank that was not."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Seen:
        """Return what a rank says of its row: whether it is finite, and its distance. NaN is said of missing ranks."""
        finite, distance = numbers
        return cls(finite == 1.0, distance, math.isnan(finite))


class RankVerdicts:
    """A running verdict on each rank.

    In one step a row looks bad that is not finite, that lies `FAR` times as far from the aggregate as the middle row,
    or that gets no weight from a rule with weights. A rank is *suspect* when half of its last steps look bad,
    *non-finite* while its last row is, *missing* while it sends none.

    A rule such as Krum gives no weight to more than f rows, honest ones among them. Then at most the f ranks are
    suspect that look bad most often, and only if they do so much oftener than the ranks do on average. (Who never gets
    weight is among them, whatever the others do; so liars do not get away by taking turns at sticking out.)
    """

    def __init__(self, n: int, f: int) -> None:
        self.n, self.f = n, f
        self.steps = 0
        self.suspicion = [0.0] * n
        """The part of the remembered steps in which each rank's row looked bad, from 0 to 1."""
        self.far = [0.0] * n
        """The same, of steps in which the row was far off or not finite."""
        self.non_finite_steps = [0] * n
        """In how many steps each rank's row was not finite."""
        self.last: list[Seen] = [Seen(True, 0.0)] * n
        self.weight: Tensor | None = None
        """(n,): each rank's share in the last step; None for rules without such shares."""
        self.bad: set[int] = set()
        """The ranks whose row looked bad in the last step."""

    def take(self, seen: Sequence[Seen] | None, weight: Tensor | None) -> None:
        """Take in a step, of which this rank may have missed what others have seen.

        Raises:
            ExchangeError: more than f rows are garbage, so the aggregate is worth nothing. The message names the ranks.
        """
        if seen is None:
            self.steps += 1
            return
        garbage = self.note(seen, weight)
        often = [rank for rank in range(self.n) if self.far[rank] >= _SUSPECT] if self.steps >= _SETTLED else []
        bad_ranks = max(garbage, often, key=len)
        if len(bad_ranks) > self.f:
            names = ", ".join(f"{rank} ({_trouble(seen[rank])})" for rank in bad_ranks)
            when = f"in step {self.steps}" if bad_ranks is garbage else f"in half of the steps before {self.steps}"
            raise ExchangeError(
                f"{len(bad_ranks)} of {self.n} ranks sent garbage or nothing {when}, and the rule "
                f"tolerates f = {self.f}: ranks {names}. Nothing was updated. What to do: look at their data and "
                "hardware, or give a larger f if the rule and the number of ranks allow it"
            )

    def note(self, seen: Sequence[Seen], weight: Tensor | None) -> list[int]:
        """Take in a step, and return the ranks whose row is garbage."""
        middle = sorted(row.distance for row in seen if row.finite)
        usual = middle[(len(middle) - 1) // 2] if middle else math.inf
        asked = [rank for rank, row in enumerate(seen) if row.asked]
        garbage = [rank for rank in asked if not seen[rank].finite or seen[rank].distance > GARBAGE * usual]
        far = {rank for rank in asked if not seen[rank].finite or seen[rank].distance > FAR * usual}
        ignored = set() if weight is None else {rank for rank in asked if float(weight[rank]) == 0.0}
        rate = max(1 - _MEMORY, 1 / (self.steps + 1))
        self.bad = far | ignored
        for rank in asked:
            bad = rank in self.bad
            self.suspicion[rank] += rate * (bad - self.suspicion[rank])
            self.far[rank] += rate * ((rank in far) - self.far[rank])
            self.non_finite_steps[rank] += not seen[rank].finite
        self.steps += 1
        self.last, self.weight = list(seen), weight
        return garbage

    def verdict(self, rank: int) -> Verdict:
        """Return what is known of a rank now."""
        if self.last[rank].missing:
            return "missing"
        if not self.last[rank].finite:
            return "non-finite"
        return "suspect" if rank in self._suspects() else "ok"

    def _suspects(self) -> set[int]:
        usual = sum(self.suspicion)  # how many ranks look bad in a step, on average
        most, limit = sorted(range(self.n), key=lambda rank: (self.suspicion[rank], self.last[rank].distance)), _SUSPECT
        if usual > self.f:
            most, limit = most[self.n - self.f :], (1 + usual / self.n) / 2
        far = {rank for rank in range(self.n) if self.far[rank] >= _SUSPECT}
        return far | {rank for rank in most if self.suspicion[rank] >= limit}

    def report(self) -> str:
        """Return one line for a log: `step 120: 4 ok, rank 3 suspect (0.92)`."""
        named = [
            f"rank {rank} {self.verdict(rank)} ({self.suspicion[rank]:.2f})"
            for rank in range(self.n)
            if self.verdict(rank) != "ok"
        ]
        return f"step {self.steps}: " + ", ".join([f"{self.n - len(named)} ok", *named])

    def write_csv(self, path: str | Path) -> None:
        """Append the verdicts of this moment to a file, a line for each rank; call it as often as you want lines."""
        path = Path(path)
        lines = [] if path.exists() else ["step,rank,verdict,suspicion,distance,weight,non_finite_steps"]
        for rank in range(self.n):
            weight = "" if self.weight is None else f"{float(self.weight[rank]):.6g}"
            lines.append(
                f"{self.steps},{rank},{self.verdict(rank)},{self.suspicion[rank]:.4f},{self.last[rank].distance:.6g},"
                f"{weight},{self.non_finite_steps[rank]}"
            )
        with path.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def state_dict(self) -> dict[str, Tensor]:
        """Return what later verdicts depend on."""
        return {
            "steps": torch.tensor(self.steps),
            "suspicion": torch.tensor(self.suspicion, dtype=torch.float64),
            "far": torch.tensor(self.far, dtype=torch.float64),
            "non_finite_steps": torch.tensor(self.non_finite_steps),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state_dict` returned."""
        self.steps = int(state["steps"])
        self.suspicion, self.far = state["suspicion"].tolist(), state["far"].tolist()
        self.non_finite_steps = state["non_finite_steps"].tolist()


def _trouble(row: Seen) -> str:
    return "missing" if row.missing else "not finite" if not row.finite else "far from the others"
