"""The configuration of one run: a frozen dataclass <-> a flat TOML file <-> the command line's options.

Each field carries its help text, so that the three can never disagree. What is left unset comes from the task.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gyroscope import attacks, momentum, rules
from gyroscope._core import optional, registry
from gyroscope.simulation import tasks
from gyroscope.research.adaptive.curvature import ADAPTATIONS
from gyroscope.simulation.data import shards
from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.research.replicated import quorums
from gyroscope.runs.schedule import Schedule

T = TypeVar("T")

CUSTOM_TASK = "custom"
NO_ATTACK = "none"
L2_FORMS = ("half-squared", "norm")
BATCHES = ("independent", "pass")


def _option(default: Any, group: str, help: str, *, metavar: str | None = None, experiment: bool = True) -> Any:
    """A field with what the command line shows of it. `experiment`: whether its value changes the numbers."""
    return dataclasses.field(
        default=default, metadata={"group": group, "help": help, "metavar": metavar, "experiment": experiment}
    )


_WHAT, _WHO, _HOW = "what is learned", "who attacks, who defends", "how it is trained"
_SERVERS = "several servers, some of them Byzantine"
_RECORD, _MACHINE = "what is recorded", "on which machine"


def names_the_nearest(cls: type[T]) -> type[T]:
    """Have the constructor answer an unknown keyword with the nearest name: nothing is silently dropped."""
    fill = cls.__init__
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    @functools.wraps(fill)
    def init(self: T, *values: Any, **named: Any) -> None:
        for key in named:
            if key not in known:
                raise UnknownNameError("configuration key", key, known)
        fill(self, *values, **named)

    setattr(cls, "__init__", init)  # noqa: B010  # an assignment would have to have the same signature
    return cls


@names_the_nearest
@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that determines a run. `None` means: as the task has it (`resolve` fills that in).

    Rules, attacks and shardings are written as specs; an object given for one becomes its spec.
    """

    inapplicable: ClassVar[tuple[str, ...]] = ()
    """Fields that mean nothing to this kind of run: neither options nor written."""

    task: str = _option("digits", _WHAT, "the task, e.g. mnist or cifar10:width=0.25", metavar="TASK")
    steps: int | None = _option(None, _WHAT, "number of rounds", metavar="T")
    batch: int | None = _option(None, _WHAT, "samples per worker and round", metavar="B")
    shards: str = _option(
        "common",
        _WHAT,
        "who holds which samples: common (everyone draws from all), or e.g. iid, dirichlet:alpha=0.1, sorted",
        metavar="SHARDING",
    )
    seed: int = _option(1, _WHAT, "same seed, same configuration, same machine: same bits", metavar="SEED")

    rule: str = _option("average", _WHO, "how the server aggregates, e.g. krum, krum:m=1, nnm+median", metavar="RULE")
    attack: str = _option("none", _WHO, "what Byzantine workers send, e.g. little:factor=auto", metavar="ATTACK")
    workers: int | None = _option(None, _WHO, "n, all workers, the Byzantine ones included", metavar="N")
    byzantine: int = _option(0, _WHO, "how many of them really are Byzantine", metavar="F")
    declared_byzantine: int | None = _option(
        None, _WHO, "f, how many the rule is told to tolerate (default: as many as there are)", metavar="F"
    )

    trusted: int = _option(
        0, _WHO, "samples that the server itself holds, for rules that compare with them (zeno, fltrust)", metavar="K"
    )

    momentum: str = _option(
        "workers",
        _HOW,
        "where momentum is computed: workers, server, none, or another that `gyroscope list placements` shows",
        metavar="PLACE",
    )
    mu: float | None = _option(None, _HOW, "momentum factor, 0 <= mu < 1", metavar="MU")
    nesterov: bool = _option(False, _HOW, "Nesterov's look-ahead momentum")
    lr: str | float | None = _option(None, _HOW, "learning rate, or a schedule such as 0.01,1500:0.001", metavar="RATE")
    adapt: str = _option(
        "none",
        _HOW,
        "what follows the trajectory's curvature: none, mu, lr, safe-lr, mu+lr, ... (see docs/beyond/adapting.md)",
        metavar="WHAT",
    )
    clip: float | None = _option(None, _HOW, "largest norm of a worker's gradient; inf for no clipping", metavar="C")
    l2: float | None = _option(None, _HOW, "L2 regularisation factor", metavar="L")
    l2_form: str = _option(
        "half-squared", _HOW, "half-squared: L/2 |p|^2; norm: L^2 |p|, as in the paper's released code", metavar="FORM"
    )

    batches: str = _option(
        "independent",
        _HOW,
        "independent: each worker draws by itself, with replacement; pass: one shuffled pass dealt out to all, as in "
        "the paper's released code, or with shards a pass of each worker over its own",
        metavar="KIND",
    )

    servers: int = _option(
        1, _SERVERS, "how many hold the model, the Byzantine ones included (see docs/beyond/servers.md)", metavar="N"
    )
    byzantine_servers: int = _option(0, _SERVERS, "how many of them really are Byzantine", metavar="F")
    declared_byzantine_servers: int | None = _option(
        None, _SERVERS, "how many the others must reckon with (default: as many as there are)", metavar="F"
    )
    server_attack: str = _option(
        "none", _SERVERS, "what Byzantine servers make of the honest ones' updates, e.g. sign-flip", metavar="ATTACK"
    )
    server_quorum: int | None = _option(
        None, _SERVERS, "models that workers and servers wait for (default: n - f servers)", metavar="Q"
    )
    worker_quorum: int | None = _option(
        None, _SERVERS, "rows that a server waits for (default: n - f workers)", metavar="Q"
    )
    exchange_every: int = _option(1, _SERVERS, "rounds between exchanges of the servers' models", metavar="K")

    evaluate_every: int | None = _option(None, _RECORD, "rounds between evaluations on the test set", metavar="K")
    measure_every: int = _option(1, _RECORD, "rounds between rows of metrics.csv and workers.csv", metavar="K")
    checkpoint_every: int | None = _option(
        None, _RECORD, "rounds between checkpoints (default: one every 30 seconds)", metavar="K", experiment=False
    )

    device: str = _option("cpu", _MACHINE, "cpu, cuda, cuda:1, ...", metavar="DEV", experiment=False)
    threads: int | None = _option(
        None, _MACHINE, "CPU threads (default: as torch chooses)", metavar="N", experiment=False
    )
    data_dir: str | None = _option(
        None, _MACHINE, "folder that holds the data set (or set GYROSCOPE_DATA)", metavar="DIR", experiment=False
    )

    def __post_init__(self) -> None:
        _spell_out(self)
        if isinstance(self.lr, (int, float)) and not isinstance(self.lr, bool):
            object.__setattr__(self, "lr", repr(self.lr))
        for name in ("mu", "clip", "l2"):
            if isinstance(getattr(self, name), int) and not isinstance(getattr(self, name), bool):
                object.__setattr__(self, name, float(getattr(self, name)))
        _check_types(self)
        for name, least in (
            ("steps", 1), ("batch", 1), ("workers", 1), ("byzantine", 0), ("declared_byzantine", 0), ("trusted", 0),
            ("evaluate_every", 1), ("measure_every", 1), ("checkpoint_every", 1), ("threads", 1), ("servers", 1),
            ("byzantine_servers", 0), ("declared_byzantine_servers", 0), ("exchange_every", 1),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip must be positive (inf for no clipping), got {self.clip}")
        if self.l2 is not None and not 0 <= self.l2 < math.inf:
            raise ConfigError(f"l2 must be at least 0 and finite, got {self.l2}")
        if self.l2_form not in L2_FORMS:
            raise UnknownNameError("l2_form", self.l2_form, L2_FORMS)
        if self.batches not in BATCHES:
            raise UnknownNameError("kind of batches", self.batches, BATCHES)
        if self.adapt not in ADAPTATIONS:
            raise UnknownNameError("adaptation", self.adapt, ADAPTATIONS)
        if self.adapt != "none" and self.nesterov:
            raise ConfigError(
                "what adapts to the trajectory has no look-ahead form: leave out adapt or leave out nesterov"
            )
        if self.lr is not None:
            Schedule.parse(self.lr)

    def resolve(self, task: tasks.Task | None = None) -> Config:
        """The complete configuration: the task's defaults filled in, and everything checked before anything runs."""
        if task is None and self.task == CUSTOM_TASK:
            raise ConfigError("the task 'custom' exists only in Python: pass it to gy.train or gy.resume as task=...")
        known = task if task is not None else tasks.parse(self.task)
        filled: dict[str, Any] = {
            field.name: getattr(known.defaults, field.name)
            for field in dataclasses.fields(known.defaults)
            if getattr(self, field.name) is None
        }
        if self.declared_byzantine is None:
            filled["declared_byzantine"] = self.byzantine
        # One spelling for one thing: `krum:m=1` and `krum: m=01` must not pass for different experiments.
        filled["task"] = known.name if isinstance(known, tasks.Task) else registry.text(known)
        filled["shards"] = str(shards.parse(self.shards))
        filled["rule"] = str(rules.parse(self.rule))
        if self.attack != NO_ATTACK:
            filled["attack"] = str(attacks.parse(self.attack))
        if self.servers > 1:
            filled |= self._servers(dataclasses.replace(self, **filled))
        config = dataclasses.replace(self, **filled)
        config.check()
        return config

    @property
    def gate(self) -> str:
        """What stands between the workers and the model, as a directory's name has it."""
        return self.rule

    def _servers(self, so_far: Config) -> dict[str, Any]:
        """What is left unset of several servers: all whom one can wait for are waited for."""
        assert so_far.workers is not None and so_far.declared_byzantine is not None
        f = self.byzantine_servers if self.declared_byzantine_servers is None else self.declared_byzantine_servers
        filled: dict[str, Any] = {"declared_byzantine_servers": f}
        if self.server_quorum is None:
            filled["server_quorum"] = self.servers - f
        if self.worker_quorum is None:
            filled["worker_quorum"] = so_far.workers - so_far.declared_byzantine
        if self.server_attack != NO_ATTACK:
            filled["server_attack"] = str(attacks.parse(self.server_attack))
        return filled

    def experiment(self) -> dict[str, Any]:
        """The settings that change the numbers of a run: not the device, the data's folder or the checkpoints."""
        return {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.metadata["experiment"]
        }

    def unusual(self) -> dict[str, Any]:
        """What a title or a directory's name should not hide, where it is not the default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        shown = {name: getattr(self, name) for name in ("shards", "trusted", "adapt")}
        return {name: value for name, value in shown.items() if value != defaults[name]}

    def check(self) -> None:
        """Whether a resolved configuration can run: feasible, consistent, all names known."""
        assert self.workers is not None
        assert self.declared_byzantine is not None
        assert self.mu is not None
        self.check_attack()
        rule = rules.parse(self.rule)
        rule.check_feasible(self.workers, self.declared_byzantine)
        if "trusted" in rule.uses and self.trusted == 0:
            raise ConfigError(rules.NO_TRUSTED.format(rule=rule))
        momentum.make(self.momentum, self.mu, self.nesterov)
        _check_servers(self)

    def check_attack(self) -> None:
        """Whether there are as many to attack as there is an attack, and somebody honest."""
        assert self.workers is not None
        if self.attack == NO_ATTACK and self.byzantine > 0:
            raise ConfigError(
                f"{self.byzantine} Byzantine workers need something to send: choose an attack, or set "
                f"declared_byzantine = {self.byzantine} to have the rule tolerate them while all are honest"
            )
        if self.attack != NO_ATTACK:
            attack = attacks.parse(self.attack)
            if self.byzantine == 0:
                raise ConfigError(f"the attack {self.attack!r} has nobody to carry it out: set byzantine to 1 or more")
        if self.byzantine >= self.workers:
            raise ConfigError(
                f"at least one of the {self.workers} workers must be honest, but byzantine = {self.byzantine}"
            )
        if self.attack != NO_ATTACK:
            attack.check_feasible(self.workers, self.byzantine)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Config:
        """A configuration from keys and values. An unknown key is an error: nothing is silently dropped."""
        return cls(**values)

    @classmethod
    def load(cls, path: str | Path) -> Config:
        """Read a TOML file."""
        try:
            values = optional.parse_toml(Path(path).read_text(encoding="utf-8"))
        except OSError as problem:
            raise ConfigError(f"cannot read the configuration {path}: {problem.strerror}") from problem
        except ValueError as problem:
            raise ConfigError(f"{path} is not valid TOML: {problem}") from problem
        try:
            return cls.from_mapping(values)
        except (ConfigError, UnknownNameError) as problem:
            remark = " (this looks like a grid: gyroscope sweep runs it)" if "grid" in values else ""
            raise ConfigError(f"{path}: {problem}{remark}") from problem

    def to_toml(self) -> str:
        """The TOML text that `load` reads back to an equal configuration."""
        written = {key: value for key, value in dataclasses.asdict(self).items() if key not in self.inapplicable}
        return optional.format_toml({key: value for key, value in written.items() if value is not None})


_NAMED: dict[str, tuple[type, Callable[[str], object]]] = {
    "rule": (rules.Rule, rules.parse),
    "attack": (attacks.Attack, attacks.parse),
    "server_attack": (attacks.Attack, attacks.parse),
    "shards": (shards.Sharding, shards.parse),
}


def _spell_out(config: Config) -> None:
    """Objects become their specs: a configuration holds nothing that cannot be written down and read again."""
    for name, (kind, parse) in _NAMED.items():
        value = getattr(config, name)
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
                f"{name} {value!r} cannot be written down, because its spec {spec!r} does not build it again: give the "
                "spec of a class that can be imported, such as my_module:MyClass:key=value"
            )
        object.__setattr__(config, name, spec)


_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}


def _check_types(config: Config) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        wanted = str(field.type).split(" | ")
        if value is None and "None" in wanted:
            continue
        if not isinstance(value, _TYPES[wanted[0]]) or (isinstance(value, bool) and wanted[0] != "bool"):
            names = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
            raise ConfigError(f"{field.name} must be {names[wanted[0]]}, got {value!r}")
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(f"{field.name} must be a number, got nan")


_OF_SEVERAL = (
    "byzantine_servers", "declared_byzantine_servers", "server_attack", "server_quorum", "worker_quorum",
    "exchange_every",
)  # fmt: skip


def _check_servers(config: Config) -> None:
    """Whether what a resolved configuration says about servers can be."""
    if config.servers == 1:
        defaults = {field.name: field.default for field in dataclasses.fields(config)}
        for name in _OF_SEVERAL:
            if getattr(config, name) != defaults[name]:
                raise ConfigError(f"{name} is for several servers, and there is one: set servers to more")
        return
    assert config.workers is not None and config.declared_byzantine is not None
    f, of_servers, of_workers = config.declared_byzantine_servers, config.server_quorum, config.worker_quorum
    assert f is not None and of_servers is not None and of_workers is not None
    if (config.server_attack == NO_ATTACK) != (config.byzantine_servers == 0):
        raise ConfigError(
            f"{config.byzantine_servers} Byzantine servers and the server attack {config.server_attack!r} do not go "
            "together: set both byzantine_servers and server_attack, or neither"
        )
    for kind, really, declared in (
        ("servers", config.byzantine_servers, f),
        ("workers", config.byzantine, config.declared_byzantine),
    ):
        if really > declared:
            raise ConfigError(
                f"{really} {kind} are Byzantine but only {declared} are declared: with several servers no quorum "
                f"protects anybody then; declare {really}"
            )
    if config.server_attack != NO_ATTACK:
        attacks.parse(config.server_attack).check_feasible(config.servers, config.byzantine_servers)
    quorums.check("servers", config.servers, f, of_servers)
    quorums.check("workers", config.workers, config.declared_byzantine, of_workers)
    rule = rules.parse(config.rule)
    rule.check_feasible(of_workers, config.declared_byzantine)
    if "trusted" in rule.uses:
        raise ConfigError(f"the rule {rule} compares with samples that one server holds: with several use another rule")
    if config.momentum not in momentum.USUAL:
        raise ConfigError(
            f"momentum {config.momentum!r} has a form for one server only: with {config.servers} servers use "
            + " or ".join(momentum.USUAL)
        )
    if config.adapt != "none":
        raise ConfigError(
            f"adapt {config.adapt!r} has a form for one server only: leave out adapt or leave out servers"
        )
