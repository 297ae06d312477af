"""What is measured of one round, as plain numbers. docs/measures.md gives every column's formula."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gyroscope._core import theory
from gyroscope._linalg import moments
from gyroscope.simulation.round import Round

Number = float | int | bool | None
"""A value of a column; None (an empty cell) where the quantity does not exist."""

VECTORS = ("sampled", "sent", "attack", "aggregate")
PAIRS = tuple(itertools.combinations(VECTORS, 2))

COLUMNS = (
    "step",
    "lr",
    "mu",
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
    "at_workers",
    "distance_from_start",
    "byzantine_share",
)


@dataclasses.dataclass(frozen=True)
class MetricsState:
    """What the measures of a step need of the steps before it."""

    start: Tensor
    """The parameters before the first step."""
    trajectory: theory.Trajectory
    previous: dict[str, Tensor]
    """The last step's vectors, by name."""

    @classmethod
    def begin(cls, parameters: Tensor) -> MetricsState:
        return cls(parameters.clone(), theory.Trajectory(torch.zeros_like(parameters)), {})


def measure(
    played: Round, parameters: Tensor, state: MetricsState, ratio_bound: float | None
) -> tuple[dict[str, Number], MetricsState]:
    """All columns of one round (`parameters` are those after it), and the state for the next."""
    of_sent, h = played.sent.moments, len(played.sent.rows)
    of_sampled = played.sampled.moments if played.sampled else None
    sampling = len(played.sampled.rows) if played.sampled else 0
    vectors = _vectors(played)
    products = _Products(
        {
            **vectors,
            **{f"{name}, before": vector for name, vector in state.previous.items()},
            **({"past": state.trajectory.past} if of_sampled else {}),
            "away": (played.update.aggregate.vector, of_sent.mean),
            "travelled": (parameters, state.start),
        },
        [*PAIRS, *((name, f"{name}, before") for name in VECTORS), ("sampled", "past")],
    )
    sigma = theory.spread(of_sampled.squares, sampling) if of_sampled else math.nan
    deviations: dict[str, float | None] = {
        "sampled": _finite_or_none(sigma),
        "sent": _finite_or_none(theory.spread(of_sent.squares, h)),
        "attack": _attack_deviation(played.attack),
        "aggregate": products.norm("away"),
    }
    row: dict[str, Number] = dict.fromkeys(COLUMNS)
    row.update(step=played.step, lr=played.lr, mu=played.mu, loss=_mean_loss(played.losses))
    for name in VECTORS:
        row[f"{name}_norm"] = products.norm(name)
        row[f"{name}_deviation"] = deviations[name]
        row[f"{name}_max"] = products.largest(name)
    for left, right in PAIRS:
        row[f"cosine_{left}_{right}"] = products.cosine(left, right)
    for name in VECTORS:
        row[f"cosine_{name}_previous"] = products.cosine(name, f"{name}, before")
    row["ratio_sampled"] = _ratio(deviations["sampled"], products.norm("sampled"))
    row["ratio_sent"] = ratio_sent = _ratio(deviations["sent"], products.norm("sent"))
    row["ratio_bound"] = ratio_bound
    row["condition_holds"] = None if ratio_bound is None or ratio_sent is None else ratio_sent < ratio_bound
    trajectory = state.trajectory
    if of_sampled:
        known = (products.dot("sampled", "sampled"), products.dot("sampled", "past"))
        sigma = 0.0 if sampling == 1 else sigma
        curvature, trajectory = theory.advance(trajectory, of_sampled.mean, sigma, played.mu, known)
        row["straightness"], row["omega"] = curvature.straightness, curvature.omega
        row["lambda"], row["decrease_holds"] = curvature.lambda_, curvature.decreases
    row["distance_from_start"] = products.norm("travelled")
    if played.update.weight is not None:
        row["byzantine_share"] = float(played.update.weight[played.honest :].sum())
    row.update(played.extra)
    return row, MetricsState(state.start, trajectory, _kept(vectors))


def follow(played: Round, state: MetricsState, measured_next: bool) -> MetricsState:
    """The state after a round that is not measured: what later measures need of it, and no more."""
    trajectory = state.trajectory
    if played.sampled:
        mean, h = played.sampled.moments.mean, len(played.sampled.rows)
        dots = moments.products([mean, trajectory.past], [(0, 1)]).dots
        sigma = 0.0 if h == 1 else theory.spread(played.sampled.moments.squares, h)
        _, trajectory = theory.advance(trajectory, mean, sigma, played.mu, (dots[0][0], dots[0][1]))
    return MetricsState(state.start, trajectory, _kept(_vectors(played)) if measured_next else {})


def _vectors(played: Round) -> dict[str, Tensor]:
    """Return the round's vectors by name, without those that do not exist."""
    vectors = {
        "sampled": played.sampled.moments.mean if played.sampled else None,
        "sent": played.sent.moments.mean,
        "attack": _mean(played.attack),
        "aggregate": played.update.aggregate.vector,
    }
    return {name: vector for name, vector in vectors.items() if vector is not None}


def _kept(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """For the next round: copies of what is the round's own memory; means and aggregates are new at every step."""
    return {name: vector.clone() if name == "attack" else vector for name, vector in vectors.items()}


class _Products:
    """Norms, largest coordinates and inner products of named vectors, all computed in one pass."""

    def __init__(self, vectors: dict[str, moments.Vector], pairs: Sequence[tuple[str, str]]) -> None:
        self.place = {name: number for number, name in enumerate(vectors)}
        wanted = [(self.place[a], self.place[b]) for a, b in pairs if a in vectors and b in vectors]
        self.found = moments.products(list(vectors.values()), wanted)

    def dot(self, left: str, right: str) -> float:
        return self.found.dots[self.place[left]][self.place[right]]

    def norm(self, name: str) -> float | None:
        return math.sqrt(self.dot(name, name)) if name in self.place else None

    def largest(self, name: str) -> float | None:
        return self.found.largest[self.place[name]] if name in self.place else None

    def cosine(self, left: str, right: str) -> float | None:
        """None where one of the vectors is missing or vanishes."""
        norms = (self.norm(left) or 0.0) * (self.norm(right) or 0.0)
        return _finite_or_none(self.dot(left, right) / norms) if norms > 0 else None


def _mean_loss(losses: Tensor) -> float:
    """Return the mean over the workers whose loss is finite, or over all where none is."""
    mean = float(losses.mean())
    if math.isfinite(mean):
        return mean
    finite = losses[losses.isfinite()]
    return float(finite.mean()) if len(finite) else mean


def _mean(rows: Tensor) -> Tensor | None:
    if len(rows) == 0:
        return None
    return rows[0] if rows.stride(0) == 0 else rows.mean(dim=0)  # colluders usually send one row, stored once


def _attack_deviation(rows: Tensor) -> float | None:
    if len(rows) < 2:
        return None
    return 0.0 if rows.stride(0) == 0 else theory.spread(moments.moments(rows).squares, len(rows))


def _ratio(deviation: float | None, norm: float | None) -> float | None:
    return None if norm is None or deviation is None else _finite_or_none(theory.ratio(deviation, norm))


def _finite_or_none(value: float) -> float | None:
    """NaN means that the quantity does not exist here: an empty cell. An infinity is a value."""
    return None if math.isnan(value) else value
