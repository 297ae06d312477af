"""The run configuration of the ready app: Flower's flat keys, checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gyroscope import rules
from gyroscope._core import optional
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.momentum import BASIC_PLACEMENTS, check_placement
from gyroscope.runs.config import Config, ResolvedConfig
from gyroscope.runs.field_types import typed
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks

Value = bool | int | float | str


def _setting(default: Value, comment: str) -> Any:
    """Declare a setting with its comment in a new app's pyproject.toml."""
    return dataclasses.field(default=default, metadata={"comment": comment})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of `[tool.flwr.app.config]`, with underscores for dashes. `flwr run -c 'rule="median"'` changes one."""

    rounds: int = 20
    nodes: int = _setting(5, "n: how many nodes are asked each round")
    rule: str = _setting("krum", "gyroscope list rules")
    f: int = _setting(1, "how many of the nodes may send anything, crash or stay silent")
    momentum: str = _setting("workers", "workers, server, none")
    mu: float = 0.9
    lr: str = _setting("0.05", 'of the local steps; "0.05,15:0.01" for 0.01 from round 15 on')
    local_steps: int = _setting(50, "many when deployed: a round takes seconds, a step milliseconds")
    batch: int = _setting(16, "samples per local step; 0: the task's own choice")
    task: str = _setting("digits", "gyroscope list tasks")
    seed: int = 1
    timeout: float = _setting(120.0, "seconds that the nodes have for a round")
    patience: int = _setting(3, "rounds in a row with too few valid replies before the run stops")
    out: str = _setting("", "run directory; empty: a new one in runs/, where the SuperLink was started")
    data_dir: str = _setting("", "folder of the data set on the node; empty: GYROSCOPE_DATA, the cache, or a download")

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("nodes", 1), ("f", 0), ("local_steps", 1), ("batch", 0), ("patience", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name.replace('_', '-')} must be at least {least}, got {getattr(self, name)}")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be above 0 seconds, got {self.timeout}")
        rule = rules.parse(self.rule)
        rule.check_feasible(self.nodes, self.f)
        rules.refuse_trusted(rule, "a Flower app")
        check_placement(self.momentum, self.mu, False, BASIC_PLACEMENTS)
        Schedule.parse(self.lr)
        tasks.parse(self.task)

    @classmethod
    def of(cls, run_config: Mapping[str, Value]) -> Settings:
        """Read a Flower app's run configuration. An unknown key or a value of another type is an error."""
        kinds = {field.name.replace("_", "-"): str(field.type) for field in dataclasses.fields(cls)}
        values = {}
        for key, value in run_config.items():
            if key not in kinds:
                raise UnknownNameError("key in the run configuration", key, kinds)
            if kinds[key] == "str" and not isinstance(value, bool):
                value = str(value)  # Flower's command line makes a number of lr = "0.1"
            values[key.replace("-", "_")] = typed(key, kinds[key], value)
        return cls(**values)

    def config(self) -> ResolvedConfig:
        """Return the same as one of Gyroscope's configurations, for the run directory. A step is a round there."""
        same = {name: getattr(self, name) for name in ("task", "rule", "momentum", "mu", "lr", "seed")}
        same |= {"batch": self.batch or None, "data_dir": self.data_dir or None, "evaluate_every": 1}
        return Config(workers=self.nodes, declared_byzantine=self.f, steps=self.rounds, **same).resolve()

    def to_toml(self) -> str:
        """Return the text of `[tool.flwr.app.config]`."""
        return optional.format_toml({key.replace("_", "-"): value for key, value in dataclasses.asdict(self).items()})
