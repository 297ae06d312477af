"""Coupled: the same perturbation in every round, orthogonal to the last update, so that momentum carries it on."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope.attacks._history import kept_signs, last_update
from gyroscope.attacks.base import Attack, AttackContext, finite, normalized, repeat, to_unit_scale
from gyroscope.attacks.directed import best_factor


@dataclasses.dataclass(frozen=True)
class Coupled(Attack):
    """Send location * mean + (1 - location) * r + z * deviation * p, with p orthogonal to the reference r.

    r has the direction of the server's last update (in the first round, that of the honest mean) and the length of the
    honest mean. A server that takes its last aggregate for the centre, as centered clipping does, sees honest rows of
    small variance around it, and a row that is as far away as they are. p hardly changes from round to round: random
    signs, drawn once, without their part along r, at length 1. So worker momentum, the server's momentum and the next
    centre all carry on what one round let through.

    location: 1 for rows around the honest mean, 0 for rows around r; between them for rows between them.
    angle: between the perturbation and r, in degrees: 90 for p itself, up to 180 for -r.
    z: how far, in multiples of the honest rows' root mean square distance from their mean; or `auto`, the factor that
        moves the configured rule's result farthest from that mean.
    The state is the signs and the last parameters. If nobody tells the adversary the parameters, r is the honest mean.

    Differences: the authors' code perturbs along a vector of ones, by a length that does not depend on the honest rows'
    deviation; a network that ends in a softmax does not notice if all its outputs' weights move alike, so here the
    signs are random. Its angle is to 0.9 r + 0.1 mean, here to r. It knows the server's momentum, here the adversary
    reads the direction off the parameters. Its defaults, rows around the honest mean at 90 degrees, are the same.
    """

    location: float = registry.number(1.0, "a number from 0 to 1", lambda location: 0 <= location <= 1)
    angle: float = registry.number(90.0, "an angle from 90 to 180 degrees", lambda angle: 90 <= angle <= 180)
    z: float | Literal["auto"] = registry.positive(1.0, or_one_of=("auto",))

    name = "coupled"
    aliases = ("rop",)
    summary = "near the mean, displaced the same way in every round, orthogonally to the last update"
    paper = "Ozfatura et al. 2024 (ROP)"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        mean = unit.mean(dim=0)
        update = last_update(context)
        along = update if update is not None and bool(update.any()) else normalized(mean)
        signs = kept_signs(context, honest[0]).double()
        p = normalized(signs - (signs @ along) * along)
        angle = math.radians(self.angle)
        spread = (unit - mean).square().sum(dim=1).mean().sqrt()
        away = spread * (math.sin(angle) * p + math.cos(angle) * along)
        place = self.location * mean + (1 - self.location) * torch.linalg.vector_norm(mean) * along
        z = self.z
        if z == "auto":
            centre, origin, direction = (finite(vector * scale, honest.dtype) for vector in (mean, place, away))
            z = best_factor(honest, origin, direction, f, context, mean=centre)
        return repeat(finite((place + z * away) * scale, honest.dtype), f)
