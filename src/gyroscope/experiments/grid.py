"""A grid is a list of named configurations. The paper's is here; a user's own is read from TOML."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.runs.config import Config, read_toml
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation.tasks import TASKS

BASELINE = "average"
PLACES = {"server": "at_update", "workers": "at_worker"}
"""How the paper's file names spell the placements."""
_MOST_SEEDS = 100_000


@dataclasses.dataclass(frozen=True)
class Setup:
    """One set of hyperparameters, to be run with several seeds. Its name is the one in the paper's figures."""

    name: str
    config: Config

    def run(self, seed: int) -> Setup:
        """Return the same with a seed, as one run."""
        return Setup(f"{self.name}-seed_{seed}", dataclasses.replace(self.config, seed=seed))


@dataclasses.dataclass(frozen=True)
class PaperKey:
    """The paper's hyperparameters of a setup, as its file names have them."""

    task: str
    attack: str
    rule: str
    f: int
    lr: float
    place: str

    @classmethod
    def of(cls, config: Config) -> PaperKey:
        rate = Schedule.parse(config.lr or 0).at(0)
        return cls(config.task.partition(":")[0], config.attack, config.rule, config.byzantine, rate, config.momentum)

    def __str__(self) -> str:
        return f"{self.task} {self.attack} {self.rule} f={self.f} lr={self.lr:g} {self.place}"


PAPER = {"mnist": (24, 12, (0.5, 0.02)), "cifar10": (11, 5, (0.01, 0.001))}
"""By task: f for half and for a quarter of the workers, the larger learning rate and the smaller one."""


