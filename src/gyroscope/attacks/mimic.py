"""Mimic: repeat one honest worker, so that the others' data count for less."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import InfeasibleError
from gyroscope._linalg import matrix
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks.base import Attack, AttackContext, normalized, repeat


@dataclasses.dataclass(frozen=True)
class Mimic(Attack):
    """Send what one honest worker sends, from all f workers: no row is an outlier, yet one worker counts f + 1 times.

    It does damage if workers have different data. worker: the number of the honest row to repeat; or `auto`, the
    original paper's choice: for the first `warmup` rounds the adversary learns the direction z in which honest rows
    differ most (Oja's method on the rows' deviations from their running mean mu), and repeats the row with the largest
    <row, z>; then it stays with the worker of the last of these rounds.
        mu_t = t/(t+1) mu_{t-1} + 1/(t+1) mean
        z_t ~ t/(t+1) z_{t-1} + 1/(t+1) v/|v|,  v = sum_i <x_i - mu_t, z_{t-1}> (x_i - mu_t)
    scaled to |z| = 1, from a random start; of equal workers the lowest. The state is mu and z, then the worker.

    Rows are numbered among the workers that are present in a round; if there are too few, the last one is repeated.
    """

    worker: int | Literal["auto"] = registry.number(
        "auto", "a worker's number", lambda n: n >= 0, whole=True, or_one_of=("auto",)
    )
    warmup: int = registry.count(50)

    name = "mimic"
    summary = "repeats one honest row: the one furthest in the direction of largest variance"
    paper = "Karimireddy et al. 2022"

    def check_feasible(self, n: int, f: int) -> None:
        if self.worker != "auto" and self.worker >= n - f:
            raise InfeasibleError(
                f"the attack {self} repeats honest worker {self.worker}, but those are numbered from 0 to {n - f - 1}"
            )

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        worker = self._target(honest, context) if self.worker == "auto" else self.worker
        return repeat(honest[min(worker, len(honest) - 1)].clone(), f)

    def _target(self, honest: Tensor, context: AttackContext) -> int:
        state = context.state
        if "worker" in state:
            return int(state["worker"])
        t = int(state.get("rounds", torch.tensor(0)))
        mean = (context.moments or CachedMoments(honest)).moments.mean.double()
        if t == 0:
            generator = context.generator
            z = torch.randn(len(mean), generator=generator, dtype=torch.float64, device=generator.device)
            z = z.to(honest.device)
        else:
            z, mean = state["direction"], state["mean"] * (t / (t + 1)) + mean / (t + 1)
        z = _turned(z, honest, mean, t)
        products = _products(honest, z).tolist()
        worker = max(range(len(products)), key=products.__getitem__)
        if t + 1 >= self.warmup:
            for name in ("rounds", "mean", "direction"):
                state.pop(name, None)
            state["worker"] = torch.tensor(worker)
        else:
            state.update({"rounds": torch.tensor(t + 1), "mean": mean, "direction": z})
        return worker


def _turned(z: Tensor, rows: Tensor, origin: Tensor, t: int) -> Tensor:
    """Make one step of the power method at the rows less an origin, averaged with t earlier steps, and scale to 1."""
    weights = _products(rows, z, origin)
    total = weights.abs().sum()
    if float(total) > 0:
        weights = weights / total  # so that no sum is longer than twice the rows
        pull = matrix.weighted_sum(rows, weights, 2.0, origin.to(rows.dtype), -float(weights.sum()) / 2).double()
        pull /= pull.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
        length = torch.linalg.vector_norm(pull)
        if float(length) > 0:
            z = (t * z + pull / length) / (t + 1)
    return normalized(z)


def _products(rows: Tensor, z: Tensor, origin: Tensor | None = None) -> Tensor:
    """Return the inner products of the rows, less the origin, with z, which is rounded to the rows' dtype."""
    origin = None if origin is None else origin.to(rows.dtype)
    return matrix.squared_lengths_and_products(rows, z.to(rows.dtype), origin)[1]
