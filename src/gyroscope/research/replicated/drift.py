"""How far the honest servers' models are apart: the columns of drift.csv, which docs/beyond/servers.md explains."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gyroscope._linalg import distances

COLUMNS = (
    "step",
    "drift_before",
    "drift_after",
    "step_length",
    "relative_before",
    "relative_after",
    "contraction",
    "disagreement",
    "alignment",
)

DriftRow = dict[str, float | int | bool | None]


def largest_distance(models: Tensor) -> float:
    """Return the largest distance between any two rows; 0 for a single one."""
    return math.sqrt(float(distances.squared_distances(models).max()))


def measure(
    step: int, lr: float, directions: Sequence[Tensor], start: Tensor, updated: Tensor, exchanged: Tensor | None
) -> DriftRow:
    """Return the row of one step.

    Args:
        step: its number.
        lr: the learning rate.
        directions: each honest server's direction of the update.
        start: (h, d), the honest servers' models before the step.
        updated: (h, d), after the update.
        exchanged: (h, d), after the exchange; None where there was none.
    """
    lengths = [float(torch.linalg.vector_norm(direction, dtype=torch.float64)) for direction in directions]
    length = lr * sum(lengths) / len(lengths)
    before = largest_distance(updated)
    after = before if exchanged is None else largest_distance(exchanged)
    return {
        "step": step,
        "drift_before": before,
        "drift_after": after,
        "step_length": length,
        "relative_before": before / length if length > 0 else None,
        "relative_after": after / length if length > 0 else None,
        "contraction": after / before if exchanged is not None and before > 0 else None,
        "disagreement": lr * largest_distance(torch.stack(list(directions))),
        "alignment": _alignment(start, torch.stack(list(directions))),
    }


def _alignment(start: Tensor, directions: Tensor) -> float | None:
    """Return the cosine between how the models differ and how the steps do: 1 where steps widen the differences.

    Both are deviations from the mean over the servers, concatenated to one vector.
    """
    apart = (start - start.mean(dim=0)).to(torch.float64).flatten()
    widening = (directions.mean(dim=0) - directions).to(torch.float64).flatten()
    norms = float(torch.linalg.vector_norm(apart)) * float(torch.linalg.vector_norm(widening))
    return float(torch.dot(apart, widening)) / norms if norms > 0 else None
