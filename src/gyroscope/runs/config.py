"""The configuration of one run: a frozen dataclass <-> a flat TOML file <-> the command line's options.

Each field carries its help text, so that the three cannot disagree. `Config` is what a user writes; the task gives the
values that are unset. `ResolvedConfig` is what runs: complete and checked. Other packages add configurations with more
fields as variants (`gyroscope.runs.variants`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gyroscope import attacks, momentum, rules
from gyroscope._core import optional, registry
from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.runs.field_types import plain, typed
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import server_optimizer, tasks
from gyroscope.simulation.data import shards

ConfigClass = TypeVar("ConfigClass")

CUSTOM_TASK = "custom"
NO_ATTACK = "none"
L2_FORMS = ("half-squared", "norm")
BATCHES = ("independent", "pass")
_MOST_THREADS = 1024


def option(default: Any, group: str, help: str, metavar: str | None = None, *, experiment: bool = True) -> Any:
    """Declare a field, and what `--help` shows of it under the heading `group`.

    Args:
        default: the value where none is given; None for the task's.
        experiment: whether the value changes the numbers of a run.
    """
    return dataclasses.field(
        default=default, metadata={"group": group, "help": help, "metavar": metavar, "experiment": experiment}
    )


WHAT, WHO, HOW = "what is learned", "who attacks, who defends", "how it is trained"
RECORD, MACHINE = "what is recorded", "on which machine"


def names_the_nearest(cls: type[ConfigClass]) -> type[ConfigClass]:
    """Make the constructor answer an unknown keyword with the nearest known one."""
    fill = cls.__init__
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(fill)
    def init(self: ConfigClass, *values: Any, **named: Any) -> None:
        for key in named:
            if key not in known:
                _refuse_key(cls, key, known)
        fill(self, *values, **named)

    setattr(cls, "__init__", init)  # noqa: B010  # an assignment would have to have the same signature
    return cls


def _refuse_key(cls: type[Any], key: str, known: list[str]) -> None:
    from gyroscope.runs.variants import variants

    for variant in variants():
        if key in variant.extra_fields() and issubclass(cls, Config):
            raise ConfigError(_of_a_variant(key, variant.config))
    raise UnknownNameError("configuration key", key, known)


def _of_a_variant(what: str, kind: type[Any]) -> str:
    return (
        f"{what} belongs to {kind.__name__}, a kind of run of its own since version 0.2: use "
        f"`from {kind.__module__.rpartition('.')[0] or kind.__module__} import {kind.__name__}` in place of Config"
    )


@dataclasses.dataclass(frozen=True)
class CommonConfig:
    """The fields of every kind of run. For a field that is None `resolve` takes the task's value.

    Rules, attacks and shardings are written as specs; an object given for one becomes its spec.
    """

    shown_if_unusual: ClassVar[tuple[str, ...]] = ("shards",)
    """Fields that titles and directories' names show where they differ from the default."""
    specs: ClassVar[Mapping[str, tuple[type, Callable[[str], object]]]] = {
        "attack": (attacks.Attack, attacks.parse),
        "shards": (shards.Sharding, shards.parse),
    }
    """Fields that hold the spec of an object, with the object's type and the function that builds it."""
    bounds: ClassVar[Mapping[str, int]] = {
        "steps": 1, "batch": 1, "workers": 1, "byzantine": 0, "declared_byzantine": 0, "evaluate_every": 1,
        "threads": 1,
    }  # fmt: skip
    """The least value of a whole number."""

    task: str = option("digits", WHAT, "the task, e.g. mnist or cifar10:width=0.25", "TASK")
    steps: int | None = option(None, WHAT, "number of rounds", "T")
    batch: int | None = option(None, WHAT, "samples per worker and round", "B")
    shards: str = option(
        "common", WHAT, "who holds which samples: common (all hold all), iid, dirichlet:alpha=0.1, sorted", "SHARDING"
    )
    seed: int = option(1, WHAT, "same seed, same configuration, same machine: same bits", "SEED")

    attack: str = option("none", WHO, "what Byzantine workers send, e.g. little:factor=auto", "ATTACK")
    workers: int | None = option(None, WHO, "n, all workers, the Byzantine ones included", "N")
    byzantine: int = option(0, WHO, "how many of them really are Byzantine", "F")
    declared_byzantine: int | None = option(
        None, WHO, "f, how many the rule is told to tolerate (default: as many as there are)", "F"
    )

    momentum: str = option(
        "workers", HOW, "where momentum is computed: workers, server, none, ... (`gyroscope list placements`)", "PLACE"
    )
    mu: float | None = option(None, HOW, "momentum factor, 0 <= mu < 1", "MU")
    horizon: float = option(
        1.0, HOW, "how many times longer momentum remembers, at a learning rate as many times smaller: 2 turns mu from "
        "0.9 into 0.95 and halves the rate", "K"
    )  # fmt: skip
    nesterov: bool = option(False, HOW, "Nesterov's look-ahead momentum")
    lr: str | float | None = option(None, HOW, "learning rate, or a schedule such as 0.01,1500:0.001", "RATE")
    clip: float | None = option(None, HOW, "largest norm of a worker's gradient; inf for no clipping", "C")
    l2: float | None = option(None, HOW, "L2 regularisation factor", "L")
    l2_form: str = option(
        "half-squared", HOW, "half-squared: L/2 |p|^2; norm: L^2 |p|, as in the paper's released code", "FORM"
    )
    batches: str = option(
        "independent", HOW, "independent: each worker draws by itself, with replacement; pass: one shuffled pass dealt "
        "out to all, as in the paper's released code, or with shards a pass of each worker over its own", "KIND"
    )  # fmt: skip

    evaluate_every: int | None = option(None, RECORD, "rounds between evaluations on the test set", "K")

    device: str = option("cpu", MACHINE, "cpu, cuda, cuda:1, ...", "DEV", experiment=False)
    threads: int | None = option(None, MACHINE, "CPU threads (default: as torch chooses)", "N", experiment=False)
    data_dir: str | None = option(
        None, MACHINE, "folder that holds the data set (built-in tasks: or set GYROSCOPE_DATA)", "DIR", experiment=False
    )

    def __post_init__(self) -> None:
        self._write_specs()
        if isinstance(self.task, tasks.Task):
            raise ConfigError("a gy.Task is no part of a configuration: pass it to gy.train(config, task=...)")
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if isinstance(self.lr, (int, float)) and not isinstance(self.lr, bool):
            object.__setattr__(self, "lr", repr(self.lr))
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, typed(field.name, str(field.type), getattr(self, field.name)))
        for name, least in self.bounds.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if self.threads is not None and self.threads > _MOST_THREADS:
            raise ConfigError(
                f"threads must be at most {_MOST_THREADS:,}, better one for each core, got {self.threads}"
            )
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip must be positive (inf for no clipping), got {self.clip}")
        if self.l2 is not None and not 0 <= self.l2 < math.inf:
            raise ConfigError(f"l2 must be at least 0 and finite, got {self.l2}")
        if not 1 <= self.horizon < math.inf:
            raise ConfigError(f"horizon must be at least 1 (1 leaves mu and lr as they are), got {self.horizon}")
        if self.l2_form not in L2_FORMS:
            raise UnknownNameError("l2_form", self.l2_form, L2_FORMS)
        if self.batches not in BATCHES:
            raise UnknownNameError("kind of batches", self.batches, BATCHES)
        if self.lr is not None:
            Schedule.parse(self.lr)

    def experiment(self) -> dict[str, Any]:
        """Return the settings that change the numbers of a run: not the device, the data's folder or checkpoints."""
        fields = [field.name for field in dataclasses.fields(self) if field.metadata["experiment"]]
        return {name: getattr(self, name) for name in fields}

    def unusual(self) -> dict[str, Any]:
        """Return the settings of `shown_if_unusual` that differ from their defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        shown = {name: getattr(self, name) for name in self.shown_if_unusual}
        return {name: value for name, value in shown.items() if value != defaults[name]}

    def check_attack(self) -> None:
        """Raise a GyroscopeError unless attack and number of Byzantine workers go together, and one is honest."""
        attack = None if self.attack == NO_ATTACK else attacks.parse(self.attack)
        if attack is None and self.byzantine > 0:
            raise ConfigError(
                f"{self.byzantine} Byzantine workers need something to send: choose an attack, or set "
                f"declared_byzantine = {self.byzantine} to have the rule tolerate them while all are honest"
            )
        if attack is not None and self.byzantine == 0:
            raise ConfigError(f"the attack {self.attack!r} has nobody to carry it out: set byzantine to 1 or more")
        if self.workers is not None and self.byzantine >= self.workers:
            raise ConfigError(
                f"at least one of the {self.workers} workers must be honest, but byzantine = {self.byzantine}"
            )
        if attack is not None and self.workers is not None:
            attack.check_feasible(self.workers, self.byzantine)

    @classmethod
    def from_mapping(cls: type[ConfigClass], values: Mapping[str, Any]) -> ConfigClass:
        """Build a configuration from keys and values. An unknown key is an error."""
        return cls(**values)

    @classmethod
    def load(cls: type[ConfigClass], path: str | Path) -> ConfigClass:
        """Read a TOML file.

        Raises:
            ConfigError: the file cannot be read, is not TOML, or holds an unknown key or a value out of range.
        """
        values = read_toml("configuration", path)
        try:
            return cls.from_mapping(values)  # type: ignore[attr-defined, no-any-return]
        except (ConfigError, UnknownNameError) as problem:
            remark = " (this looks like a grid: gyroscope sweep runs it)" if "grid" in values else ""
            raise ConfigError(f"{path}: {problem}{remark}") from problem

    def to_toml(self) -> str:
        """Return the TOML text that `load` reads back to an equal configuration."""
        values = dataclasses.asdict(self)
        return optional.format_toml({key: value for key, value in values.items() if value is not None})

    def complete_values(self, task: tasks.Task | None) -> dict[str, Any]:
        """Return all settings, with the task's defaults filled in and one spelling for each spec.

        A variant's `resolve` builds its own resolved configuration from them.
        """
        if task is None and self.task == CUSTOM_TASK:
            raise ConfigError("the task 'custom' exists only in Python: pass it to gy.train or gy.resume as task=...")
        known = task if task is not None else tasks.parse(self.task)
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for field in dataclasses.fields(known.defaults):
            if values.get(field.name) is None:
                values[field.name] = getattr(known.defaults, field.name)
        if self.horizon != 1:
            values["mu"] = 1 - (1 - values["mu"]) / self.horizon
            values["lr"] = str(Schedule.parse(values["lr"]).scaled(1 / self.horizon))
            values["horizon"] = 1.0
        if self.declared_byzantine is None:
            values["declared_byzantine"] = self.byzantine
        # One spelling for one thing: `krum:m=1` and `krum: m=01` must not pass for different experiments.
        values["task"] = known.name if isinstance(known, tasks.Task) else registry.text(known)
        for name, (_, parse) in self.specs.items():
            if values[name] != NO_ATTACK:
                values[name] = str(parse(values[name]))
        return values

    def _write_specs(self) -> None:
        """Replace objects by their specs: a configuration holds only what a file can hold, too."""
        for name, (kind, parse) in self.specs.items():
            value = getattr(self, name)
            if isinstance(value, type) and issubclass(value, kind):
                raise ConfigError(f"{name} must be a spec or an object, got a class: write {value.__name__}()")
            if not isinstance(value, kind):
                continue
            spec = str(value)
            try:
                same = parse(spec) == value
            except GyroscopeError:
                same = False
            if not same:
                raise ConfigError(
                    f"{name} {value!r} cannot be written down, because its spec {spec!r} does not build it again: give "
                    "the spec of a class that can be imported, such as my_module:MyClass:key=value"
                )
            object.__setattr__(self, name, spec)


@dataclasses.dataclass(frozen=True)
class ResolvedCommon(CommonConfig):
    """A resolved configuration of any kind: no field is left to the task."""

    if TYPE_CHECKING:  # the same fields, of narrower types
        steps: int = 0
        batch: int = 0
        workers: int = 0
        declared_byzantine: int = 0
        mu: float = 0.0
        lr: str = ""
        clip: float = 0.0
        l2: float = 0.0
        evaluate_every: int = 0


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class Config(CommonConfig):
    """Everything that determines a synchronous run with one server.

    `gyroscope train --help` describes the fields. For a field that is None `resolve` takes the task's value.

    Raises:
        ConfigError: a value has the wrong type or is out of range.
        UnknownNameError: there is no such field; the message has the nearest one.

    Example:
        >>> import gyroscope as gy
        >>> config = gy.Config(task="mnist", rule="krum", attack="little", byzantine=12, lr=0.5)
        >>> config.workers is None, config.resolve().workers
        (True, 51)
    """

    shown_if_unusual: ClassVar[tuple[str, ...]] = (
        "shards",
        "trusted",
        "sample",
        "absent",
        "worker_weights",
        "optimizer",
        "local_steps",
    )
    specs: ClassVar[Mapping[str, tuple[type, Callable[[str], object]]]] = {
        **CommonConfig.specs,
        "rule": (rules.Rule, rules.parse),
        "optimizer": (server_optimizer.ServerOptimizer, server_optimizer.parse),
    }
    bounds: ClassVar[Mapping[str, int]] = {
        **CommonConfig.bounds, "trusted": 0, "measure_every": 1, "checkpoint_every": 1, "local_steps": 1, "sample": 1
    }  # fmt: skip
    placements: ClassVar[Mapping[str, momentum.Placement]] = momentum.PLACEMENTS

    rule: str = option("average", WHO, "how the server aggregates, e.g. krum, krum:m=1, nnm+median", "RULE")
    trusted: int = option(
        0, WHO, "samples that the server itself holds, for rules that compare with them (zeno, fltrust)", "K"
    )
    sample: int | None = option(
        None, WHO, "how many workers a round asks, chosen at random in every round (default: all)", "M"
    )
    absent: str = option(
        "momentum", WHO, "what the rule is given of workers that a round does not ask: momentum (their last rows) or "
        "left-out (nothing, and as small an f as the sample allows)", "HOW"
    )  # fmt: skip
    worker_weights: str = option(
        "equal", WHO, "how much each worker counts: equal, sizes (of the shards), or a number for each, such as 2,1,1; "
        "for average, median, trimmed-mean and geometric-median", "WEIGHTS"
    )  # fmt: skip
    optimizer: str = option(
        "sgd", HOW, "what the server does with the aggregate: sgd, adam, adamw:beta2=0.99", "OPTIMIZER"
    )
    local_steps: int = option(
        1, HOW, "steps of SGD that each worker takes by itself in a round, to send the sum of their gradients", "K"
    )
    measure_every: int = option(1, RECORD, "rounds between rows of metrics.csv and workers.csv", "K")
    checkpoint_every: int | None = option(
        None, RECORD, "rounds between checkpoints (default: one every 30 seconds)", "K", experiment=False
    )

    @property
    def aggregation(self) -> str:
        """The rule, as a directory's name shows it."""
        return self.rule

    def resolve(self, task: tasks.Task | None = None) -> ResolvedConfig:
        """Return the complete configuration, checked before anything runs.

        Args:
            task: the caller's own task; without it, the one that the configuration names.

        Raises:
            GyroscopeError: a name is unknown, a value out of range, or the rule cannot tolerate that many.
        """
        config = ResolvedConfig(**self.complete_values(task))
        config.check()
        return config

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Config:
        """Build a configuration from keys and values: a variant's, where its keys or placements are used."""
        from gyroscope.runs.variants import config_class

        kind, known = config_class(cls, values)
        return kind(**known)


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class ResolvedConfig(ResolvedCommon, Config):
    """A configuration that can run: complete, feasible, consistent, all names known."""

    def check(self) -> None:
        """Raise a GyroscopeError where names, values or numbers of workers do not go together."""
        from gyroscope.runs.variants import variants

        self.check_attack()
        rule = rules.parse(self.rule)
        rule.check_feasible(self.workers, self.declared_byzantine)
        if "trusted" in rule.uses and self.trusted == 0:
            raise ConfigError(rules.NO_TRUSTED.format(rule=rule))
        for variant in variants():
            if self.momentum in variant.extra_placements() and not isinstance(self, variant.config):
                raise ConfigError(_of_a_variant(f"momentum = {self.momentum!r}", variant.config))
        momentum.check_placement(self.momentum, self.mu, self.nesterov, self.placements)
        self.participation()
        momentum.worker_weights.check(self.worker_weights, self.rule, self.workers, self.absent)

    def participation(self) -> momentum.Participation | None:
        """Return who is asked in each round, anew for each run; None where everybody is."""
        return momentum.participation.of(self)


def read_toml(what: str, path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise a ConfigError where it cannot be read or is not TOML."""
    try:
        return optional.parse_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read the {what} {path}: {problem.strerror}") from problem
    except ValueError as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from problem
