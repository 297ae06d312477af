"""The configuration of one asynchronous run: a configuration as any other, and when things happen besides."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from gyroscope import attacks
from gyroscope._core.errors import ConfigError
from gyroscope.attacks import Attack, nested
from gyroscope.research.asynchronous import dampening, events, kardam, placement
from gyroscope.runs.config import NO_ATTACK, Config, names_the_nearest
from gyroscope.simulation.tasks import Task

_WHAT, _WHO, _HOW, _WHEN = "what is learned", "who attacks, who defends", "how it is trained", "who is how fast"
_RECORD = "what is recorded"


def _option(default: Any, group: str, help: str, metavar: str | None = None) -> Any:
    metadata = {"group": group, "help": help, "metavar": metavar, "experiment": True}
    return dataclasses.field(default=default, metadata=metadata)


_SEARCHED = ("factor", "sign", "gamma", "epsilon")
"""Parameters of attacks which, with `auto`, are searched for against the rule."""


def _check_no_search(attack: Attack) -> None:
    for part in nested.parts(attack):
        for name in _SEARCHED:
            if getattr(part, name, None) == "auto":
                raise ConfigError(
                    f"the attack '{part}' searches for the {name} that is worst for a rule, and asynchronous "
                    "training has none: give it a number"
                )


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class AsyncConfig(Config):
    """Everything that determines an asynchronous run.

    Time is counted in rounds: one is the time in which a worker of speed 1 computes a gradient, so that as many
    gradients arrive in it as in a synchronous round. The learning rate is a round's, too: each of n workers' gradients
    moves the model by lr / n times itself.
    """

    inapplicable: ClassVar[tuple[str, ...]] = (
        "rule", "trusted", "adapt", "measure_every", "checkpoint_every",
        "servers", "byzantine_servers", "declared_byzantine_servers", "server_attack", "server_quorum",
        "worker_quorum", "exchange_every",
    )  # fmt: skip

    steps: int | None = _option(None, _WHAT, "length of the run, in rounds of simulated time", "T")
    batch: int | None = _option(None, _WHAT, "samples per gradient", "B")
    attack: str = _option("none", _WHO, "what Byzantine workers send, e.g. little:factor=1.5", "ATTACK")
    declared_byzantine: int | None = _option(
        None, _WHO, "f, how many the filter is told to tolerate (default: as many as there are)", "F"
    )
    filter: str = _option(
        "kardam", _WHO, "what decides over each gradient: kardam, lipschitz, frequency, none", "FILTER"
    )
    momentum: str = _option(
        "workers", _HOW, "where momentum is computed: workers, server, server-each, server-rounds, none", "PLACE"
    )
    lr: str | float | None = _option(
        None, _HOW, "learning rate of a round (a gradient is applied with 1/n of it), or a schedule over rounds", "RATE"
    )
    dampening: str = _option(
        "none", _HOW, "how much stale gradients count: none, inverse, exponential:alpha=0.2", "LAMBDA"
    )

    speeds: str = _option(
        "lognormal:sigma=0.5", _WHEN, "of honest workers: equal, lognormal:sigma=S, or a list such as 1,1,0.5", "SPEEDS"
    )
    byzantine_speed: float = _option(1.0, _WHEN, "of Byzantine workers: 10 sends ten gradients a round", "S")
    jitter: float = _option(0.2, _WHEN, "each computation's time varies by exp(jitter * normal)", "SIGMA")
    stragglers: float = _option(0.0, _WHEN, "probability that a computation straggles", "P")
    straggler_factor: float = _option(10.0, _WHEN, "how many times longer it then takes", "X")
    idle: float = _option(
        0.0,
        _WHEN,
        "an honest worker's pause between two gradients, in computing times: the longer, the less stale",
        "X",
    )

    evaluate_every: int | None = _option(None, _RECORD, "rounds between evaluations on the test set", "K")
    compare_orders: bool = _option(
        False,
        _RECORD,
        "also judge by the other order of filter and momentum: the column other_accepted of arrivals.csv",
    )

    def __post_init__(self) -> None:
        for name in ("byzantine_speed", "jitter", "stragglers", "straggler_factor", "idle"):
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                object.__setattr__(self, name, float(value))
        super().__post_init__()
        for field in dataclasses.fields(self):
            if field.name in self.inapplicable and getattr(self, field.name) != field.default:
                raise ConfigError(f"{field.name} means nothing to asynchronous training: leave it out")
        for name in ("byzantine_speed", "straggler_factor"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)}")
        for name in ("jitter", "idle"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be at least 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.stragglers <= 1:
            raise ConfigError(f"stragglers must be a probability, between 0 and 1, got {self.stragglers}")

    @property
    def gate(self) -> str:
        return f"async-{self.filter}"

    def resolve(self, task: Task | None = None) -> AsyncConfig:
        resolved = super().resolve(task)
        assert isinstance(resolved, AsyncConfig)
        return dataclasses.replace(
            resolved, filter=str(kardam.parse(self.filter)), dampening=str(dampening.parse(self.dampening))
        )

    def check(self) -> None:
        """Whether a resolved configuration can run."""
        assert self.workers is not None and self.declared_byzantine is not None and self.mu is not None
        self.check_attack()
        if self.attack != NO_ATTACK:
            _check_no_search(attacks.parse(self.attack))
        kardam.parse(self.filter).check_feasible(self.workers, self.declared_byzantine)
        dampening.parse(self.dampening)
        placement.check(self.momentum, self.mu, self.nesterov)
        events.speeds(self.speeds, self.workers - self.byzantine, self.seed)

    def pace(self) -> events.Pace:
        """Who is how fast, for a resolved configuration."""
        assert self.workers is not None
        honest = self.workers - self.byzantine
        own = events.speeds(self.speeds, honest, self.seed)
        return events.Pace(
            events.all_speeds(own, self.byzantine, self.byzantine_speed),
            honest=honest,
            seed=self.seed,
            jitter=self.jitter,
            stragglers=self.stragglers,
            straggler_factor=self.straggler_factor,
            idle=self.idle,
        )
