"""The recipe `zoo`: every rule, bare and with pre-aggregations, against every attack, with both placements.

It takes the tables as they are: a rule or an attack is in the map by being listed. Sized so that all of it takes less
than an hour on two cores: a small network, 15 workers, 150 rounds, and nothing measured but the accuracy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from gyroscope import attacks, rules
from gyroscope._core.errors import ConfigError, InfeasibleError
from gyroscope.experiments.grid import BASELINE, PLACES, Setup, fingerprint, rule_label, with_seeds
from gyroscope.runs.config import NO_ATTACK, Config

WORKERS = 15
BYZANTINE = (3, 6)
SEEDS = (1,)
"""One seed of everything takes most of an hour. More of them are worth their time for the best: `--best`."""
BASELINE_SEEDS = (1, 2, 3, 4, 5)
"""What the same run does with other seeds: the least noise there is."""

BEFORE = ("nnm", "bucketing")
"""Pre-aggregations that every rule is also tried with."""

MORE = (
    "clip:norm=2+median",
    "arc+median",
    "arc+nnm+median",
    "random:krum/median",
    "round-robin:krum/median",
)
"""Defences that are no rule of the table with one of these before it."""

STEPS = 150
BASE: dict[str, Any] = {
    "task": "digits",
    "workers": WORKERS,
    "steps": STEPS,
    "evaluate_every": 5,
    "measure_every": STEPS,  # the map needs no more than the accuracy
}

RULE_SETTINGS: dict[str, Mapping[str, Any]] = {
    "zeno": {"trusted": 100},
    "fltrust": {"trusted": 100},
}
"""What a rule needs besides its name: keys of the configuration, and as `rule` the spec to use instead of the name."""

ATTACK_SPECS: dict[str, Sequence[str]] = {"foresight": ()}
"""The forms in which an attack is tried, where that is not its bare name: the key is its name in the table.

Foresight is its inner attack where momentum is at the server or at the workers, as it is here.
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell of the map: a defence and its placement, f, and an attack, or `none`. To be run with several seeds."""

    defence: str
    placement: str
    f: int
    attack: str
    config: Config

    @cached_property
    def key(self) -> str:
        """What its runs have in common, whatever their seed."""
        return setup_key(self.config)

    @property
    def setup(self) -> Setup:
        parts = (rule_label(self.defence), rule_label(self.attack), f"f_{self.f}", PLACES[self.placement])
        return Setup("-".join(parts), self.config)


@dataclasses.dataclass(frozen=True)
class Defence:
    """A rule with what stands before it, and what its configuration needs besides."""

    name: str
    rule: str
    """Its spec."""
    settings: Mapping[str, Any]

    def infeasible(self, f: int) -> str:
        """Why it does not exist for this f; empty where it does."""
        try:
            rules.parse(self.rule).check_feasible(WORKERS, f)
        except (InfeasibleError, ConfigError) as problem:
            return str(problem)
        return ""

    @property
    def trusting(self) -> bool:
        """Whether it relies on a worker known to be honest, or on samples of the server's own."""
        try:
            rule = rules.parse(self.rule)
        except ConfigError:  # infeasible with any f
            return False
        return "trusted" in rule.uses or bool(rule.trusts(WORKERS))


@dataclasses.dataclass(frozen=True)
class Infeasible:
    """A defence that does not exist for this f, and why."""

    defence: str
    f: int
    reason: str


def setup_key(config: Config) -> str:
    """A fingerprint that leaves the seed out."""
    return fingerprint(dataclasses.replace(config, seed=0))


def setups(seeds: Sequence[int] = SEEDS, chosen: Sequence[Entry] | None = None) -> list[Setup]:
    """All runs, or those of chosen cells: the unattacked averages first, then one seed of the map after the other."""
    more = [seed for seed in seeds if seed not in BASELINE_SEEDS]
    unattacked = with_seeds([entry.setup for entry in baselines()], [*BASELINE_SEEDS, *more])
    return unattacked + with_seeds([entry.setup for entry in (entries() if chosen is None else chosen)], seeds)


def baselines() -> list[Entry]:
    """The average with all workers honest, with each placement: what drops are measured against."""
    return [Entry(BASELINE, place, 0, NO_ATTACK, Config(**BASE, rule=BASELINE, momentum=place)) for place in PLACES]


def entries() -> list[Entry]:
    """Every feasible cell. `none` is an attack, too: the rule is told to expect f liars, and all workers are honest."""
    found = []
    for f, defence in itertools.product(BYZANTINE, defences()):
        if defence.infeasible(f):
            continue
        for place, attack in itertools.product(PLACES, (NO_ATTACK, *attack_specs())):
            changes = {
                "momentum": place,
                "attack": attack,
                "byzantine": 0 if attack == NO_ATTACK else f,
                "declared_byzantine": f,
            }
            config = Config.from_mapping({**BASE, **defence.settings, "rule": defence.rule, **changes})
            found.append(Entry(defence.name, place, f, attack, config))
    return found


def infeasible() -> list[Infeasible]:
    """The defences that are not run for an f, because they do not exist there."""
    return [
        Infeasible(defence.name, f, reason)
        for f, defence in itertools.product(BYZANTINE, defences())
        if (reason := defence.infeasible(f))
    ]


def described() -> str:
    """What the recipe is made of."""
    return (
        f"the zoo: {len(defences())} defences, {len(attack_specs())} attacks and none, {len(PLACES)} placements of "
        f"momentum, f = {' and '.join(map(str, BYZANTINE))} of {WORKERS} workers: {len(entries()):,} cells"
    )


def missing() -> list[str]:
    """Which defences do not exist for which f: a line for each f, or several f, that some lack."""
    lacking: dict[str, tuple[int, ...]] = {}
    for entry in infeasible():
        lacking[entry.defence] = (*lacking.get(entry.defence, ()), entry.f)
    lines = []
    for fs in sorted(set(lacking.values())):
        names = [name for name, without in lacking.items() if without == fs]
        lines.append(f"not feasible for f = {' and '.join(map(str, fs))} ({len(names)}): {', '.join(names)}")
    return lines


def defences() -> list[Defence]:
    """Every rule, bare and with each pre-aggregation, and some that are neither."""
    return list(_defences())


def _defences() -> Iterator[Defence]:
    for name in rules.RULES:
        settings = dict(RULE_SETTINGS.get(name, {}))
        rule = settings.pop("rule", name)
        yield Defence(name, rule, settings)
        for spec in BEFORE:
            yield Defence(f"{spec}+{name}", f"{spec}+{rule}", settings)
    for spec in MORE:
        yield Defence(spec, spec, {})


def attack_specs() -> list[str]:
    """Every attack, in the forms in which it is tried."""
    return [spec for name in attacks.ATTACKS for spec in ATTACK_SPECS.get(name, (name,))]
