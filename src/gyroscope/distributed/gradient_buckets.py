"""What DistributedDataParallel hands over in a step, and what of it the ranks exchange together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    update: Any = None
    """The `Update`, once the ranks have exchanged their rows."""
