"""What the Byzantine workers would send if they followed the protocol: for attacks that begin with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, MutableMapping

import torch
from torch import Tensor, nn

from gyroscope._core.errors import ConfigError
from gyroscope.momentum import Placement, State
from gyroscope.simulation.workers import SimulatedWorkers

_NOTES = {False: "own/", True: "own, flipped/"}


class ByzantineGradients:
    """The Byzantine workers at data of their own, whose numbers come after the honest workers' and whose batches so
    are others than theirs. Nothing is computed before somebody asks, and nothing here changes the run: neither the
    model's buffers nor anybody's randomness.

    Their momentum is among the adversary's notes, so that a checkpoint has it: one for right labels, one for flipped
    ones. What of a placement's state has no row for each worker is everybody's, and taken from the round.
    """

    def __init__(self, honest: SimulatedWorkers, byzantine: int, placement: Placement) -> None:
        self.honest, self.byzantine, self.placement = honest, byzantine, placement
        self._workers: dict[bool, SimulatedWorkers] = {}

    def at(
        self, step: int, notes: MutableMapping[str, Tensor], state: State, mu: float | None = None
    ) -> Callable[[bool], Tensor]:
        """A function from flipped to this round's rows; asking twice computes and accumulates once.

        mu: the momentum factor of this round, where it changes.
        """
        known: dict[bool, Tensor] = {}
        placement = self.placement if mu is None else self.placement.at(mu)

        def rows(flipped: bool = False) -> Tensor:
            if flipped not in known:
                known[flipped] = self._rows(placement, step, notes, state, flipped)
            return known[flipped].clone()

        return rows

    def _rows(
        self, placement: Placement, step: int, notes: MutableMapping[str, Tensor], common: State, flipped: bool
    ) -> Tensor:
        with as_it_was(self.honest.model):
            _, sampled = self._of(flipped).sample(step)
        if not placement.accumulates_rows:
            return sampled
        prefix, first = _NOTES[flipped], placement.init(sampled)
        ours = [name for name, value in first.items() if value.dim() == sampled.dim()]
        kept = {name: notes.get(prefix + name, first[name]) for name in ours}
        sent, state = placement.before(sampled, {**common, **kept})
        notes.update({prefix + name: state[name] for name in ours})
        return sent

    def _of(self, flipped: bool) -> SimulatedWorkers:
        if flipped not in self._workers:
            relabel = flip(self.honest.data.targets) if flipped else None
            self._workers[flipped] = self.honest.beside(self.byzantine, relabel)
        return self._workers[flipped]


def flip(targets: Tensor) -> Callable[[Tensor], Tensor]:
    """The exchange of labels y <-> C-1-y, for the C classes of these targets. Ignored ones (below 0) stay."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ConfigError(f"labels can be flipped where they are whole numbers, but this task's are {targets.dtype}")
    last = int(targets.max())
    return lambda labels: torch.where(labels < 0, labels, last - labels)


@contextlib.contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """A forward pass moves batch-norm's running statistics, which serve evaluation: those are for honest data."""
    before = [buffer.clone() for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
