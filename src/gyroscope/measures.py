"""What is measured of one round, as plain numbers. docs/measures.md gives every column's formula."""

from __future__ import annotations

import dataclasses
import itertools
import math

import torch
from torch import Tensor

from gyroscope import theory
from gyroscope.round import Round

Number = float | int | bool | None
"""A value of a column; None (an empty cell) where the quantity does not exist."""

VECTORS = ("sampled", "sent", "attack", "aggregate")
PAIRS = tuple(itertools.combinations(VECTORS, 2))

COLUMNS = (
    "step",
    "lr",
    "loss",
    *(f"{vector}_{what}" for vector in VECTORS for what in ("norm", "deviation", "max")),
    *(f"cosine_{left}_{right}" for left, right in PAIRS),
    *(f"cosine_{vector}_previous" for vector in VECTORS),
    "ratio_sampled",
    "ratio_sent",
    "ratio_bound",
    "condition_holds",
    "straightness",
    "omega",
    "lambda",
    "decrease_holds",
    "distance_from_start",
    "byzantine_share",
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """What the measures of a step need of the steps before it."""

    start: Tensor
    """The parameters before the first step."""
    trajectory: theory.Trajectory
    previous: dict[str, Tensor]
    """The last step's vectors, by name."""

    @classmethod
    def begin(cls, parameters: Tensor) -> Memory:
        return cls(parameters.clone(), theory.Trajectory(torch.zeros_like(parameters)), {})


def measure(
    played: Round, parameters: Tensor, memory: Memory, mu: float, ratio_bound: float | None
) -> tuple[dict[str, Number], Memory]:
    """All columns of one round (`parameters` are those after it), and the memory for the next."""
    h = len(played.sampled)
    accumulated = played.sent is not played.sampled  # else the workers sent just what they sampled
    sampled = played.sampled.mean(dim=0)
    sent = played.sent.mean(dim=0) if accumulated else sampled
    vectors = {"sampled": sampled, "sent": sent, "attack": _mean(played.attack), "aggregate": played.aggregate.vector}
    sigma = theory.deviation(played.sampled, sampled)
    deviations: dict[str, float | None] = {
        "sampled": _finite_or_none(sigma),
        "sent": _finite_or_none(theory.deviation(played.sent, sent) if accumulated else sigma),
        "attack": _attack_deviation(played.attack, vectors["attack"]),
        "aggregate": _norm(played.aggregate.vector - sent),
    }
    norms = {name: None if vector is None else _norm(vector) for name, vector in vectors.items()}
    curvature, trajectory = theory.advance(memory.trajectory, sampled, 0.0 if h == 1 else sigma, mu)
    ratio_sent = _ratio(deviations["sent"], norms["sent"])

    row: dict[str, Number] = {"step": played.step, "lr": played.lr, "loss": float(played.losses.mean())}
    for name, vector in vectors.items():
        row[f"{name}_norm"] = norms[name]
        row[f"{name}_deviation"] = deviations[name]
        row[f"{name}_max"] = None if vector is None else float(vector.abs().max())
    for left, right in PAIRS:
        row[f"cosine_{left}_{right}"] = _cosine(vectors[left], vectors[right])
    for name, vector in vectors.items():
        row[f"cosine_{name}_previous"] = _cosine(vector, memory.previous.get(name))
    row["ratio_sampled"] = _ratio(deviations["sampled"], norms["sampled"])
    row["ratio_sent"] = ratio_sent
    row["ratio_bound"] = ratio_bound
    row["condition_holds"] = None if ratio_bound is None or ratio_sent is None else ratio_sent < ratio_bound
    row["straightness"] = curvature.straightness
    row["omega"] = curvature.omega
    row["lambda"] = curvature.lambda_
    row["decrease_holds"] = curvature.decreases
    row["distance_from_start"] = _norm(parameters - memory.start)
    row["byzantine_share"] = _byzantine_share(played.aggregate.weight, h)
    kept = {name: vector for name, vector in vectors.items() if vector is not None}
    return row, Memory(memory.start, trajectory, kept)


def _mean(rows: Tensor) -> Tensor | None:
    if len(rows) == 0:
        return None
    return rows[0] if rows.stride(0) == 0 else rows.mean(dim=0)  # colluders usually send one row, stored once


def _attack_deviation(rows: Tensor, mean: Tensor | None) -> float | None:
    if mean is None:
        return None
    return 0.0 if len(rows) > 1 and rows.stride(0) == 0 else _finite_or_none(theory.deviation(rows, mean))


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _ratio(deviation: float | None, norm: float | None) -> float | None:
    return None if norm is None or deviation is None else _finite_or_none(theory.ratio(deviation, norm))


def _cosine(left: Tensor | None, right: Tensor | None) -> float | None:
    return None if left is None or right is None else _finite_or_none(theory.cosine(left, right))


def _finite_or_none(value: float) -> float | None:
    """NaN means that the quantity does not exist here: an empty cell. An infinity is a value."""
    return None if math.isnan(value) else value


def _byzantine_share(weight: Tensor | None, honest: int) -> float | None:
    return None if weight is None else float(weight[honest:].sum())
