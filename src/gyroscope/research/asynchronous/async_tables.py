"""The tables of an asynchronous run. docs/beyond/asynchronous.md explains every column."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from gyroscope.research.asynchronous.async_server import ArrivalOutcome
from gyroscope.research.asynchronous.kardam import FREQUENCY, LIPSCHITZ
from gyroscope.simulation.metrics import Number

METRIC_COLUMNS = (
    "step",
    "lr",
    "loss",
    "received",
    "accepted",
    "refused_lipschitz",
    "refused_frequency",
    "byzantine_received",
    "byzantine_accepted",
    "byzantine_share",
    "version",
    "staleness",
    "staleness_max",
    "weight",
    "age",
)
ARRIVAL_COLUMNS = (
    "step",
    "time",
    "worker",
    "byzantine",
    "version",
    "staleness",
    "loss",
    "coefficient",
    "bound",
    "refused_lipschitz",
    "refused_frequency",
    "accepted",
    "weight",
    "age",
    "other_accepted",
)

TableRow = dict[str, Number]


def arrival_row(
    time: float,
    worker: int,
    byzantine: bool,
    version: int,
    loss: float | None,
    outcome: ArrivalOutcome,
    other: bool | None,
) -> TableRow:
    """Return the row of one gradient: how it arrived, and what the server did with it."""
    verdict = outcome.verdict
    return {
        "step": int(time),
        "time": time,
        "worker": worker,
        "byzantine": byzantine,
        "version": version,
        "staleness": outcome.staleness,
        "loss": loss,
        "coefficient": verdict.coefficient,
        "bound": verdict.bound,
        "refused_lipschitz": verdict.refused_by == LIPSCHITZ,
        "refused_frequency": verdict.refused_by == FREQUENCY,
        "accepted": verdict.accepted,
        "weight": outcome.weight,
        "age": outcome.age,
        "other_accepted": other,
    }


def metric_row(step: int, lr: float, version: int, arrivals: Sequence[TableRow]) -> TableRow:
    """Return the row of one round of time. Staleness, weight and age are means over the accepted gradients.

    The loss is the mean over the honest gradients whose loss is finite.
    """
    accepted = [row for row in arrivals if row["accepted"]]
    byzantine = [row for row in accepted if row["byzantine"]]
    losses = [row["loss"] for row in arrivals if row["loss"] is not None and math.isfinite(row["loss"])]
    return {
        "step": step,
        "lr": lr,
        "loss": _mean(losses),
        "received": len(arrivals),
        "accepted": len(accepted),
        "refused_lipschitz": sum(bool(row["refused_lipschitz"]) for row in arrivals),
        "refused_frequency": sum(bool(row["refused_frequency"]) for row in arrivals),
        "byzantine_received": sum(bool(row["byzantine"]) for row in arrivals),
        "byzantine_accepted": len(byzantine),
        "byzantine_share": len(byzantine) / len(accepted) if accepted else None,
        "version": version,
        "staleness": _mean([row["staleness"] for row in accepted]),
        "staleness_max": max((int(row["staleness"] or 0) for row in accepted), default=None),
        "weight": _mean([row["weight"] for row in accepted]),
        "age": _mean([row["age"] for row in accepted]),
    }


def share_row(step: int, workers: int, arrivals: Sequence[TableRow]) -> TableRow | None:
    """Return each worker's share in the accepted gradients; None where the server accepted none."""
    accepted = [int(row["worker"] or 0) for row in arrivals if row["accepted"]]
    if not accepted:
        return None
    shares: TableRow = {f"worker_{worker}": accepted.count(worker) / len(accepted) for worker in range(workers)}
    return {"step": step, **shares}


def _mean(values: Sequence[Number]) -> float | None:
    return statistics.fmean(float(value or 0) for value in values) if values else None
