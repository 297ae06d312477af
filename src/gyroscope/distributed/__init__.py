"""Training on real machines with torch.distributed. Import it when you need it: `import gyroscope` does not.

`RobustSGD` replaces DistributedDataParallel + SGD in a script whose ranks are all alike; see docs/distributed.md.
"""

from __future__ import annotations

from gyroscope.distributed.robust_sgd import RobustSGD

__all__ = ["RobustSGD"]
