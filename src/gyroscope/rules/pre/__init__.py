"""The pre-aggregations, by name. Each composes with any rule: `nnm+krum`, or `Nnm() >> Krum()` in Python."""

from __future__ import annotations

from gyroscope.rules.composition import Preaggregation
from gyroscope.rules.pre.arc import Arc
from gyroscope.rules.pre.bucketing import Bucketing
from gyroscope.rules.pre.clip import Clip
from gyroscope.rules.pre.nnm import Nnm

PREAGGREGATIONS: dict[str, type[Preaggregation]] = {stage.name: stage for stage in (Nnm, Bucketing, Clip, Arc)}

__all__ = ["PREAGGREGATIONS", "Arc", "Bucketing", "Clip", "Nnm"]
