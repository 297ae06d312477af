"""The run configuration of the ready app: Flower's flat keys, checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gyroscope import rules
from gyroscope._core import optional
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.momentum import BASIC_PLACEMENTS, check_placement
from gyroscope.runs.config import Config, ResolvedConfig
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks

Value = bool | int | float | str


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `[tool.flwr.app.config]` says, dashes for underscores. `flwr run -c 'rule="median"'` changes it."""

    rounds: int = 20
    nodes: int = 5
    rule: str = "krum"
    f: int = 1
    momentum: str = "workers"
    mu: float = 0.9
    lr: str = "0.05"
    """Of the local steps; may change with the round: `0.05,15:0.01`."""
    local_steps: int = 50
    batch: int = 16
    """Samples per local step; 0 for the task's own choice."""
    task: str = "digits"
    seed: int = 1
    timeout: float = 120.0
    """Seconds that the nodes have for a round."""
    patience: int = 3
    out: str = ""
    """Where the run directory goes; relative to where the SuperLink was started."""
    data_dir: str = ""

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
        """From a Flower app's run configuration. An unknown key or a value of another type is an error."""
        kinds = {field.name.replace("_", "-"): type(field.default) for field in dataclasses.fields(cls)}
        values = {}
        for key, value in run_config.items():
            if key not in kinds:
                raise UnknownNameError("key in the run configuration", key, kinds)
            values[key.replace("-", "_")] = _converted(key, value, kinds[key])
        return cls(**values)  # type: ignore[arg-type]

    def config(self, task_batch: int) -> ResolvedConfig:
        """The same as one of Gyroscope's configurations, for the run directory. A step is a round there."""
        return Config(
            task=self.task,
            rule=self.rule,
            workers=self.nodes,
            declared_byzantine=self.f,
            momentum=self.momentum,
            mu=self.mu,
            lr=self.lr,
            batch=self.batch or task_batch,
            steps=self.rounds,
            evaluate_every=1,
            seed=self.seed,
            data_dir=self.data_dir or None,
        ).resolve()

    def to_toml(self) -> str:
        """As it stands in `[tool.flwr.app.config]`."""
        return optional.format_toml({key.replace("_", "-"): value for key, value in dataclasses.asdict(self).items()})


def _converted(key: str, value: Value, kind: type) -> Value:
    if kind is str and not isinstance(value, bool):
        return str(value)  # lr = 0.1 is as good as lr = "0.1"
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", str: "text"}
        raise ConfigError(f"{key} must be {names[kind]}, got {value!r}")
    return value
