"""Training on several machines with torch.distributed.

In a script whose ranks are all alike, `ddp` makes a DistributedDataParallel model robust, whatever its optimizer, and
`RobustOptimizer` and `RobustSGD` do without it; see docs/distributed.md.
"""

from __future__ import annotations

from gyroscope.distributed.ddp import RobustDDP, ddp
from gyroscope.distributed.robust_optimizer import RobustOptimizer
from gyroscope.distributed.robust_sgd import RobustSGD

__all__ = ["RobustDDP", "RobustOptimizer", "RobustSGD", "ddp"]
