"""Checking claims by machine: a claim states what is measured and its threshold; a verdict says whether it holds.

Thresholds are set from the paper's words (`about 15 points` becomes 10 to 20), not from what we measured.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from gyroscope.experiments.grid import BASELINE, Key, is_the_papers
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.simulation.tasks import TASKS

HOLDS, FAILS, UNMEASURED = "holds", "does not hold", "not measured"
USELESS = 0.15
"""A model of ten classes whose accuracy stays at or below this has learned nothing."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """What was measured for a claim, in words, and whether that meets the threshold."""

    measured: str
    holds: bool


Check = Callable[["Lab"], Finding]


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    id: str
    place: str
    """Where the paper says it."""
    statement: str
    quantity: str
    """What we measure of it."""
    paper: str
    """The paper's own figure."""
    threshold: str
    check: Check
    """Raises MissingRunsError where the runs that it needs are not there."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A claim, what we found, and whether it holds."""

    id: str
    place: str
    statement: str
    quantity: str
    paper: str
    threshold: str
    measured: str
    verdict: str
    note: str = ""


_SHARED = ("id", "place", "statement", "quantity", "paper", "threshold")


class MissingRunsError(LookupError):
    """A setup that a claim needs was not run."""


class Lab:
    """The results of the paper's setups, looked up by its five hyperparameters. Other runs are left out.

    Where a setup was run at several lengths or widths, the one with the most steps counts.
    """

    def __init__(self, runs: Iterable[RunResult]) -> None:
        self._index: dict[Key, SetupResult] = {}
        for setup in group(runs):
            if is_the_papers(setup.config):
                key = Key.of(setup.config)
                other = self._index.get(key)
                if other is None or (other.config.steps or 0) < (setup.config.steps or 0):
                    self._index[key] = setup

    def get(self, task: str, attack: str, rule: str, f: int, lr: float, place: str) -> SetupResult:
        """The setup under attack, or MissingRunsError."""
        try:
            return self._index[Key(task, attack, rule, f, lr, place)]
        except KeyError:
            raise MissingRunsError(f"{task} {attack} {rule} f={f} lr={lr:g} {place}") from None

    def baseline(self, task: str, lr: float, place: str) -> SetupResult:
        """The unattacked average."""
        return self.get(task, "none", BASELINE, 0, lr, place)

    def attacked(self, task: str) -> list[SetupResult]:
        """All setups of a task under attack."""
        return [setup for key, setup in self._index.items() if key.task == task and key.attack != "none"]

    def differences(self, first: SetupResult, second: SetupResult, final: bool = False) -> list[float]:
        """Points of accuracy that the second has more than the first, for each seed that both have."""
        one, two = ({run.config.seed: run for run in setup.runs} for setup in (first, second))
        seeds = sorted(one.keys() & two.keys())
        if not seeds:
            raise MissingRunsError("a seed that both setups have")
        return [100 * (_accuracy(two[seed], final) - _accuracy(one[seed], final)) for seed in seeds]

    def shortened(self, task: str) -> str:
        """A remark where the task was not run in full."""
        full = TASKS[task].defaults.steps
        sizes = {(setup.config.task, setup.config.steps) for key, setup in self._index.items() if key.task == task}
        remarks = {f"{spec}, {steps} steps" for spec, steps in sizes if spec != task or steps != full}
        return "; ".join(sorted(remarks))

    def drops(self, task: str, attack: str, rule: str, f: int, lr: float, place: str) -> list[float]:
        """Points of maximum accuracy lost to the attack, for each seed that the baseline has too."""
        return self.differences(self.get(task, attack, rule, f, lr, place), self.baseline(task, lr, place))


def _accuracy(run: RunResult, final: bool) -> float:
    return run.final_accuracy if final else run.max_accuracy


def judge(claims: Sequence[Claim], runs: Iterable[RunResult]) -> list[Verdict]:
    """A verdict for every claim."""
    lab = Lab(runs)
    verdicts = []
    for claim in claims:
        try:
            finding: Finding | None = claim.check(lab)
            remarks = [lab.shortened(task) for task in TASKS if task in claim.id or task in claim.statement.lower()]
            note = "; ".join(filter(None, remarks))
        except MissingRunsError as gap:
            finding, note = None, f"needs the runs of {gap}"
        facts = {field: getattr(claim, field) for field in _SHARED}
        verdict = UNMEASURED if finding is None else HOLDS if finding.holds else FAILS
        verdicts.append(Verdict(**facts, measured=finding.measured if finding else "-", verdict=verdict, note=note))
    return verdicts


def pairs(lab: Lab, task: str) -> list[tuple[SetupResult, SetupResult]]:
    """(server, workers) of every setting of a task that was run with both placements, the exception left out."""
    found = []
    half = {"mnist": 24, "cifar10": 11}[task]
    for setup in lab.attacked(task):
        config = setup.config
        exception = config.rule == "krum" and config.attack == "empire" and config.byzantine == half
        if config.momentum == "server" and not exception and "rescore" not in config.rule:
            for other in lab.attacked(task):
                if other.config == dataclasses.replace(config, momentum="workers"):
                    found.append((setup, other))
    if not found:
        raise MissingRunsError(f"{task} with both placements")
    return found


# -- quantities ------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], digits: int = 1) -> str:
    """`12.3 ± 0.4`: mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.{digits}f} ± {deviation:.{digits}f}"


def labelled(values: Mapping[str, Sequence[float]], digits: int = 1) -> str:
    """`krum 12.3 ± 0.4, median ...`"""
    return ", ".join(f"{label} {spread(numbers, digits)}" for label, numbers in values.items())


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)


def percents(setup: SetupResult, final: bool = False) -> list[float]:
    """Maximum (or final) accuracy of each seed, in percent."""
    return setup.each(lambda run: 100 * (run.final_accuracy if final else run.max_accuracy))


def useless_from(run: RunResult) -> float:
    """The step from which the model has learned nothing for good; infinity for a model that lives."""
    death = math.inf
    for step, accuracy in reversed(list(zip(run.evaluations["step"], run.evaluations["accuracy"], strict=True))):
        if accuracy > USELESS:
            break
        death = float(step)
    return death


def condition_steps(run: RunResult) -> int:
    """At how many steps the theory's condition held while the model was alive."""
    metrics = run.metrics
    held = metrics["condition_holds"].eq(True) & (metrics["step"] < useless_from(run))
    return int(held.sum())


def log_ratio(run: RunResult, first: int, last: int) -> float:
    """Mean of the logarithm of the sent gradients' variance-norm ratio over steps first to last-1."""
    ratios = [value for value in run.metrics["ratio_sent"].iloc[first:last].dropna() if 0 < value < math.inf]
    if not ratios:
        raise MissingRunsError("enough steps")
    return statistics.fmean(map(math.log, ratios))
