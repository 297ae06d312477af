"""Mimic: repeat one honest worker, so that the others' data count for less."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError
from gyroscope.attacks.base import Attack, AttackContext, repeat


@dataclasses.dataclass(frozen=True)
class Mimic(Attack):
    """All f workers send what one honest worker sends: no row is an outlier, and yet one worker counts f + 1 times.

    It harms where workers have different data. worker: the number of the honest row to repeat; or `auto`, the original
    paper's choice: for the first `warmup` rounds the adversary learns the direction z in which honest rows differ most
    (Oja's method on the rows' deviations from their running mean mu), and repeats the row with the largest <row, z>;
    then it stays with the worker of the last of these rounds.
        mu_t = t/(t+1) mu_{t-1} + 1/(t+1) mean
        z_t ~ t/(t+1) z_{t-1} + 1/(t+1) v/|v|,  v = sum_i <x_i - mu_t, z_{t-1}> (x_i - mu_t)
    scaled to |z| = 1, from a random start. Notes: mu and z, then the worker's number. Of equal ones the lowest.

    Rows are numbered among the workers that are present in a round; where those are too few, the last is repeated.
    """

    worker: int | Literal["auto"] = "auto"
    warmup: int = 50

    name = "mimic"
    summary = "repeats one honest row: the one furthest in the direction of largest variance"
    paper = "Karimireddy et al. 2022"

    def __post_init__(self) -> None:
        for name, least in (("worker", 0), ("warmup", 1)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
            if not whole and not (name == "worker" and value == "auto"):
                words = "a worker's number or 'auto'" if name == "worker" else "a whole number of at least 1"
                raise ConfigError(f"the {name} of {self.name!r} must be {words}, got {value!r}")

    def check_feasible(self, n: int, f: int) -> None:
        if self.worker != "auto" and self.worker >= n - f:
            raise InfeasibleError(
                f"the attack {self} repeats honest worker {self.worker}, but those are numbered from 0 to {n - f - 1}"
            )

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        worker = self._target(honest, context) if self.worker == "auto" else self.worker
        return repeat(honest[min(worker, len(honest) - 1)].clone(), f)

    def _target(self, honest: Tensor, context: AttackContext) -> int:
        notes = context.state
        if "worker" in notes:
            return int(notes["worker"])
        t = int(notes.get("rounds", torch.tensor(0)))
        rows = honest.double()
        mean = rows.mean(dim=0)
        if t == 0:
            z = torch.randn(
                len(mean), generator=context.generator, dtype=torch.float64, device=context.generator.device
            )
            z = z.to(honest.device)
        else:
            z, mean = notes["direction"], notes["mean"] * (t / (t + 1)) + mean / (t + 1)
        z = _turned(z, rows - mean, t)
        products = (rows @ z).tolist()
        worker = max(range(len(products)), key=products.__getitem__)
        if t + 1 >= self.warmup:
            for name in ("rounds", "mean", "direction"):
                notes.pop(name, None)
            notes["worker"] = torch.tensor(worker)
        else:
            notes.update({"rounds": torch.tensor(t + 1), "mean": mean, "direction": z})
        return worker


def _turned(z: Tensor, deviations: Tensor, t: int) -> Tensor:
    """One step of the power method at the given deviations, averaged with t steps before it, at length 1."""
    size = deviations.abs().max()
    if float(size) > 0:
        deviations = deviations / size
        weights = deviations @ z
        pull = weights @ deviations
        length = torch.linalg.vector_norm(pull)
        if float(length) > 0:
            z = (t * z + pull / length) / (t + 1)
    norm: Tensor = torch.linalg.vector_norm(z).clamp_min(torch.finfo(z.dtype).tiny)
    return z / norm
