"""The gradients that Byzantine workers would send if they followed the protocol, for attacks that begin with them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gyroscope._core.errors import ConfigError
from gyroscope.momentum import WorkerMomentum
from gyroscope.simulation.workers import SimulatedWorkers, restore_buffers


class ByzantineGradients:
    """Compute the Byzantine workers' own gradients, on right or on flipped labels, when an attack asks for them.

    Their numbers follow the honest workers', so their batches differ from theirs. Nothing here changes the run: neither
    the model's buffers nor anybody's randomness.
    """

    def __init__(
        self, honest: SimulatedWorkers, byzantine: int, make_momentum: Callable[[], WorkerMomentum] | None
    ) -> None:
        """Compute nothing yet.

        Args:
            honest: the honest workers of the run.
            byzantine: how many more there are.
            make_momentum: how to make their momentum, where they accumulate as the honest workers do.
        """
        self.honest, self.byzantine, self.make_momentum = honest, byzantine, make_momentum
        self._made: dict[bool, tuple[SimulatedWorkers, WorkerMomentum | None]] = {}

    def at(self, step: int) -> Callable[[bool], Tensor]:
        """Return a function from `flipped` to this round's (f, d) rows; asking twice accumulates once."""
        compute_once = functools.cache(functools.partial(self._rows, step))
        return lambda flipped: compute_once(flipped).clone()

    def _rows(self, step: int, flipped: bool) -> Tensor:
        workers, momentum = self._of(flipped)
        with unchanged_buffers(self.honest.model):
            _, sampled = workers.sample(step)
        return sampled if momentum is None else momentum.update(sampled)

    def _of(self, flipped: bool) -> tuple[SimulatedWorkers, WorkerMomentum | None]:
        if flipped not in self._made:
            relabel = flip(self.honest.data.targets) if flipped else None
            momentum = None if self.make_momentum is None else self.make_momentum()
            self._made[flipped] = self.honest.beside(self.byzantine, relabel), momentum
        return self._made[flipped]

    def state_dict(self) -> dict[str, Any]:
        """Return the Byzantine workers' momentum."""
        return {str(flipped): momentum.state_dict() for flipped, (_, momentum) in self._made.items() if momentum}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        for flipped in (False, True):
            if str(flipped) in state:
                _, momentum = self._of(flipped)
                assert momentum is not None
                momentum.load_state_dict(state[str(flipped)])


def flip(targets: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the exchange of labels y <-> C-1-y for the C classes of these targets. Ignored ones (below 0) stay."""
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ConfigError(f"labels can be flipped where they are whole numbers, but this task's are {targets.dtype}")
    last = int(targets.max())
    return lambda labels: torch.where(labels < 0, labels, last - labels)


@contextlib.contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Restore batch-norm's running statistics afterwards: a forward pass moves them, and they serve evaluation."""
    before = [buffer.clone() for buffer in model.buffers()]
    yield
    restore_buffers(model, before)
