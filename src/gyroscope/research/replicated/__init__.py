"""Several parameter servers, some of them Byzantine, as in GuanYu (El Mhamdi et al. 2020), simulated.

    from gyroscope.research.replicated import ReplicatedConfig

    gy.train(ReplicatedConfig(rule="krum", attack="little", byzantine=3, servers=6, byzantine_servers=1,
                              server_attack="sign-flip"))

`quorums` checks the bounds and draws the quorums, `model_exchange` computes what servers and workers receive, `servers`
holds the servers' state, `replicated_round` plays the round, `drift` measures how far the honest servers are apart.
docs/beyond/servers.md has the results.
"""

from __future__ import annotations

from gyroscope.research.replicated.replicated_config import ReplicatedConfig
from gyroscope.research.replicated.replicated_run import ReplicatedResult, ReplicatedRun
from gyroscope.runs.variants import Variant

VARIANT = Variant("several servers", ReplicatedConfig, ReplicatedRun)

__all__ = ["VARIANT", "ReplicatedConfig", "ReplicatedResult", "ReplicatedRun"]
