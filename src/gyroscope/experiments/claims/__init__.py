"""The claims of "Distributed Momentum for Byzantine-resilient Learning", each with the place where it is made.

Figures are numbered through the main text (1 to 5) and the supplement (6 on). Thresholds come from the paper's words:
"about x" is x give or take a third (at least 5 points), "no tangible effect" a loss of at most 2 points, "at least as
good" not worse by more than 0.5 points.
"""

from __future__ import annotations

from gyroscope.experiments.claims import cifar10, mnist, theory
from gyroscope.experiments.claims.base import FAILS, HOLDS, UNMEASURED, Claim, Verdict, judge

CLAIMS: tuple[Claim, ...] = (*mnist.CLAIMS, *theory.CLAIMS, *cifar10.CLAIMS)

__all__ = ["CLAIMS", "FAILS", "HOLDS", "UNMEASURED", "Claim", "Verdict", "judge"]
