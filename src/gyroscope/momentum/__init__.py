"""Where momentum is computed: `WorkerMomentum` before the rule, `RobustAggregator` for the rule and what follows it.

Example:
    >>> import gyroscope as gy
    >>> list(gy.momentum.PLACEMENTS)
    ['workers', 'server', 'none', 'server-kept']
"""

from __future__ import annotations

from gyroscope.momentum import participation, worker_weights
from gyroscope.momentum.participation import Participation
from gyroscope.momentum.robust_aggregator import (
    BASIC_PLACEMENTS,
    PLACEMENTS,
    Placement,
    RobustAggregator,
    Update,
    check_placement,
)
from gyroscope.momentum.worker_momentum import WorkerMomentum

__all__ = [
    "BASIC_PLACEMENTS",
    "PLACEMENTS",
    "Participation",
    "Placement",
    "RobustAggregator",
    "Update",
    "WorkerMomentum",
    "check_placement",
    "participation",
    "worker_weights",
]