def paper(task: str, steps: int | None = None, width: float | None = None, rescore: bool = False) -> list[Setup]:
    """Return the paper's 44 setups with one task: 40 under attack and 4 unattacked averages.

    Args:
        task: `mnist` or `cifar10`.
        steps: Fewer (or more) rounds; evaluations and the fall of CIFAR-10's learning rate then move along.
        width: The width of CIFAR-10's network.
        rescore: Add 8 setups of Bulyan with rescoring, as the paper's text has it.
    """
    if task not in PAPER:
        raise UnknownNameError("grid of the paper", task, PAPER)
    half, quarter, rates = PAPER[task]
    spec = task if width is None or task != "cifar10" else f"{task}:width={width:g}"
    defaults = TASKS[task].defaults
    rounds = steps if steps is not None else defaults.steps
    every = max(1, defaults.evaluate_every * rounds // defaults.steps)
    # Bulyan supports a quarter of Byzantine workers only.
    defences = [("krum", half), ("krum", quarter), ("median", half), ("median", quarter), ("bulyan", quarter)]
    if rescore:
        defences.append(("bulyan:rescore=true", quarter))
    setups = []
    for rate, (placement, place) in itertools.product(rates, PLACES.items()):
        schedule = f"{rate:g}"
        if task == "cifar10" and rate == rates[0]:  # the larger rate falls to the smaller one halfway
            schedule += f",{max(1, rounds // 2)}:{rates[1]:g}"
        common = Config(task=spec, momentum=placement, lr=schedule, steps=rounds, evaluate_every=every)
        setups.append(Setup(f"{task}-{BASELINE}-lr_{rate:g}-{place}", dataclasses.replace(common, rule=BASELINE)))
        for attack, (rule, f) in itertools.product(("little", "empire"), defences):
            name = f"{task}-{attack}-{rule_label(rule)}-f_{f}-lr_{rate:g}-{place}"
            setups.append(Setup(name, dataclasses.replace(common, rule=rule, attack=attack, byzantine=f)))
    return setups


def is_from_paper(config: Config) -> bool:
    """Return whether a setup is one of the paper's, perhaps shortened (or, with CIFAR-10, narrower)."""
    task, _, parameters = config.task.partition(":width=")
    if task not in PAPER:
        return False
    setups = paper(task, config.steps, float(parameters) if parameters else None, rescore=True)
    wanted = {**config.experiment(), "seed": 1}
    return any(setup.config.resolve().experiment() == wanted for setup in setups)


def rule_label(rule: str) -> str:
    """Return a rule's spelling in file names: `bulyan_rescore` for `bulyan:rescore=true`."""
    return re.sub(r"[^\w.]+", "_", rule.replace("=true", "")).strip("_")


def with_seeds(setups: Iterable[Setup], seeds: Sequence[int]) -> list[Setup]:
    """Return every setup with every seed; one seed of everything comes first, so that an early stop is balanced."""
    listed = list(setups)
    return [setup.run(seed) for seed in seeds for setup in listed]


def only(setups: Iterable[Setup], patterns: Sequence[str]) -> list[Setup]:
    """Return the setups whose name one of the patterns fits; all without a pattern.

    A pattern with `*`, `?` or `[` is a shell's, for the whole name. Any other is a part of it, and may be spelt as
    in a spec: `min-max` and `nnm+median` are `min_max` and `nnm_median` there. One that fits nothing is an error.
    """
    listed = list(setups)
    if not patterns:
        return listed
    names = [setup.name for setup in listed]
    kept: set[str] = set()
    for pattern in patterns:
        found = {name for name in names if _fits(name, pattern)}
        if not found:
            raise ConfigError(_nothing_fits(pattern, names))
        kept |= found
    return [setup for setup in listed if setup.name in kept]


def _fits(name: str, pattern: str) -> bool:
    if any(letter in pattern for letter in "*?["):
        return fnmatch.fnmatchcase(name, pattern)
    return pattern in name or rule_label(pattern) in name


def _nothing_fits(pattern: str, names: Sequence[str]) -> str:
    known = {word for name in names for word in name.split("-")}
    words = [word for word in re.split(r"[-*?\[\]]+", pattern) if word and word not in known]
    near = [found for word in [rule_label(pattern), *words] for found in difflib.get_close_matches(word, known, n=2)]
    hint = f"did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
    return (
        f"no name fits {pattern!r}: {hint}The first of {len(names):,} is {names[0]}; write a part of a name, or a "
        "pattern with * for the whole of it"
    )


def parse_seeds(text: str) -> list[int]:
    """Parse seeds written as `1-5` or `1,2,7` or a mixture."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            named = range(int(first), int(last) + 1) if dash else [int(first)]
        except ValueError:
            raise ConfigError(f"cannot read the seeds {text!r}: write 1-5 or 1,2,7") from None
        if len(seeds) + len(named) > _MOST_SEEDS:
            raise ConfigError(
                f"{text!r} are more than {_MOST_SEEDS:,} seeds, each of them a run: write fewer, as in 1-5"
            )
        seeds.extend(named)
    if not seeds:
        raise ConfigError(f"there are no seeds in {text!r}: write the smaller one first, as in 1-5")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"a seed stands twice in {text!r}: write 1-5 or 1,2,7")
    return seeds


def fingerprint(config: Config) -> str:
    """Return a hash of every setting that changes a run's numbers, and of nothing else (no folder, no device)."""
    settings = config.resolve().experiment()
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def read(path: str | Path) -> list[Setup]:
    """Read a TOML file with a table `base` of settings and `grid`s of values; `gyroscope sweep --help` has one."""
    content = read_toml("grid", path)
    known = [field.name for field in dataclasses.fields(Config)]
    for key in content:
        if key in known:
            raise ConfigError(
                f"{path}: {key} stands alone: put what all runs share under [base], the rest under [grid]"
            )
        if key not in ("base", "grid"):
            raise UnknownNameError(f"table in {path}", key, ["base", "grid"])
    base, grids = content.get("base", {}), content.get("grid", {})
    listed = grids if isinstance(grids, list) else [grids]
    if not all(isinstance(table, dict) for table in [base, *listed]):
        raise ConfigError(f"{path}: base and grid must be tables: write [base] and [[grid]] on lines of their own")
    if not any([base, *listed]) or not listed:
        raise ConfigError(
            f"{path} has no settings, so there is nothing to run: write what all runs share under [base] and the "
            "values to combine under [[grid]], as gyroscope sweep --help shows"
        )
    return expand(base, *listed, origin=str(path))


def expand(base: Mapping[str, Any], *grids: Mapping[str, Any], origin: str = "the grid") -> list[Setup]:
    """Return every combination of each grid's values, on top of the base; all are checked before anything runs.

    Where a grid and the base both have a setting, the grid's counts. Seeds may be written `"1-3"`.
    """
    setups = []
    for grid in grids:
        values = {key: _choices(key, value, origin) for key, value in {**base, **grid}.items()}
        named = [key for key in values if key in grid or len(values[key]) > 1]
        for combination in itertools.product(*values.values()):
            chosen = dict(zip(values, combination, strict=True))
            try:
                config = Config.from_mapping(chosen)
                config.resolve()
            except GyroscopeError as problem:
                raise ConfigError(f"{origin}: {problem}") from problem
            label = "-".join(f"{key}_{rule_label(str(chosen[key]))}" for key in named)
            setups.append(Setup(label or "run", config))
    if len({fingerprint(setup.config) for setup in setups}) < len(setups):
        raise ConfigError(f"{origin}: some combinations are the same run; remove the repeated values")
    return setups


def _choices(key: str, value: Any, origin: str) -> Sequence[Any]:
    """Return the values of a setting: a list as it is, seeds as `1-3`, anything else as a single value."""
    if key == "seed" and isinstance(value, str):
        return parse_seeds(value)
    if isinstance(value, list):
        if not value:
            raise ConfigError(f"{origin}: {key} has an empty list of values")
        return value
    return [value]
