"""Asynchronous training, simulated: workers of different speeds, stale gradients, and filters instead of rules.

The server waits for nobody, so it applies each gradient when it arrives. A filter, which accepts or refuses each
gradient by itself, protects it: Kardam's (Damaskinos et al. 2018).

    from gyroscope.research import asynchronous

    result = asynchronous.train(asynchronous.AsyncConfig(attack="empire", byzantine=5, byzantine_speed=10))
    print(result.max_accuracy, result.arrivals[["worker", "staleness", "accepted"]].tail())

docs/beyond/asynchronous.md has the results.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gyroscope.research.asynchronous.async_config import AsyncConfig
    from gyroscope.research.asynchronous.async_placement import PLACEMENTS
    from gyroscope.research.asynchronous.async_run import AsyncResult, train
    from gyroscope.research.asynchronous.kardam import FILTERS

__all__ = ["FILTERS", "PLACEMENTS", "AsyncConfig", "AsyncResult", "train"]
_MODULES = {
    "FILTERS": "kardam",
    "PLACEMENTS": "async_placement",
    "AsyncConfig": "async_config",
    "AsyncResult": "async_run",
    "train": "async_run",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for: `gyroscope --help` imports this package for its command, and should not need torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
