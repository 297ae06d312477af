"""Training on several machines with torch.distributed.

In a script whose ranks are all alike, `ddp` and `fsdp` make a DistributedDataParallel or fully sharded model robust,
whatever its optimizer; `RobustOptimizer` and `RobustSGD` do without these, and `diloco` exchanges what many local steps
have learned. See docs/distributed.md.
"""

from __future__ import annotations

from gyroscope.distributed.ddp import RobustDDP, ddp
from gyroscope.distributed.diloco import DiLoCo, diloco
from gyroscope.distributed.elastic_exchange import Ranks
from gyroscope.distributed.fsdp import RobustFSDP, fsdp
from gyroscope.distributed.robust_optimizer import RobustOptimizer
from gyroscope.distributed.robust_sgd import RobustSGD

__all__ = ["DiLoCo", "Ranks", "RobustDDP", "RobustFSDP", "RobustOptimizer", "RobustSGD", "ddp", "diloco", "fsdp"]
