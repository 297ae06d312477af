"""The configuration of a run whose momentum adapts: `--momentum adaptive`, `feedback`, ..., `--adapt mu`, ..."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from gyroscope import momentum, rules
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.momentum import Placement
from gyroscope.research.adaptive.curvature import ADAPTATIONS
from gyroscope.runs.config import HOW, Config, ResolvedConfig, names_the_nearest, option
from gyroscope.simulation import tasks

PLACEMENTS: Mapping[str, Placement] = {
    placement.name: placement
    for placement in (
        Placement(
            "feedback",
            "before the rule, at each worker, with the server's last result G': G = F(g_1 + mu G', ..., g_n + mu G')",
            "El Mhamdi et al. 2020, released code",
        ),
        Placement(
            "adaptive",
            "server-kept while the decrease condition holds, by robust estimates from all rows; else server",
            "El Mhamdi et al. 2020, conclusion",
        ),
        Placement(
            "adaptive-oracle",
            "as adaptive, with the condition computed from the honest rows alone, which no server knows",
            "El Mhamdi et al. 2020, conclusion",
        ),
    )
}


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class AdaptiveConfig(Config):
    """`Config` with placements and factors that adapt to the trajectory."""

    shown_if_unusual: ClassVar[tuple[str, ...]] = (*Config.shown_if_unusual, "adapt")
    placements: ClassVar[Mapping[str, Placement]] = {**momentum.PLACEMENTS, **PLACEMENTS}

    adapt: str = option(
        "none",
        HOW,
        "what follows the trajectory's curvature: none, mu, lr, safe-lr, mu+lr, ... "
        "(documentation: A momentum factor and a learning rate that adapt)",
        metavar="WHAT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapt not in ADAPTATIONS:
            raise UnknownNameError("adaptation", self.adapt, ADAPTATIONS)
        if self.nesterov and self.adapt != "none":
            raise ConfigError(f"adapt = {self.adapt!r} has no look-ahead form: leave out adapt or leave out nesterov")
        if self.nesterov and self.momentum in PLACEMENTS:
            raise ConfigError(
                f"{self.momentum!r} has no look-ahead form: leave nesterov out, or use 'workers' or 'server'"
            )

    def resolve(self, task: tasks.Task | None = None) -> ResolvedAdaptiveConfig:
        """Return the complete configuration, checked before anything runs."""
        config = ResolvedAdaptiveConfig(**self.complete_values(task))
        config.check()
        return config


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class ResolvedAdaptiveConfig(ResolvedConfig, AdaptiveConfig):
    """An `AdaptiveConfig` that can run."""

    def check(self) -> None:
        """Raise a GyroscopeError that says what cannot be, if anything."""
        super().check()
        if self.sample is not None or self.worker_weights != "equal":
            raise ConfigError(
                "momentum and rates that adapt follow the rows of all workers in every round alike: leave out sample "
                f"and worker_weights, got sample = {self.sample} and worker_weights = {self.worker_weights}"
            )
        if self.momentum.startswith("adaptive") and "trusted" in rules.parse(self.rule).uses:
            raise ConfigError(
                f"the placement {self.momentum!r} shows the rule now gradients, now accumulated ones, and a trusted "
                "gradient compares with one kind only: use workers, server-kept, server or none"
            )
