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

from gyroscope.experiments.grid import BASELINE, PAPER, PaperKey, is_from_paper, paper
from gyroscope.experiments.results import RunResult, SetupResult, group
from gyroscope.runs.config import NO_ATTACK
from gyroscope.simulation.tasks import TASKS

HOLDS, FAILS, PARTLY, UNMEASURED = "holds", "does not hold", "partly measured", "not measured"
VERDICTS = {HOLDS: "✓", FAILS: "✗", PARTLY: "◐", UNMEASURED: "–"}
"""Every verdict, with its symbol in tables."""
USELESS = 0.15
"""A model of ten classes whose accuracy stays at or below this has learned nothing."""

Settings = tuple[PaperKey, ...]


@dataclasses.dataclass(frozen=True)
class Check:
    """How a claim is judged. There is a verdict only where all of its settings were run."""

    settings: Settings
    """What the claim is about."""
    judge: Callable[[PaperResults], tuple[str, bool]]
    """Returns what was measured, in words, and whether it meets the threshold; MissingRunsError where runs are too
    short, or do not have what is measured."""


@dataclasses.dataclass(frozen=True)
class SetupQuantity:
    """A number per seed of one of the paper's setups, and which setups it is computed from."""

    of: Callable[[PaperResults, PaperKey], list[float]]
    needs: Callable[[PaperKey], Settings] = lambda key: (key,)


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
    duplicate: bool = False
    """Whether it repeats another claim for a reading of Bulyan that is not among the paper's runs."""


@dataclasses.dataclass(frozen=True)
class ClaimVerdict(Claim):
    """A claim, what we measured, and whether it holds."""

    measured: str = "-"
    verdict: str = UNMEASURED
    note: str = ""


class MissingRunsError(LookupError):
    """The runs that a claim needs do not exist."""


class PaperResults:
    """The results of the paper's setups by their hyperparameters; all other runs are ignored.

    Of a task that was run at several sizes (steps, width) one counts, so that what is compared is comparable: the one
    with the most settings, and of those the one with the most steps.
    """

    def __init__(self, runs: Iterable[RunResult]) -> None:
        by_size: dict[str, dict[tuple[str, int], dict[PaperKey, SetupResult]]] = {}
        for setup in group(runs):
            if is_from_paper(setup.config):
                key, size = PaperKey.of(setup.config), (setup.config.task, setup.config.steps or 0)
                by_size.setdefault(key.task, {}).setdefault(size, {})[key] = setup
        self._setups: dict[PaperKey, SetupResult] = {}
        for sizes in by_size.values():
            self._setups.update(sizes[max(sizes, key=lambda size: (len(sizes[size]), size[1], size[0]))])

    def get(self, key: PaperKey) -> SetupResult:
        """Return the results of a setup; raise MissingRunsError where it was not run."""
        if key not in self._setups:
            raise MissingRunsError(str(key))
        return self._setups[key]

    def missing(self, settings: Iterable[PaperKey]) -> list[PaperKey]:
        """Return those of the settings that were not run."""
        return [key for key in dict.fromkeys(settings) if key not in self._setups]

    def runs(self, settings: Iterable[PaperKey]) -> list[RunResult]:
        return [run for key in settings for run in self.get(key).runs]

    def size(self, task: str) -> str:
        """Return a remark where the task was not run in full."""
        full = TASKS[task].defaults.steps
        sizes = {(setup.config.task, setup.config.steps) for key, setup in self._setups.items() if key.task == task}
        return "; ".join(
            f"at reduced size: {spec}, {steps} steps" for spec, steps in sizes if (spec, steps) != (task, full)
        )


def attacked(task: str) -> Settings:
    """Return the paper's 40 settings of a task under attack."""
    keys = (PaperKey.of(setup.config) for setup in paper(task))
    return tuple(key for key in keys if key.attack != NO_ATTACK)


def placement_pairs(task: str, exception: bool = True) -> list[tuple[PaperKey, PaperKey]]:
    """Return (server, workers) of every attacked setting of a task.

    Args:
        task: `mnist` or `cifar10`.
        exception: Leave out Krum against `empire` with half of the workers Byzantine, which the paper exempts from what
            it says of accuracy.
    """
    return [
        (key, dataclasses.replace(key, place="workers"))
        for key in attacked(task)
        if key.place == "server"
        and not (exception and (key.rule, key.attack, key.f) == ("krum", "empire", PAPER[task][0]))
    ]


