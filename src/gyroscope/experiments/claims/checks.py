"""Check the paper's claims by machine: a claim states what is measured and its threshold, a verdict whether it holds.

Thresholds follow the paper's words (`about 15 points` becomes 10 to 20), not our measurements.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gyroscope.experiments.grid import BASELINE, PAPER, PLACES, PaperKey, is_from_paper
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.tasks import TASKS

HOLDS, FAILS, UNMEASURED = "holds", "does not hold", "not measured"
VERDICTS = {HOLDS: "✓", FAILS: "✗", UNMEASURED: "–"}
"""Every verdict, with its symbol in tables."""
USELESS = 0.15
"""A model of ten classes whose accuracy stays at or below this has learned nothing."""

Check = Callable[["PaperResults"], tuple[str, bool]]
"""Returns what was measured, in words, and whether it meets the threshold; raises MissingRunsError without the runs."""
SetupQuantity = Callable[["PaperResults", PaperKey], list[float]]
"""A number per seed of one of the paper's setups."""


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


@dataclasses.dataclass(frozen=True)
class ClaimVerdict(Claim):
    """A claim, what we measured, and whether it holds."""

    measured: str
    verdict: str
    note: str = ""


class MissingRunsError(LookupError):
    """The runs that a claim needs do not exist."""


class PaperResults:
    """The results of the paper's setups by their hyperparameters; all other runs are ignored.

    Of a setup that was run at several lengths or widths, the runs with the most steps count.
    """

    def __init__(self, runs: Iterable[RunResult]) -> None:
        self._setups: dict[PaperKey, SetupResult] = {}
        for setup in group(runs):
            if is_from_paper(setup.config):
                key = PaperKey.of(setup.config)
                other = self._setups.get(key)
                if other is None or (other.config.steps or 0) < (setup.config.steps or 0):
                    self._setups[key] = setup

    def get(self, key: PaperKey) -> SetupResult:
        """Return the results of a setup; raise MissingRunsError where it was not run."""
        if key not in self._setups:
            raise MissingRunsError(f"{key.task} {key.attack} {key.rule} f={key.f} lr={key.lr:g} {key.place}")
        return self._setups[key]

    def attacked(self, task: str, rescored: bool = True) -> dict[PaperKey, SetupResult]:
        """Return the setups of a task under attack, those of Bulyan with rescoring only if `rescored`."""
        return {
            key: setup
            for key, setup in self._setups.items()
            if key.task == task and key.attack != NO_ATTACK and (rescored or "rescore" not in key.rule)
        }

    def shortened(self, task: str) -> str:
        """Return a remark where the task was not run in full."""
        full = TASKS[task].defaults.steps
        sizes = {(setup.config.task, setup.config.steps) for key, setup in self._setups.items() if key.task == task}
        return "; ".join(sorted(f"{spec}, {steps} steps" for spec, steps in sizes if spec != task or steps != full))

    def placement_pairs(self, task: str) -> list[tuple[SetupResult, SetupResult]]:
        """Return (server, workers) of every setting of a task that was run with both placements.

        Krum against `empire` with half of the workers Byzantine, the paper's own exception, is left out.
        """
        found = []
        for key, server in self.attacked(task, rescored=False).items():
            if key.place == "server" and (key.rule, key.attack, key.f) != ("krum", "empire", PAPER[task][0]):
                workers = self._setups.get(dataclasses.replace(key, place="workers"))
                if workers and workers.config == dataclasses.replace(server.config, momentum="workers"):
                    found.append((server, workers))
        if not found:
            raise MissingRunsError(f"{task} with both placements")
        return found


def judge(claims: Sequence[Claim], runs: Iterable[RunResult]) -> list[ClaimVerdict]:
    """Return a verdict for every claim."""
    results = PaperResults(runs)
    verdicts = []
    for claim in claims:
        try:
            measured, holds = claim.check(results)
            verdict = HOLDS if holds else FAILS
            remarks = [results.shortened(task) for task in TASKS if task in claim.id or task in claim.statement.lower()]
            note = "; ".join(filter(None, remarks))
        except MissingRunsError as gap:
            measured, verdict, note = "-", UNMEASURED, f"needs the runs of {gap}"
        verdicts.append(ClaimVerdict(**vars(claim), measured=measured, verdict=verdict, note=note))
    return verdicts


