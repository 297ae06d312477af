"""Chain: a bridge of directions from a few honest rows to the opposite of the mean, against rules that link rows."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gyroscope._linalg import distances
from gyroscope.attacks.base import Attack, AttackContext, finite, normalized, to_unit_scale
from gyroscope.rules import _spectral
from gyroscope.rules._spectral import Array
from gyroscope.rules.flame import spanning_links

_MARGIN = 1e-5
"""By how much links must differ in length so that rounding does not decide which is made first."""


class Bridge(NamedTuple):
    """A way from an honest row to the goal."""

    gain: float
    """How far the mean of the linked group points towards the goal."""
    start: int
    """The honest row at which it begins."""
    step: float
    """The angle between neighbours."""


@dataclasses.dataclass(frozen=True)
class Chain(Attack):
    """Send directions that turn step by step from an honest row's to the opposite of the honest mean.

    A rule that links rows nearest first (`flame`) takes the first group of more than half of all rows for the honest
    one, and a group is linked if each row is near another one of it, however far its ends are apart. So the Byzantine
    rows continue a group of honest rows that is not yet a majority: the first is as near to one of these as the next
    honest link is long, the second as near to the first, and so on; all that are left over are at the end, where they
    agree. Of all groups and links with which that makes a majority before the honest rows are one by themselves, the
    adversary takes the one whose mean points farthest against the honest mean.

    All rows are four times as long as the longest honest row, so that a median of lengths is as large as f rows can
    make it. Cost: the cosines of all pairs of honest rows.
    """

    name = "chain"
    summary = "a chain of directions from honest rows to the opposite of their mean, against single linkage"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        unit, scale = to_unit_scale(honest)
        lengths = torch.linalg.vector_norm(unit, dim=1)
        mean = unit.mean(dim=0)
        goal = -normalized(mean if bool(mean.any()) else unit[0])
        directions = normalized(unit)
        # As differences of directions, because 1 - cosine is inexact where rows are almost parallel.
        table = _spectral.table_of(distances.squared_distances(directions)) / 2
        bridge = best_bridge(table, (directions @ goal).cpu().numpy(), lengths.cpu().numpy(), f)
        start = directions[bridge.start]
        cosine = float(start @ goal)
        across = goal - cosine * start
        # The link to the honest row is a little longer than the others: when it is made, the chain is whole.
        steps = 1 + torch.arange(f, dtype=unit.dtype, device=unit.device) * (1 - _MARGIN)
        angles = steps * bridge.step
        angles.clamp_(max=math.atan2(float(torch.linalg.vector_norm(across)), cosine))
        rows = normalized(angles.cos().unsqueeze(1) * start + angles.sin().unsqueeze(1) * normalized(across))
        # Not longer than the dtype allows, so that each row keeps its direction.
        peak = max(float(rows.abs().max()), torch.finfo(rows.dtype).tiny)
        length = min(4 * float(lengths.max()), torch.finfo(honest.dtype).max / scale / peak)
        return finite(rows * length * scale, honest.dtype)


def best_bridge(table: Array, towards: Array, lengths: Array, f: int) -> Bridge:
    """Return the bridge that turns the mean of the first majority farthest towards the goal.

    Args:
        table: (h, h), 1 - cosine between the honest rows.
        towards: (h,), the cosine of each honest row with the goal.
        lengths: (h,), the honest rows' lengths.
        f: how many Byzantine rows there are.
    """
    h = len(table)
    majority = (h + f) // 2 + 1
    limit = np.sort(lengths)[min((h + f - 1) // 2, h - 1)]  # to which a rule shortens rows, if f rows are long
    links = spanning_links(table)
    groups = np.arange(h)
    found = []
    lengths_after = [*(link[0] for link in links), np.inf]
    for (length, first, second), after in zip([(0.0, 0, 0), *links], lengths_after, strict=True):
        groups[groups == groups[second]] = groups[first]
        sizes = np.bincount(groups, minlength=h)
        if sizes.max() >= majority:
            break
        reach = min(after, 2.0) * (1 - 2 * _MARGIN) if after > length else length
        for group in np.flatnonzero(sizes >= max(1, majority - f)):
            members = np.flatnonzero(groups == group)
            start = int(members[np.argmax(towards[members])])
            step = angle_of(reach)
            left = np.maximum(math.acos(min(1.0, max(-1.0, towards[start]))) - step * np.arange(1, f + 1), 0.0)
            total = limit * np.cos(left).sum() + (towards[members] * np.minimum(lengths[members], limit)).sum()
            found.append(Bridge(float(total) / (f + len(members)), start, step))
    # Where the Byzantine rows are too few to make a majority earlier, they go as far as the last link allows.
    return max(found) if found else Bridge(0.0, int(np.argmax(towards)), angle_of(links[-1][0]))


def angle_of(distance: float) -> float:
    """Return the angle at which 1 - cosine is this distance."""
    return 2 * math.asin(min(1.0, math.sqrt(distance / 2)))
