"""How far the honest servers' models are apart, as plain numbers. docs/beyond/servers.md explains every column."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gyroscope._linalg.distances import squared_distances

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

Row = dict[str, float | int | bool | None]


def largest_distance(models: Tensor) -> float:
    """Between any two rows; 0 for a single one."""
    return math.sqrt(float(squared_distances(models).max()))


def measure(
    step: int, lr: float, directions: Sequence[Tensor], start: Tensor, updated: Tensor, exchanged: Tensor | None
) -> Row:
    """All columns of one step.

    directions: each honest server's, of which it takes lr. start, updated, exchanged: (h, d), the honest servers'
    models before the step, after the update, and after the exchange (None where there was none).
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
    """The cosine between how the servers' models differ and how their steps do: 1 where steps widen what is there.

    Both are taken around the mean over the servers, all of them as one long vector.
    """
    apart = (start - start.mean(dim=0)).to(torch.float64).flatten()
    widening = (directions.mean(dim=0) - directions).to(torch.float64).flatten()
    norms = float(torch.linalg.vector_norm(apart)) * float(torch.linalg.vector_norm(widening))
    return float(torch.dot(apart, widening)) / norms if norms > 0 else None
