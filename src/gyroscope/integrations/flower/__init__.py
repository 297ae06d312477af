"""Byzantine-resilient training with Flower: a strategy for its servers, a mod for its clients, and a ready app.

Only this package imports flwr, and nothing else in Gyroscope imports this package before it is asked for.
"""

from __future__ import annotations

from gyroscope._core.errors import MissingExtraError

try:
    import flwr.serverapp  # noqa: F401
except ImportError as problem:
    raise MissingExtraError(
        f"gyroscope.integrations.flower needs Flower ({problem}): pip install 'gyroscope[flower]' "
        "(Python 3.11 or later)"
    ) from problem

from gyroscope.integrations.flower.fault_tolerant_grid import FaultTolerantGrid
from gyroscope.integrations.flower.layout import Layout, RefusedError
from gyroscope.integrations.flower.strategy import RobustStrategy, TooFewRepliesError
from gyroscope.integrations.flower.worker_mod import worker_momentum

__all__ = [
    "FaultTolerantGrid",
    "Layout",
    "RefusedError",
    "RobustStrategy",
    "TooFewRepliesError",
    "worker_momentum",
]
