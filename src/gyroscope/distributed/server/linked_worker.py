"""`LinkedWorker`: what the server keeps of one worker from round to round."""

from __future__ import annotations

import math

from torch import Tensor

from gyroscope.distributed.protocol import NO_STEP

_MOST_MISSES = 10


class LinkedWorker:
    """What the server knows of a worker, linked or not."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.momenta: list[tuple[int, Tensor]] = []
        """The worker's momentum after the last two steps that it has answered, with the steps."""
        self.late = False
        """Whether it missed a deadline and has not answered since, whoever has its number now."""
        self.misses = 0.0
        """How many deadlines it has missed; eight rows in time make up for one."""
        self.awaited_from = 0
        """The first step that waits for it."""
        self.is_gone()

    def is_gone(self) -> None:
        """Forget its link."""
        self.identity = ""
        self.linked = self.idle = False
        """Whether it has joined, and whether it can be asked."""
        self.answered = False
        """Whether it answered in this round, well or badly."""
        self.asked = NO_STEP
        """The last step that it was asked for."""

    def is_awaited(self, step: int) -> bool:
        """Return whether this round waits for it."""
        return self.asked == step and not self.late and not self.answered and step >= self.awaited_from

    def miss(self, step: int) -> None:
        """Note a missed deadline. With each, twice as many rounds follow that do not wait for it.

        Else a worker that answers a moment too late, every time, would have every round last as long as the deadline.
        """
        self.late = True
        self.misses = min(self.misses + 1, _MOST_MISSES)
        self.awaited_from = step + 2 ** int(self.misses)

    def keep_momentum(self, step: int, momentum: Tensor) -> None:
        """Keep the momentum of an answer, where it was received, and that of the answer before it."""
        self.momenta = [*self.momenta[-1:], (step, momentum)]

    def copy_momenta(self) -> None:
        """Copy what is kept out of the link's buffers, because the next answer may overwrite them."""
        self.momenta = [(step, momentum.clone()) for step, momentum in self.momenta]

    def momentum(self, until: float = math.inf) -> tuple[int, Tensor | None]:
        """Return the worker's last momentum up to this step, and its step; NO_STEP where there is none."""
        return next((known for known in reversed(self.momenta) if known[0] <= until), (NO_STEP, None))
