"""Several parameter servers, some of them Byzantine, in the way of GuanYu (El Mhamdi et al. 2020): simulated.

    from gyroscope.research.replicated import ReplicatedConfig

    gy.train(ReplicatedConfig(rule="krum", attack="little", byzantine=3, servers=6, byzantine_servers=1,
                              server_attack="sign-flip"))

`quorums` has the bounds and draws who is heard, `model_exchange` what the servers send, `servers` what they remember,
`drift` how far the honest ones are apart, `replicated_round` the round. docs/beyond/servers.md has the results.
"""

from __future__ import annotations

from gyroscope.research.replicated.replicated_config import ReplicatedConfig
from gyroscope.research.replicated.replicated_run import ReplicatedResult, ReplicatedRun
from gyroscope.runs.variants import Variant

VARIANT = Variant("several servers", ReplicatedConfig, ReplicatedRun)

__all__ = ["VARIANT", "ReplicatedConfig", "ReplicatedResult", "ReplicatedRun"]