def compare(
    quantity: SetupQuantity, label: str, holds: Callable[..., bool], unit: str = " points", **axes: Any
) -> Check:
    """Return a check of a quantity's means over the seeds, one for each combination of hyperparameters.

    Args:
        quantity: What is measured of a setup.
        label: How each combination is named in the result, as a format string of the hyperparameters.
        holds: Gets the means, in the order of the combinations (the last axis varies fastest).
        unit: Written behind the last number.
        axes: The hyperparameters of a `PaperKey`; a collection lists several values.
    """
    values = [(value,) if isinstance(value, (str, int, float)) else tuple(value) for value in axes.values()]
    cases = [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*values)]

    def check(results: PaperResults) -> tuple[str, bool]:
        found = {label.format(**case): quantity(results, PaperKey(**case)) for case in cases}
        means = [statistics.fmean(numbers) for numbers in found.values()]
        return labelled(found) + unit, not any(map(math.isnan, means)) and holds(*means)

    return check


def accuracy(results: PaperResults, key: PaperKey) -> list[float]:
    """Return the maximum accuracies in percent."""
    return results.get(key).each(lambda run: 100 * run.max_accuracy)


def loss(results: PaperResults, key: PaperKey) -> list[float]:
    """Return the points of maximum accuracy lost to the attack, for each seed that the unattacked average has too."""
    unattacked = dataclasses.replace(key, attack=NO_ATTACK, rule=BASELINE, f=0)
    return _differences(results, key, unattacked)


def gain(results: PaperResults, key: PaperKey, final: bool = False) -> list[float]:
    """Return the points of maximum (or final) accuracy that momentum at the workers adds to that at the server."""
    server, workers = (dataclasses.replace(key, place=place) for place in PLACES)
    return _differences(results, server, workers, final)


def median_margin(results: PaperResults, key: PaperKey) -> list[float]:
    """Return the points of maximum accuracy that Median is above Krum."""
    krum, median = (dataclasses.replace(key, rule=rule) for rule in ("krum", "median"))
    return _differences(results, krum, median)


def each(function: Callable[[RunResult], float]) -> SetupQuantity:
    """Return the quantity that the function computes from each run."""
    return lambda results, key: results.get(key).each(function)


def _differences(results: PaperResults, first: PaperKey, second: PaperKey, final: bool = False) -> list[float]:
    one, two = ({run.config.seed: run for run in results.get(key).runs} for key in (first, second))
    seeds = sorted(one.keys() & two.keys())
    if not seeds:
        raise MissingRunsError("a seed that both setups have")
    name = "final_accuracy" if final else "max_accuracy"
    return [100 * (getattr(two[seed], name) - getattr(one[seed], name)) for seed in seeds]


def mean_text(numbers: Sequence[float]) -> str:
    """Return `12.3 ± 0.4`: mean and standard deviation, which is 0 for a single number."""
    return f"{statistics.fmean(numbers):.1f} ± {statistics.stdev(numbers) if len(numbers) > 1 else 0.0:.1f}"


def labelled(values: Mapping[str, Sequence[float]]) -> str:
    """Return `krum 12.3 ± 0.4, median ...`: mean and standard deviation by label."""
    return ", ".join(f"{label} {mean_text(numbers)}".lstrip() for label, numbers in values.items())


def in_pairs(means: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Yield (first, second), (third, fourth), ..."""
    return zip(means[::2], means[1::2], strict=True)


def useless_from(run: RunResult) -> float:
    """Return the step from which the model stays useless to the end; infinity for a model that learns."""
    steps, useful = run.evaluations["step"], run.evaluations["accuracy"] > USELESS
    after = steps[steps > steps[useful].max()] if useful.any() else steps
    return float(after.min()) if len(after) else math.inf


def log_ratio(run: RunResult, first: int, last: int) -> float:
    """Return the mean logarithm of the sent gradients' variance-norm ratio over steps first to last - 1."""
    ratios = [value for value in run.metrics["ratio_sent"].iloc[first:last].dropna() if 0 < value < math.inf]
    if not ratios:
        raise MissingRunsError("enough steps")
    return statistics.fmean(map(math.log, ratios))
