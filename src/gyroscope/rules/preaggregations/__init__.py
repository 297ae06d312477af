"""The pre-aggregations, by name. Each composes with any rule: `nnm+krum`, or `NNM() >> Krum()` in Python."""

from __future__ import annotations

from gyroscope.rules.composition import Preaggregation
from gyroscope.rules.preaggregations.arc import ARC
from gyroscope.rules.preaggregations.bucketing import Bucketing
from gyroscope.rules.preaggregations.clip import Clip
from gyroscope.rules.preaggregations.nnm import NNM

PREAGGREGATIONS: dict[str, type[Preaggregation]] = {stage.name: stage for stage in (NNM, Bucketing, Clip, ARC)}

__all__ = ["ARC", "NNM", "PREAGGREGATIONS", "Bucketing", "Clip"]
