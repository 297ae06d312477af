"""The claims of "Distributed Momentum for Byzantine-resilient Learning", each with the place where it is made.

Figures are numbered through the main text (1 to 5) and the supplement (6 on). Each claim states its threshold, taken
from the paper's words: "no tangible effect" is a loss of at most 2 points, "as good" not worse by more than 0.5.
"""

from __future__ import annotations

from gyroscope.experiments.claims import cifar10, mnist, variance_ratio
from gyroscope.experiments.claims.checks import (
    FAILS,
    HOLDS,
    PARTLY,
    UNMEASURED,
    VERDICTS,
    Claim,
    ClaimVerdict,
    judge,
    summary,
)

CLAIMS: tuple[Claim, ...] = (*mnist.CLAIMS, *variance_ratio.CLAIMS, *cifar10.CLAIMS)

__all__ = ["CLAIMS", "FAILS", "HOLDS", "PARTLY", "UNMEASURED", "VERDICTS", "Claim", "ClaimVerdict", "judge", "summary"]
