"""Defences by name: a rule, a placement of momentum and how long it remembers, and the evidence for them.

A name stands for settings of a configuration and for nothing else: a run directory holds the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gyroscope._core.errors import UnknownNameError


class Defence(NamedTuple):
    """Settings of a configuration that were measured together."""

    name: str
    summary: str
    settings: Mapping[str, str | float]
    """Keys of the configuration and their values."""
    caution: str = ""
    """What its user should hear where workers hold unequal data."""


DEFENCES: dict[str, Defence] = {
    "best": Defence(
        "best",
        "lost least to the red team where workers have common data; not for unequal data (documentation: The "
        "leaderboard)",
        {"rule": "caf-history", "momentum": "workers", "horizon": 2.0},
        caution="it takes workers whose data are unlike the others' for Byzantine ones, and the red team took it to "
        "26 % on unequal data: see the page Which defence for my n, f and data of the documentation",
    ),
    "none": Defence(
        "none",
        "the mean of all rows, which one Byzantine worker controls: what others are compared with",
        {"rule": "average", "momentum": "workers"},
    ),
}


def defence(name: str) -> dict[str, Any]:
    """Return the settings of a defence, for a configuration to complete.

    Args:
        name: a name in `DEFENCES`: "best" or "none".

    Returns:
        Keys of `Config` and their values.

    Raises:
        UnknownNameError: there is no such defence.

    Example:
        >>> import gyroscope as gy
        >>> gy.defence("best")
        {'rule': 'caf-history', 'momentum': 'workers', 'horizon': 2.0}
        >>> config = gy.Config(**gy.defence("best"), attack="little", byzantine=5)
    """
    if name not in DEFENCES:
        raise UnknownNameError("defence", name, DEFENCES)
    return dict(DEFENCES[name].settings)
