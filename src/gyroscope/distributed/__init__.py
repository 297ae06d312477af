"""Training on several machines with torch.distributed.

In a script whose ranks are all alike, `ddp` and `fsdp` make a DistributedDataParallel or fully sharded model robust,
whatever its optimizer; `RobustOptimizer` and `RobustSGD` do without these, and `diloco` exchanges what many local steps
have learned. See docs/distributed.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gyroscope.distributed.elastic_exchange import Ranks
from gyroscope.distributed.local_steps import DiLoCo, diloco
from gyroscope.distributed.robust_ddp import RobustDDP, ddp
from gyroscope.distributed.robust_optimizer import RobustOptimizer
from gyroscope.distributed.robust_sgd import RobustSGD

if TYPE_CHECKING:
    from gyroscope.distributed.robust_fsdp import RobustFSDP, fsdp

__all__ = [
    "DiLoCo", "Ranks", "RobustDDP", "RobustFSDP", "RobustOptimizer", "RobustSGD", "ddp", "diloco", "fsdp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("RobustFSDP", "fsdp"):  # torch takes long to load its part of it
        from gyroscope.distributed import robust_fsdp

        return getattr(robust_fsdp, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
