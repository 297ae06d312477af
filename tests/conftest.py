"""Settings for the whole suite: Hypothesis without deadlines, the same examples in CI, and what may be skipped."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest
import torch
from hypothesis import HealthCheck, settings

for name, examples in (("gyroscope", 20), ("fast", 4)):  # `make test-fast` chooses the second
    settings.register_profile(
        name,
        deadline=None,
        max_examples=examples,
        derandomize=bool(os.environ.get("CI")),
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("GYROSCOPE_TEST_PROFILE", "gyroscope"))

MAY_BE_MISSING = (
    "byzfl",  # installed by hand, without its dependencies
    "npm gives no package here",
    "dataset-fashion-mnist",
    "AVX2",
    "OpenMP",
    "this system cannot",
    "small disk",  # needs root
    "looks for processes in /proc",
    "needs what the server holds",  # a rule to which the test does not apply
)
"""What a test may be skipped for even where nothing else may be missing: part of the reason."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Draw the same numbers in every run of a test, and in whatever order the tests run."""
    torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Whole modules are skipped while pytest collects: `importorskip("flwr")` at their top."""
    return _required((yield))


def _required(report: pytest.TestReport) -> pytest.TestReport:
    """With GYROSCOPE_REQUIRE_ALL=1 (.ci/run) a missing browser, Flower or data set is a failure, not a skip."""
    if report.skipped and os.environ.get("GYROSCOPE_REQUIRE_ALL") and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(part in reason for part in MAY_BE_MISSING):
            report.outcome = "failed"
            report.longrepr = f"GYROSCOPE_REQUIRE_ALL is set, so that nothing may be missing, and this was: {reason}"
    return report
