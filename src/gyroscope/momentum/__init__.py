"""Where momentum lives: the placements, by name."""

from __future__ import annotations

from collections.abc import Mapping

from gyroscope._core.errors import UnknownNameError
from gyroscope.momentum.base import Placement, State
from gyroscope.momentum.kept import ServerKept
from gyroscope.momentum.usual import AtServer, AtWorkers, Elsewhere, NoMomentum
from gyroscope.research.adaptive.feedback import Feedback
from gyroscope.research.adaptive.placements import Adaptive, AdaptiveOracle

Table = Mapping[str, type[Placement]]

USUAL: Table = {kind.name: kind for kind in (AtWorkers, AtServer, NoMomentum)}
"""Those that need no more of the server than to apply the rule: they work wherever gradients are exchanged."""

PLACEMENTS: Table = {**USUAL, **{kind.name: kind for kind in (ServerKept, Feedback, Adaptive, AdaptiveOracle)}}

__all__ = [
    "PLACEMENTS",
    "USUAL",
    "Adaptive",
    "AdaptiveOracle",
    "AtServer",
    "AtWorkers",
    "Elsewhere",
    "Feedback",
    "NoMomentum",
    "Placement",
    "ServerKept",
    "State",
    "make",
]


def make(name: str, mu: float = 0.9, nesterov: bool = False, among: Table = PLACEMENTS) -> Placement:
    """The placement of that name."""
    if name not in among:
        raise UnknownNameError("momentum placement", name, among)
    return among[name](mu=mu, nesterov=nesterov)
