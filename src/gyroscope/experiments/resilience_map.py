"""The resilience map: every rule, bare and with pre-aggregations, against every attack, with both placements.

It takes the tables as they are: a rule or an attack is in the map by being listed. All of it takes less than an hour on
two cores: a small network, 15 workers, 150 rounds, and nothing measured but the accuracy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
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
"""The scatter of the unattacked averages over these seeds is the least noise there is."""

BEFORE = ("nnm", "bucketing")
"""Pre-aggregations that every rule is also tried with."""

MORE = (
    "clip:norm=2+median",
    "arc+median",
    "arc+nnm+median",
    "random:krum/median",
    "round-robin:krum/median",
)
"""Further defences."""

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
"""The settings that a rule needs besides its name; the key `rule` replaces the name by another spec."""

_OF_THE_RED_TEAM = ("chain", "decoy", "searched", "persistent", "coupled", "split")
ATTACK_SPECS: dict[str, Sequence[str]] = dict.fromkeys(("foresight", *_OF_THE_RED_TEAM), ())
"""The specs with which an attack is tried, where that is not its bare name.

Foresight equals its inner attack where momentum is at the server or at the workers, as it is here. The others are made
for a rule or search against it: they are the red team's, the map shows attacks in their default form.
"""


@dataclasses.dataclass(frozen=True)
class CellSetup:
    """One cell of the map: a defence and its placement, f, and an attack, or `none`. It is run with several seeds."""

    defence: str
    placement: str
    f: int
    attack: str
    config: Config

    @cached_property
    def key(self) -> str:
        """Identify the cell's runs, whatever their seed."""
        return setup_key(self.config)

    @property
    def setup(self) -> Setup:
        parts = (rule_label(self.defence), rule_label(self.attack), f"f_{self.f}", PLACES[self.placement])
        return Setup("-".join(parts), self.config)


@dataclasses.dataclass(frozen=True)
class DefenceVariant:
    """A rule, the pre-aggregations before it, and the settings that it needs."""

    name: str
    rule: str
    """Its spec."""
    settings: Mapping[str, Any]

    def infeasible(self, f: int) -> str:
        """Return why it does not exist for this f; an empty text where it does."""
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


def setup_key(config: Config) -> str:
    """Return a fingerprint that leaves the seed out."""
    return fingerprint(dataclasses.replace(config, seed=0))


def setups(seeds: Sequence[int] = SEEDS, chosen: Sequence[CellSetup] | None = None) -> list[Setup]:
    """Return all runs, or those of chosen cells: unattacked averages first, then one seed after the other."""
    more = [seed for seed in seeds if seed not in BASELINE_SEEDS]
    unattacked = with_seeds([cell.setup for cell in baselines()], [*BASELINE_SEEDS, *more])
    return unattacked + with_seeds([cell.setup for cell in (cells() if chosen is None else chosen)], seeds)


def baselines() -> list[CellSetup]:
    """Return the average with all workers honest, with each placement: drops are measured against it."""
    return [CellSetup(BASELINE, place, 0, NO_ATTACK, Config(**BASE, rule=BASELINE, momentum=place)) for place in PLACES]


def cells() -> list[CellSetup]:
    """Return every feasible cell. With the attack `none` the rule expects f Byzantine workers, and all are honest."""
    found = []
    for f, defence in itertools.product(BYZANTINE, defences()):
        if defence.infeasible(f):
            continue
        common = {**BASE, **defence.settings, "rule": defence.rule, "declared_byzantine": f}
        for place, attack in itertools.product(PLACES, (NO_ATTACK, *attack_specs())):
            byzantine = 0 if attack == NO_ATTACK else f
            config = Config.from_mapping({**common, "momentum": place, "attack": attack, "byzantine": byzantine})
            found.append(CellSetup(defence.name, place, f, attack, config))
    return found


def infeasible() -> list[tuple[str, int, str]]:
    """Return (defence, f, reason) of the defences that are not run for an f, because they do not exist there."""
    return [
        (defence.name, f, reason)
        for f, defence in itertools.product(BYZANTINE, defences())
        if (reason := defence.infeasible(f))
    ]


def description() -> str:
    """Return the size of the map in words."""
    return (
        f"the resilience map: {len(defences())} defences, {len(attack_specs())} attacks and none, {len(PLACES)} "
        f"placements of momentum, f = {' and '.join(map(str, BYZANTINE))} of {WORKERS} workers: {len(cells()):,} cells"
    )


def infeasible_summary() -> list[str]:
    """Return a line for each f, or several f, with the defences that do not exist there."""
    missing: dict[str, tuple[int, ...]] = {}
    for name, f, _ in infeasible():
        missing[name] = (*missing.get(name, ()), f)
    lines = []
    for fs in sorted(set(missing.values())):
        names = [name for name, without in missing.items() if without == fs]
        lines.append(f"not feasible for f = {' and '.join(map(str, fs))} ({len(names)}): {', '.join(names)}")
    return lines


def defences() -> list[DefenceVariant]:
    """Return every rule, bare and with each pre-aggregation, and some that are neither."""
    found = []
    for name in rules.RULES:
        settings = dict(RULE_SETTINGS.get(name, {}))
        rule = settings.pop("rule", name)
        found += [DefenceVariant(prefix + name, prefix + rule, settings) for prefix in ("", *(f"{b}+" for b in BEFORE))]
    return found + [DefenceVariant(spec, spec, {}) for spec in MORE]


def attack_specs() -> list[str]:
    """Return every attack, with the specs that are tried."""
    return [spec for name in attacks.ATTACKS for spec in ATTACK_SPECS.get(name, (name,))]
