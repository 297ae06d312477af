"""The red team: a budgeted search for the attack that costs a defence most.

Successive halving in four stages: *scout* tries attacks in a quarter of the rounds, as many as its part of the budget
allows; *search* runs the worst of them in full; *refine* runs what their parameters and combinations suggest; *confirm*
runs the worst of all with seeds that had no part in the choice. A stage follows from the runs of the stages before it,
and these are run directories: so an interrupted search goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gyroscope import attacks
from gyroscope._core.errors import ConfigError, GyroscopeError
from gyroscope._core.registry import installed, value_text
from gyroscope.experiments.grid import BASELINE, Setup, fingerprint, rule_label
from gyroscope.experiments.results import RunResult, load
from gyroscope.runs.config import NO_ATTACK, Config
from gyroscope.simulation.task_metric import TaskMetric

Goal = Literal["max", "final"]

BUDGET = 40
"""How many full-length runs a search may take by default; a scout counts as a quarter of one."""
SEED = 1
"""The seed of all stages but the last."""
_SCOUT = 4
"""A scout runs one round in so many."""
_SHARES = {"scout": 0.3, "search": 0.25, "refine": 0.15, "confirm": 0.3}
"""Which part of the budget each stage may take."""

PROMISING = (
    "searched",
    "searched:goal=against",
    "searched:goal=drift",
    "searched:goal=drift,drift=mean",
    "searched:goal=drift,drift=signs",
    "searched:goal=drift,drift=home",
    "chain",
    "decoy",
    "persistent",
    "coupled:z=auto",
    "coupled:angle=135,z=auto",
    "little:factor=auto",
    "little:factor=auto,sign=auto",
    "empire:factor=auto",
    "byzmean:attack=(little:factor=auto)",
    "mimic",
    "little",
    "empire",
    "little:factor=0.5",
    "empire:factor=2",
    "min-max",
    "min-max:direction=mean",
    "stale:delay=50",
)
"""What a search tries first; the other attacks of the table follow, and those of installed packages."""
_LASTING = ("searched", "searched:goal=drift", "stale", "persistent")
"""Attacks that add up over the rounds: a short run does not show what they cost, so they get a long one in any case."""
_REFINED = ("alternate:attack=searched",)
"""Combinations that are refined in any case: short runs show little of what they cost."""
_ALONE = "defence alone"
"""In place of an attack's spec, which it cannot be: the defence's run without an attack."""
_USELESS = frozenset({"foresight", "equivocate", "drop", "inf"})
"""Attacks that equal another one of the table, where there is one server that passes the rows on as they are."""


class AttackResult(NamedTuple):
    """What an attack cost the defence."""

    attack: str
    seeds: tuple[int, ...]
    cost: float
    """How much worse than the unattacked average, best or final as the goal says: points of accuracy, or the task's own
    metric; mean of the seeds."""
    best: float
    """The best value of the metric, in percent where it is a share; mean of the seeds."""
    final: float
    """The final value; 0 accuracy, or an infinite loss, for a run that diverged."""
    share: float | None
    """Which share of the weight the Byzantine workers got, on average; None for rules without weights."""
    runs: tuple[RunResult, ...]
    defence_cost: float | None = None
    """The part of the cost that is lost to the defence itself: how much worse the defence without an attack is than the
    unattacked average. None where a seed has no such run."""

    @property
    def attack_cost(self) -> float | None:
        """The rest of the cost, which is lost to the attack: against the same defence without an attack."""
        return None if self.defence_cost is None else self.cost - self.defence_cost

    @property
    def metric(self) -> TaskMetric:
        return self.runs[0].metric


class _RunsOfSeed(NamedTuple):
    """An attacked run, and the two unattacked ones with the same seed that it is compared with."""

    seed: int
    attacked: RunResult
    average: RunResult
    alone: RunResult | None
    """The defence's. Folders of searches of earlier versions have none."""


class Stage(NamedTuple):
    """A stage that is about to run, or has run."""

    name: str
    setups: tuple[Setup, ...]


