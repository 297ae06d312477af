"""The parameters of a round as one sealed message in shared memory, which every link sends right from there."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from gyroscope.distributed.protocol import EVERYBODY, ROUND, Message

PLACES = 2


class BroadcastBuffer:
    """Two places for messages. One is enough while every worker has received the parameters before the next are due;
    what a slow link still sends from stays as it is, and the next ones are written to the other place."""

    def __init__(self, values: int, dtype: torch.dtype) -> None:
        size = Message.bytes(values, dtype)
        self.buffers = tuple(shared(torch.zeros(size, dtype=torch.uint8)) for _ in range(PLACES))
        self._messages = [Message(values, dtype, buffer) for buffer in self.buffers]

    def write(self, step: int, parameters: Tensor, in_use: Collection[int]) -> int:
        """Seal the parameters of this step for everybody, in a place that is not in use; which one it is."""
        place = next(place for place in range(PLACES) if place not in in_use)
        self._messages[place].values.copy_(parameters)
        self._messages[place].seal(ROUND, step, EVERYBODY)
        return place


def shared(values: Tensor) -> Tensor:
    """The tensor, moved to memory that other processes can be given."""
    values.share_memory_()  # type: ignore[no-untyped-call]
    return values
