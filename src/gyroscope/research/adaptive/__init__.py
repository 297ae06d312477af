"""Momentum placements, factors and learning rates that adapt to the trajectory.

    from gyroscope.research.adaptive import AdaptiveConfig

    gy.train(AdaptiveConfig(rule="krum", attack="little", byzantine=5, momentum="adaptive", adapt="lr"))

docs/beyond/placements.md and docs/beyond/adapting.md have the results.
"""

from __future__ import annotations

from gyroscope.research.adaptive.adaptive_config import PLACEMENTS, AdaptiveConfig
from gyroscope.research.adaptive.adaptive_run import AdaptiveRun
from gyroscope.runs.variants import Variant

VARIANT = Variant("adaptive momentum", AdaptiveConfig, AdaptiveRun)

__all__ = ["PLACEMENTS", "VARIANT", "AdaptiveConfig", "AdaptiveRun"]