@dataclasses.dataclass(frozen=True)
class RedTeam:
    """One search.

    Args:
        defence: the configuration to attack: rule, placement, numbers of workers, task. Its attack does not count.
        out: the folder of its run directories.
        baseline: what accuracies are compared with: without an attack and without a defence.
        budget: how many full-length runs it may take.
        goal: what to spoil: the `max`imum accuracy (or the minimum loss), or the `final` one.
        extra: specs of further attacks, which are tried first.
        seeds: how many seeds confirm the worst attacks.
    """

    defence: Config
    out: Path
    baseline: Config
    budget: float = BUDGET
    goal: Goal = "max"
    extra: tuple[str, ...] = ()
    seeds: int = 3

    def __post_init__(self) -> None:
        if self.defence.byzantine < 1:
            raise ConfigError("a red team needs Byzantine workers: set byzantine to 1 or more")
        if not self.budget >= 5:
            raise ConfigError(f"a search needs a budget of at least 5 full-length runs, got {self.budget}")
        # A configuration with Byzantine workers is complete only with an attack; which one is what the search is for.
        object.__setattr__(self, "defence", dataclasses.replace(self.defence, attack="zero"))

    def stages(self) -> Iterator[Stage]:
        """Yield the stages. The caller runs each one's setups into `out` before it asks for the next."""
        scouts = self.candidates()[: int(self._runs("scout") * _SCOUT)]
        short = self._shortened()
        yield self._stage("scout", [NO_ATTACK, _ALONE, *scouts], [SEED], short)
        ranked = [result.attack for result in self._ranked(scouts, [SEED], short)]
        count = self._runs("search")
        lasting = [spec for spec in map(str, map(attacks.parse, _LASTING)) if spec in ranked][: max(1, count // 3)]
        chosen = list(dict.fromkeys([*ranked[:1], *lasting, *ranked]))[:count]
        yield self._stage("search", [NO_ATTACK, _ALONE, *chosen], [SEED])
        ranked = [result.attack for result in self._ranked(chosen, [SEED])]
        always = [spec for spec in map(str, map(attacks.parse, _REFINED)) if self._feasible(spec)]
        variants = dict.fromkeys([*always, *self._variants(ranked[:3])])
        refined = [spec for spec in variants if spec not in chosen][: self._runs("refine")]
        yield self._stage("refine", refined, [SEED])
        ranked = [result.attack for result in self._ranked([*chosen, *refined], [SEED])]
        yield self._stage("confirm", [NO_ATTACK, _ALONE, *self._finalists(ranked)], self._fresh_seeds())

    def ranking(self, stage: Stage) -> list[AttackResult]:
        """Return what the attacks of a stage cost, the worst first."""
        configs = [setup.config for setup in stage.setups if setup.config.attack != NO_ATTACK]
        steps = configs[0].steps if configs else None
        specs = list(dict.fromkeys(config.attack for config in configs))
        seeds = sorted({config.seed for config in configs})
        return self._ranked(specs, seeds, self._shortened() if steps != self._full().steps else None)

    def candidates(self) -> list[str]:
        """Return the attacks to scout that f of n workers can carry out, the most promising first."""
        listed = [name for name in (*attacks.ATTACKS, *installed("attack")) if name not in _USELESS]
        found = dict.fromkeys(str(attacks.parse(spec)) for spec in (*self.extra, *PROMISING, *listed))
        return [spec for spec in found if self._feasible(spec)]

    def command(self, result: AttackResult) -> str:
        """Return the command that runs an attack again, with the first of its seeds."""
        config = dataclasses.replace(self._attacked(result.attack), seed=result.seeds[0])
        defaults = {field.name: field.default for field in dataclasses.fields(Config)}
        options = [
            f"--{name.replace('_', '-')} {shlex.quote(value_text(value))}"
            for name, value in config.experiment().items()
            if value != defaults[name] and value is not None and name != "measure_every"
        ]
        if config.data_dir is not None:
            options.append(f"--data-dir {shlex.quote(str(config.data_dir))}")
        return " ".join(["gyroscope train", *options])

    def _runs(self, stage: str) -> int:
        return max(1, round(self.budget * _SHARES[stage]))

    def _finalists(self, ranked: Sequence[str]) -> list[str]:
        return list(ranked[: max(1, self._runs("confirm") // self.seeds - 1)])

    def _fresh_seeds(self) -> list[int]:
        return [SEED + 100 + number for number in range(self.seeds)]

    def _full(self) -> Config:
        steps = self.defence.resolve().steps
        return dataclasses.replace(self.defence, steps=steps, measure_every=max(1, steps // 50))

    def _shortened(self) -> Config:
        """Return the defence with a scout's number of rounds."""
        resolved = self.defence.resolve()
        steps = max(1, resolved.steps // _SCOUT)
        every = max(1, min(resolved.evaluate_every, steps // 10))
        return dataclasses.replace(self.defence, steps=steps, evaluate_every=every, measure_every=max(1, steps // 10))

    def _attacked(self, spec: str, length: Config | None = None) -> Config:
        """Return the configuration of one run; with `none`, that of the baseline, and of the defence with `_ALONE`."""
        length = length or self._full()
        if spec == _ALONE:
            declared = self.defence.declared_byzantine
            expected = self.defence.byzantine if declared is None else declared
            return dataclasses.replace(length, attack=NO_ATTACK, byzantine=0, declared_byzantine=expected)
        if spec != NO_ATTACK:
            return dataclasses.replace(length, attack=spec)
        same = {name: getattr(length, name) for name in ("steps", "evaluate_every", "measure_every")}
        return dataclasses.replace(
            self.baseline, rule=BASELINE, attack=NO_ATTACK, byzantine=0, declared_byzantine=0, **same
        )

    def _feasible(self, spec: str) -> bool:
        try:
            self._attacked(spec).resolve()
        except GyroscopeError:
            return False
        return True

    def _stage(self, name: str, specs: Sequence[str], seeds: Sequence[int], length: Config | None = None) -> Stage:
        setups = [
            Setup(f"{name}-{rule_label(spec)}", self._attacked(spec, length)).run(seed)
            for seed in seeds
            for spec in specs
        ]
        return Stage(name, tuple(setups))

    def _ranked(self, specs: Sequence[str], seeds: Sequence[int], length: Config | None = None) -> list[AttackResult]:
        done = {fingerprint(run.config): run for run in load(self.out)} if self.out.is_dir() else {}
        found = []
        for spec in specs:
            of_seeds = []
            for seed in seeds:
                attacked, average, alone = (
                    done.get(fingerprint(dataclasses.replace(self._attacked(each, length), seed=seed)))
                    for each in (spec, NO_ATTACK, _ALONE)
                )
                if attacked is not None and average is not None:
                    of_seeds.append(_RunsOfSeed(seed, attacked, average, alone))
            if of_seeds:
                found.append(self._result(spec, of_seeds))
        return sorted(found, key=lambda result: -result.cost)

    def _result(self, spec: str, of_seeds: Sequence[_RunsOfSeed]) -> AttackResult:
        runs = tuple(each.attacked for each in of_seeds)
        metric = runs[0].metric
        name = "best" if self.goal == "max" else "final_or_worst"
        shares = [run.metrics["byzantine_share"].mean() for run in runs]
        known = [float(share) for share in shares if share == share]
        alone = [metric.cost(getattr(each.average, name), getattr(each.alone, name)) for each in of_seeds if each.alone]
        return AttackResult(
            spec,
            tuple(each.seed for each in of_seeds),
            statistics.fmean(
                metric.cost(getattr(each.average, name), getattr(each.attacked, name)) for each in of_seeds
            ),
            metric.scale * statistics.fmean(run.best for run in runs),
            metric.scale * statistics.fmean(run.final_or_worst for run in runs),
            statistics.fmean(known) if known else None,
            runs,
            statistics.fmean(alone) if len(alone) == len(of_seeds) else None,
        )

    def _variants(self, worst: Sequence[str]) -> list[str]:
        """Return what the worst attacks suggest: groups of two of them, turns, and other values of their numbers."""
        found = [f"split:attacks=({first}/{second})" for first, second in itertools.pairwise(worst)]
        for spec in worst:
            found += [f"alternate:attack=({spec})", *_neighbours(spec)]
        listed = dict.fromkeys(str(attacks.parse(spec)) for spec in found)
        return [spec for spec in listed if self._feasible(spec)]


def _neighbours(spec: str) -> list[str]:
    """Return the attack with each of its numbers doubled and halved."""
    attack = attacks.parse(spec)
    found = []
    for field in dataclasses.fields(attack):
        value = getattr(attack, field.name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0:
            for changed in (value * 2, type(value)(value / 2)):
                try:
                    found.append(str(dataclasses.replace(attack, **{field.name: changed})))
                except GyroscopeError:
                    continue
    return found