def judge(claims: Sequence[Claim], runs: Iterable[RunResult]) -> list[ClaimVerdict]:
    """Return a verdict for every claim."""
    results = PaperResults(runs)
    verdicts = []
    for claim in claims:
        settings = dict.fromkeys(claim.check.settings)
        missing = results.missing(settings)
        tasks = sorted({key.task for key in settings})
        note = "; ".join(filter(None, (results.size(task) for task in tasks if len(missing) < len(settings))))
        measured, verdict = "-", UNMEASURED
        if missing:
            if len(missing) < len(settings):
                measured, verdict = f"{len(settings) - len(missing)} of {len(settings)} settings", PARTLY
            others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
            note = "; ".join(filter(None, (note, f"needs the runs of {missing[0]}{others}")))
        else:
            try:
                measured, holds = claim.check.judge(results)
                verdict = HOLDS if holds else FAILS
            except MissingRunsError as gap:
                note = f"needs the runs of {gap}"
        facts = {field.name: getattr(claim, field.name) for field in dataclasses.fields(claim)}
        verdicts.append(ClaimVerdict(**facts, measured=measured, verdict=verdict, note=note))
    return verdicts


def summary(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return how many claims hold; apart, those for a reading of Bulyan that is not among the paper's runs."""
    own, others = ([v for v in verdicts if v.duplicate is duplicate] for duplicate in (False, True))
    text = f"{len(own)} claims: {_counts(own)}"
    return f"{text}; {len(others)} again for Bulyan with rescoring: {_counts(others)}" if others else text


def _counts(verdicts: Sequence[ClaimVerdict]) -> str:
    plurals = {HOLDS: "hold", FAILS: "do not hold"}
    counts = {word: sum(v.verdict == word for v in verdicts) for word in VERDICTS}
    return ", ".join(f"{n} {word if n == 1 else plurals.get(word, word)}" for word, n in counts.items() if n)


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

    keys = [PaperKey(**case) for case in cases]

    def judge(results: PaperResults) -> tuple[str, bool]:
        found = {label.format(**case): quantity.of(results, key) for case, key in zip(cases, keys, strict=True)}
        means = [statistics.fmean(numbers) for numbers in found.values()]
        text = labelled(found, printed_decimals(holds, *means)) + unit
        return text, not any(map(math.isnan, means)) and holds(*means)

    return Check(tuple(needed for key in keys for needed in quantity.needs(key)), judge)


def unattacked(key: PaperKey) -> PaperKey:
    """Return the average without an attack that a setting is compared with."""
    return dataclasses.replace(key, attack=NO_ATTACK, rule=BASELINE, f=0)


def each(function: Callable[[RunResult], float]) -> SetupQuantity:
    """Return the quantity that the function computes from each run."""
    return SetupQuantity(lambda results, key: results.get(key).each(function))


def difference(
    first: Callable[[PaperKey], PaperKey], second: Callable[[PaperKey], PaperKey], final: bool = False
) -> SetupQuantity:
    """Return the points of maximum (or final) accuracy by which the second setup is above the first, for each seed."""
    return SetupQuantity(
        lambda results, key: _differences(results, first(key), second(key), final),
        lambda key: (first(key), second(key)),
    )


def _with(**changes: Any) -> Callable[[PaperKey], PaperKey]:
    return lambda key: dataclasses.replace(key, **changes)


accuracy = each(lambda run: 100 * run.max_accuracy)
"""The maximum accuracies in percent."""
loss = difference(_with(), unattacked)
"""The points of maximum accuracy lost to the attack, for each seed that the unattacked average has too."""
gain = difference(_with(place="server"), _with(place="workers"))
"""The points of maximum accuracy that momentum at the workers adds to that at the server."""
final_gain = difference(_with(place="server"), _with(place="workers"), final=True)
median_margin = difference(_with(rule="krum"), _with(rule="median"))
"""The points of maximum accuracy that Median is above Krum."""


def _differences(results: PaperResults, first: PaperKey, second: PaperKey, final: bool = False) -> list[float]:
    one, two = ({run.config.seed: run for run in results.get(key).runs} for key in (first, second))
    seeds = sorted(one.keys() & two.keys())
    if not seeds:
        raise MissingRunsError("a seed that both setups have")
    name = "final_accuracy" if final else "max_accuracy"
    return [100 * (getattr(two[seed], name) - getattr(one[seed], name)) for seed in seeds]


def printed_decimals(holds: Callable[..., bool], *numbers: float) -> int:
    """Return how many decimals to print: one, or so many that the printed numbers are on their side of the bound."""
    verdict = holds(*numbers)
    return next((d for d in range(1, 7) if holds(*(round(number, d) for number in numbers)) == verdict), 1)


def mean_text(numbers: Sequence[float], decimals: int = 1) -> str:
    """Return `12.3 ± 0.4`: mean and standard deviation, which is 0 for a single number."""
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return f"{statistics.fmean(numbers):.{decimals}f} ± {deviation:.{decimals}f}"


def labelled(values: Mapping[str, Sequence[float]], decimals: int = 1) -> str:
    """Return `krum 12.3 ± 0.4, median ...`: mean and standard deviation by label."""
    return ", ".join(f"{label} {mean_text(numbers, decimals)}".lstrip() for label, numbers in values.items())


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
