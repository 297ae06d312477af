"""Training on several machines with torch.distributed.

`RobustSGD` replaces DistributedDataParallel + SGD in a script whose ranks are all alike; see docs/distributed.md.
"""

from __future__ import annotations

from gyroscope.distributed.robust_sgd import RobustSGD

__all__ = ["RobustSGD"]
