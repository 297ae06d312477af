"""File descriptors: a link is one of them, and many systems let a process have 1,024 unless it asks for more."""

from __future__ import annotations

import contextlib

from gyroscope._core.errors import ConfigError

BESIDES = 200
"""Descriptors besides the links: strangers, the run directory's tables, the status page, libraries."""


def allow(links: int) -> None:
    """Let this process have as many descriptors as so many links need.

    Raises:
        ConfigError: The system does not allow so many.
    """
    with contextlib.suppress(ImportError):  # a system without limits of this kind
        import resource

        needed = links + BESIDES
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY or soft >= needed:
            return
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"{links:,} workers need {needed:,} file descriptors, and this process may have {hard:,}: raise the "
                f"hard limit (as root: ulimit -Hn {needed}; under systemd: LimitNOFILE={needed}), or take fewer workers"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
