"""Defences by name: a rule and a placement that belong together, and what speaks for them.

A name stands for settings of a configuration and for nothing else: a run directory holds the settings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gyroscope._core.errors import UnknownNameError


@dataclasses.dataclass(frozen=True)
class Defence:
    """Settings of a configuration that were measured together."""

    name: str
    summary: str
    settings: Mapping[str, str]
    """Keys of the configuration, with the values that they get."""


DEFENCES: dict[str, Defence] = {
    defence.name: defence
    for defence in (
        Defence(
            "best",
            "loses least in the worst case, by all that was measured here: docs/beyond/best.md",
            {"rule": "flame", "momentum": "workers"},
        ),
        Defence(
            "none",
            "the mean of all rows, at anybody's mercy: what others are compared with",
            {"rule": "average", "momentum": "workers"},
        ),
    )
}


def defence(name: str) -> dict[str, str]:
    """The settings of a defence, to be completed: `Config(**defence("best"), attack="little", byzantine=5)`."""
    if name not in DEFENCES:
        raise UnknownNameError("defence", name, DEFENCES)
    return dict(DEFENCES[name].settings)
