"""`BucketMomentum`: momentum of parameters that DDP groups into buckets, and groups anew after the first step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyroscope._linalg import flat_parameters
from gyroscope.momentum import WorkerMomentum


class BucketMomentum:
    """One `WorkerMomentum` for each group of parameters that is exchanged together."""

    def __init__(self, mu: float, dampening: float) -> None:
        self.mu, self.dampening = mu, dampening
        self._momenta: dict[tuple[Tensor, ...], WorkerMomentum] = {}
        self._carried: dict[Tensor, Tensor] = {}
        """Momentum of parameters that no group has yet: from a saved state, or from groups that are no more."""

    def update(self, parameters: tuple[Tensor, ...], row: Tensor) -> Tensor:
        """Accumulate the gradients of a group, and return the row to send. It is valid until the next update."""
        if parameters not in self._momenta:
            self._momenta[parameters] = self._regrouped(parameters, row)
        momentum = self._momenta[parameters]
        return momentum.update(row, out=momentum.buffer)

    def by_parameter(self) -> dict[Tensor, Tensor]:
        """Return each parameter's momentum."""
        found = dict(self._carried)
        for group, momentum in self._momenta.items():
            found.update(_by_parameter(group, momentum))
        return found

    def load(self, by_parameter: dict[Tensor, Tensor]) -> None:
        """Continue from the momentum of each parameter."""
        self._momenta, self._carried = {}, by_parameter

    def _regrouped(self, parameters: tuple[Tensor, ...], row: Tensor) -> WorkerMomentum:
        """Return the momentum of a new group, with what its parameters had in other groups."""
        members = set(parameters)
        for group in [group for group in self._momenta if not members.isdisjoint(group)]:
            self._carried.update(_by_parameter(group, self._momenta.pop(group)))
        fresh = WorkerMomentum(self.mu, dampening=self.dampening)
        if not self._carried.keys().isdisjoint(members):
            fresh.buffer = torch.zeros_like(row)
            for parameter, piece in pieces_of(parameters, fresh.buffer).items():
                if parameter in self._carried:
                    piece.copy_(self._carried.pop(parameter))
        return fresh


def _by_parameter(group: Sequence[Tensor], momentum: WorkerMomentum) -> dict[Tensor, Tensor]:
    saved = momentum.state_dict()
    return pieces_of(group, saved["momentum"]) if saved else {}


def pieces_of(parameters: Sequence[Tensor], vector: Tensor) -> dict[Tensor, Tensor]:
    """Return each parameter's piece of a vector, as a view."""
    width = sum(parameter.numel() for parameter in parameters)
    return dict(zip(parameters, flat_parameters.split_like(vector[:width], list(parameters)), strict=True))
