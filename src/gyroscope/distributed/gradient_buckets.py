"""What DistributedDataParallel hands over in a step, and what of it the ranks exchange together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.futures import Future

from gyroscope.distributed.bucket_momentum import pieces_of


class GradientBucket(NamedTuple):
    """Gradients that DDP hands over together, as one vector, and the future for what takes their place."""

    buffer: Tensor
    parameters: tuple[Tensor, ...]
    future: Future[Tensor]

    def pieces(self) -> dict[Tensor, Tensor]:
        return pieces_of(self.parameters, self.buffer)


@dataclasses.dataclass
class ExchangedPart:
    """What is exchanged together in a step: the whole model, or a bucket."""

    order: tuple[Tensor, ...]
    sent: Tensor
    buckets: Sequence[GradientBucket]
    result: Tensor | None = None
    """(d,): what takes the place of the gradients, once the ranks have exchanged their rows."""
    weight: Tensor | None = None
    notice: Tensor | None = None
    """`ShardedAggregator.notice`."""

    def hand_out(self) -> None:
        """Give every bucket its part of the result."""
        assert self.result is not None
        if len(self.buckets) == 1 and self.order is self.buckets[0].parameters:
            self.buckets[0].future.set_result(self.result)
            return
        results = pieces_of(self.order, self.result)
        for bucket in self.buckets:
            bucket.future.set_result(torch.cat([results[each].reshape(-1) for each in bucket.parameters]))
