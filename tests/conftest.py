"""Settings for the whole suite: Hypothesis without deadlines, the same examples every time in CI, slow tests first."""

from __future__ import annotations

import os

import pytest
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those marked slow mostly wait for other processes: begun first, they leave the processor to the others."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
