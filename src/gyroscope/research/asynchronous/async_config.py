"""The configuration of one asynchronous run: what every run has, the filter, and the workers' speeds."""

from __future__ import annotations

import dataclasses
import math

from gyroscope import attacks
from gyroscope._core.errors import ConfigError
from gyroscope.attacks import Attack, nested
from gyroscope.research.asynchronous import async_placement, dampening, kardam, timing
from gyroscope.runs.config import (
    HOW,
    NO_ATTACK,
    RECORD,
    WHAT,
    WHO,
    CommonConfig,
    ResolvedCommon,
    names_the_nearest,
    option,
)
from gyroscope.simulation.tasks import Task

_SPEED = "how fast the workers are"

_SEARCHED = ("factor", "sign", "gamma", "epsilon", "z")
"""Parameters of attacks whose value `auto` is a search against the rule."""


def _check_no_search(attack: Attack) -> None:
    for part in nested.parts(attack):
        if part.name == "searched":
            raise ConfigError(
                f"the attack '{part}' searches for what is worst for a rule, and asynchronous training has none: "
                "choose another attack"
            )
        for name in _SEARCHED:
            if getattr(part, name, None) == "auto":
                raise ConfigError(
                    f"the attack '{part}' searches for the {name} that is worst for a rule, and asynchronous training "
                    "has none: give it a number"
                )


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class AsyncConfig(CommonConfig):
    """Everything that determines an asynchronous run. `None` means: as the task has it.

    Time is counted in rounds. A worker of speed 1 computes one gradient per round, so that as many gradients arrive in
    a round as in a synchronous one. The learning rate, too, is that of a round: each of n workers' gradients moves the
    model by lr / n times itself.
    """

    steps: int | None = option(None, WHAT, "length of the run, in rounds of simulated time", "T")
    batch: int | None = option(None, WHAT, "samples per gradient", "B")
    attack: str = option("none", WHO, "what Byzantine workers send, e.g. little:factor=1.5", "ATTACK")
    declared_byzantine: int | None = option(
        None, WHO, "f, how many the filter is told to tolerate (default: as many as there are)", "F"
    )
    filter: str = option("kardam", WHO, "what judges each gradient: kardam, lipschitz, frequency, none", "FILTER")
    momentum: str = option(
        "workers", HOW, "where momentum is computed: workers, server, server-each, server-rounds, none", "PLACE"
    )
    lr: str | float | None = option(
        None, HOW, "learning rate of a round (a gradient is applied with 1/n of it), or a schedule over rounds", "RATE"
    )
    dampening: str = option(
        "none", HOW, "the factor of a stale gradient: none, inverse, exponential:alpha=0.2", "LAMBDA"
    )

    speeds: str = option(
        "lognormal:sigma=0.5",
        _SPEED,
        "of honest workers: equal, lognormal:sigma=S, or a list such as 1,1,0.5",
        "SPEEDS",
    )
    byzantine_speed: float = option(1.0, _SPEED, "of Byzantine workers: 10 sends ten gradients a round", "S")
    jitter: float = option(0.2, _SPEED, "each computation's time varies by exp(jitter * normal)", "SIGMA")
    stragglers: float = option(0.0, _SPEED, "probability that a computation straggles", "P")
    straggler_factor: float = option(10.0, _SPEED, "how many times longer it then takes", "X")
    idle: float = option(
        0.0,
        _SPEED,
        "an honest worker's pause between two gradients, in computing times: the longer, the less stale",
        "X",
    )

    evaluate_every: int | None = option(None, RECORD, "rounds between evaluations on the test set", "K")
    compare_orders: bool = option(
        False,
        RECORD,
        "also judge by the other order of filter and momentum: the column other_accepted of arrivals.csv",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("byzantine_speed", "straggler_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("jitter", "idle"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.stragglers <= 1:
            raise ConfigError(f"stragglers must be a probability, between 0 and 1, got {self.stragglers}")

    @property
    def aggregation(self) -> str:
        """What stands between the workers and the model, as a directory's name has it."""
        return f"async-{self.filter}"

    def resolve(self, task: Task | None = None) -> ResolvedAsyncConfig:
        """Return the complete configuration, checked before anything runs."""
        values = self.complete_values(task)
        values["filter"] = str(kardam.parse(self.filter))
        values["dampening"] = str(dampening.parse(self.dampening))
        config = ResolvedAsyncConfig(**values)
        config.check()
        return config


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class ResolvedAsyncConfig(ResolvedCommon, AsyncConfig):
    """An `AsyncConfig` that can run."""

    def check(self) -> None:
        """Raise a GyroscopeError that says what cannot be, if anything."""
        self.check_attack()
        if self.attack != NO_ATTACK:
            _check_no_search(attacks.parse(self.attack))
        kardam.parse(self.filter).check_feasible(self.workers, self.declared_byzantine)
        async_placement.check(self.momentum, self.mu, self.nesterov)
        timing.speeds(self.speeds, self.workers - self.byzantine, self.seed)

    def worker_timing(self) -> timing.WorkerTiming:
        """Return how long each worker's computations take."""
        honest = self.workers - self.byzantine
        own = timing.speeds(self.speeds, honest, self.seed)
        return timing.WorkerTiming(
            timing.all_speeds(own, self.byzantine, self.byzantine_speed),
            honest=honest,
            seed=self.seed,
            jitter=self.jitter,
            stragglers=self.stragglers,
            straggler_factor=self.straggler_factor,
            idle=self.idle,
        )
