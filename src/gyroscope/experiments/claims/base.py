"""Checking claims by machine: a claim states what is measured and its threshold; a verdict says whether it holds.

Thresholds are set from the paper's words (`about 15 points` becomes 10 to 20), not from what we measured.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from gyroscope.experiments.grid import BASELINE
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.schedule import Schedule

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
    """All results at hand, looked up by the paper's five hyperparameters."""

    def __init__(self, runs: Iterable[RunResult]) -> None:
        self.setups = group(runs)
        self._index = {self._key(setup): setup for setup in self.setups}

    @staticmethod
    def _key(setup: SetupResult) -> tuple[str, str, str, int, float, str]:
        config = setup.config
        task = config.task.partition(":")[0]
        rate = Schedule.parse(config.lr or 0).at(0)
        return task, config.attack, config.rule, config.byzantine, rate, config.momentum

    def get(self, task: str, attack: str, rule: str, f: int, lr: float, place: str) -> SetupResult:
        """The setup under attack, or MissingRunsError."""
        try:
            return self._index[task, attack, rule, f, lr, place]
        except KeyError:
            raise MissingRunsError(f"{task} {attack} {rule} f={f} lr={lr:g} {place}") from None

    def baseline(self, task: str, lr: float, place: str) -> SetupResult:
        """The unattacked average."""
        return self.get(task, "none", BASELINE, 0, lr, place)

    def attacked(self, task: str) -> list[SetupResult]:
        """All setups of a task under attack."""
        return [setup for key, setup in self._index.items() if key[0] == task and key[1] != "none"]

    def drops(self, task: str, attack: str, rule: str, f: int, lr: float, place: str) -> list[float]:
        """Points of maximum accuracy lost to the attack, for each seed that the baseline has too."""
        reference = {run.config.seed: run.max_accuracy for run in self.baseline(task, lr, place).runs}
        runs = self.get(task, attack, rule, f, lr, place).runs
        drops = [100 * (reference[run.config.seed] - run.max_accuracy) for run in runs if run.config.seed in reference]
        if not drops:
            raise MissingRunsError("no seed in common with the baseline")
        return drops


def judge(claims: Sequence[Claim], runs: Iterable[RunResult]) -> list[Verdict]:
    """A verdict for every claim."""
    lab = Lab(runs)
    verdicts = []
    for claim in claims:
        try:
            finding: Finding | None = claim.check(lab)
            note = ""
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
    ratios = run.metrics["ratio_sent"].iloc[first:last].dropna()
    return statistics.fmean(math.log(value) for value in ratios if 0 < value < math.inf)
