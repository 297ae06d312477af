"""Settings for the whole suite: Hypothesis without deadlines, and the same examples every time in CI."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "gyroscope",
    deadline=None,
    max_examples=20,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gyroscope")
