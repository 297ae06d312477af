"""The paper's claims against made-up results: every one can be judged, and each goes the way the numbers say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy
import pandas
import pytest

from gyroscope import Config
from gyroscope.experiments import grid
from gyroscope.experiments.claims import (
    CLAIMS,
    FAILS,
    HOLDS,
    PARTLY,
    UNMEASURED,
    Claim,
    ClaimVerdict,
    checks,
    judge,
    variance_ratio,
)
from gyroscope.experiments.results import RunResult

Accuracy = Callable[[Config], float]


def made_up(config: Config, accuracy: float, ratio: float = 5.0) -> RunResult:
    """A run that climbs to an accuracy, with a constant ratio and a straightness that grows and then oscillates."""
    config = config.resolve()
    steps = config.steps or 0
    at = numpy.arange(0, steps + 1, 5)
    run = RunResult(Path("nowhere"), config, "complete", steps)
    classes = numpy.full(len(at), 1 if accuracy <= 0.1 else 4)
    accuracies = numpy.minimum(accuracy, 0.1 + at / 100)
    evaluations = pandas.DataFrame({"step": at, "accuracy": accuracies, "predicted_classes": classes})
    t = numpy.arange(steps)
    metrics = pandas.DataFrame(
        {
            "step": t,
            "ratio_sent": numpy.full(steps, ratio),
            "ratio_bound": numpy.full(steps, 0.01),
            "condition_holds": numpy.zeros(steps, dtype=bool),
            "straightness": numpy.where(t < 12, t / 10, numpy.cos(t)),
            "sampled_deviation": numpy.full(steps, 1.0),
            "sent_deviation": numpy.full(steps, 2.0),
            "distance_from_start": numpy.full(steps, 1.0 if config.attack == "none" else 0.5),
        }
    )
    # where cached_property keeps them
    run.__dict__.update(evaluations=evaluations, metrics=metrics, processor_seconds=10.0)
    return run


def whole_paper(accuracy: Accuracy, ratio: Accuracy = lambda config: 5.0) -> list[RunResult]:
    setups = grid.paper("mnist", rescore=True) + grid.paper("cifar10", steps=200, rescore=True)
    runs = grid.with_seeds(setups, [1, 2])
    return [made_up(run.config, accuracy(run.config), ratio(run.config)) for run in runs]


def by_id(verdicts: list[ClaimVerdict]) -> dict[str, ClaimVerdict]:
    return {verdict.id: verdict for verdict in verdicts}


def test_without_runs_nothing_is_measured() -> None:
    verdicts = judge(CLAIMS, [])
    assert {verdict.verdict for verdict in verdicts} == {UNMEASURED}
    assert all("needs the runs of" in verdict.note for verdict in verdicts)


def test_with_the_whole_grid_every_claim_is_judged() -> None:
    verdicts = judge(CLAIMS, whole_paper(lambda config: 0.9))
    assert [verdict.id for verdict in verdicts if verdict.verdict == UNMEASURED] == []
    assert len({verdict.id for verdict in verdicts}) == len(CLAIMS) == 55
    assert sum(claim.duplicate for claim in CLAIMS) == 5


def test_the_claims_follow_the_numbers() -> None:
    def as_published(config: Config) -> float:
        if config.attack == "none":
            return 0.97
        if config.rule.startswith("bulyan") and config.momentum == "workers":
            return 0.96
        if config.attack == "empire" and config.rule == "krum" and config.byzantine in (24, 11):
            return 0.10 if config.momentum == "server" else 0.50
        return 0.82 if config.momentum == "server" else 0.90

    good = by_id(judge(CLAIMS, whole_paper(as_published)))
    assert good["mnist-little-quarter-server-krum"].verdict == HOLDS
    assert good["mnist-little-quarter-server-krum"].measured == "15.0 ± 0.0 points"
    assert good["mnist-little-quarter-workers-bulyan"].verdict == HOLDS
    assert good["reduction-bulyan"].measured.startswith("x15.0")
    assert good["mnist-empire-half-krum-server"].verdict == HOLDS
    assert good["mnist-workers-never-worse"].verdict == HOLDS
    assert good["mnist-empire-half-krum-workers"].verdict == HOLDS
    assert good["mnist-empire-half-krum-workers"].measured.startswith("server 1 to 1 classes, workers 4 to 4 classes")
    assert good["variance-workers"].verdict == good["empire-shortens"].verdict == HOLDS

    def the_other_way(config: Config) -> float:
        return 0.97 if config.attack == "none" or config.momentum == "server" else 0.90

    bad = by_id(judge(CLAIMS, whole_paper(the_other_way)))
    assert bad["mnist-little-quarter-server-krum"].verdict == FAILS
    assert bad["mnist-little-quarter-workers-bulyan"].verdict == FAILS
    assert bad["mnist-empire-half-krum-server"].verdict == FAILS
    assert bad["mnist-workers-never-worse"].verdict == FAILS
    assert "-7.0" in bad["mnist-workers-never-worse"].measured


def test_ratios_are_compared_between_placements_and_rates() -> None:
    def lower_at_workers(config: Config) -> float:
        return 1.0 if config.momentum == "workers" else 8.0

    verdicts = by_id(judge(CLAIMS, whole_paper(lambda config: 0.9, lower_at_workers)))
    assert verdicts["ratio-workers"].verdict == HOLDS and "x8.0" in verdicts["ratio-workers"].measured
    assert verdicts["ratio-rate"].verdict == FAILS  # equal at both rates is not lower


def test_all_steps_count_for_the_condition() -> None:
    """The paper counts all of them, also those of a model that is useless."""
    run = made_up(Config(task="mnist", rule="krum", attack="empire", byzantine=24), 0.1)
    run.metrics["condition_holds"] = True
    assert checks.useless_from(run) == 0
    assert variance_ratio.condition_steps(run) == len(run.metrics)
    alive = made_up(Config(task="mnist", rule="krum", attack="empire", byzantine=12), 0.9)
    alive.metrics.loc[:6, "condition_holds"] = True
    assert variance_ratio.condition_steps(alive) == 7


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_a_claim_says_where_it_stands_and_when_it_holds(claim: Claim) -> None:
    facts = dataclasses.asdict(claim)
    assert all(facts[name] for name in ("place", "statement", "quantity", "paper", "threshold"))
    assert claim.place.startswith(("Figure", "Section"))


def test_runs_that_are_not_the_papers_are_not_judged_as_such() -> None:
    runs = whole_paper(lambda config: 0.9)
    others = [
        dataclasses.replace(run, config=dataclasses.replace(run.config, mu=0.5)) for run in runs
    ]  # another momentum factor makes another experiment
    assert {verdict.verdict for verdict in judge(CLAIMS, others)} == {UNMEASURED}


def test_the_longer_of_two_reproductions_counts_and_a_shorter_one_is_remarked() -> None:
    def runs(steps: int, accuracy: float) -> list[RunResult]:
        setups = [*grid.only(grid.paper("mnist", steps), ["mnist-average-lr_0.5-*", "mnist-little-krum-f_12-lr_0.5-*"])]
        return [
            made_up(setup.config, 0.97 if setup.config.attack == "none" else accuracy)
            for setup in grid.with_seeds(setups, [1])
        ]

    assert by_id(judge(CLAIMS, runs(300, 0.85)))["mnist-little-quarter-server-krum"].note == ""
    for together in (runs(300, 0.85) + runs(100, 0.5), runs(100, 0.5) + runs(300, 0.85)):
        verdict = by_id(judge(CLAIMS, together))["mnist-little-quarter-server-krum"]
        assert verdict.measured == "12.0 ± 0.0 points" and verdict.note == ""
    verdict = by_id(judge(CLAIMS, runs(100, 0.85)))["mnist-little-quarter-server-krum"]
    assert verdict.note == "at reduced size: mnist, 100 steps"


@pytest.mark.parametrize("steps", [1, 4, 20])
def test_runs_that_are_too_short_for_a_claim_leave_it_unmeasured(steps: int) -> None:
    setups = grid.with_seeds(grid.paper("mnist", steps=steps), [1])
    verdicts = by_id(judge(CLAIMS, [made_up(setup.config, 0.5) for setup in setups]))
    assert verdicts["mnist-empire-half-krum-server"].verdict == UNMEASURED
    assert "30 steps" in verdicts["mnist-empire-half-krum-server"].note


@pytest.mark.parametrize(("attacked", "measured", "verdict"), [(0.8702, "9.98", FAILS), (0.8696, "10.0", HOLDS)])
def test_a_printed_number_is_on_its_side_of_the_bound(attacked: float, measured: str, verdict: str) -> None:
    found = by_id(judge(CLAIMS, whole_paper(lambda config: 0.97 if config.attack == "none" else attacked)))
    claim = found["mnist-little-quarter-server-krum"]
    assert (claim.threshold, claim.verdict) == ("10 to 20 points", verdict)
    assert claim.measured.startswith(f"{measured} ±")


def test_seeds_are_paired() -> None:
    def accuracy(config: Config) -> float:
        return 0.5 + config.seed / 10 if config.attack != "none" else 0.97

    runs = [run for run in whole_paper(accuracy) if not (run.config.momentum == "server" and run.config.seed == 1)]
    gain = by_id(judge(CLAIMS, runs))["mnist-empire-half-median-gain"]
    assert gain.measured == "rate 0.5: 0.0 ± 0.0, rate 0.02: 0.0 ± 0.0 points"


@pytest.mark.parametrize(
    ("pattern", "id", "settings"),
    [
        ("mnist-little-*-f_24-*", "mnist-workers-never-worse", "8 of 36 settings"),
        ("mnist-empire-krum-f_24-lr_0.5-*", "mnist-empire-half-krum-workers", "2 of 4 settings"),
        ("mnist-little-krum-f_12-lr_0.5-at_update", "straightness-then", "1 of 40 settings"),
        ("mnist-*", "condition-rare", "40 of 80 settings"),
        ("mnist-*", "cifar10-little-half-substantial", "3 of 6 settings"),
    ],
)
def test_a_part_of_the_grid_gives_no_verdict(pattern: str, id: str, settings: str) -> None:
    setups = grid.with_seeds(grid.only(grid.paper("mnist"), [pattern]), [1])
    verdict = by_id(judge(CLAIMS, [made_up(setup.config, 0.9) for setup in setups]))[id]
    assert (verdict.verdict, verdict.measured) == (PARTLY, settings)
    assert "needs the runs of" in verdict.note


def test_every_claim_names_settings_of_the_paper() -> None:
    keys = {grid.PaperKey.of(setup.config) for task in grid.PAPER for setup in grid.paper(task, rescore=True)}
    for claim in CLAIMS:
        assert claim.check.settings and set(claim.check.settings) <= keys, claim.id


def test_a_short_complete_grid_counts_rather_than_a_long_part_of_one() -> None:
    whole = [made_up(run.config, 0.9) for run in grid.with_seeds(grid.paper("mnist", steps=100), [1])]
    part = [made_up(run.config, 0.2) for run in grid.with_seeds(grid.paper("mnist")[:3], [1])]
    verdict = by_id(judge(CLAIMS, whole + part))["mnist-workers-never-worse"]
    assert verdict.verdict == HOLDS and verdict.note == "at reduced size: mnist, 100 steps"


def test_runs_without_the_number_of_classes_leave_that_claim_unmeasured() -> None:
    runs = whole_paper(lambda config: 0.9)
    for run in runs:
        del run.evaluations["predicted_classes"]
    verdict = by_id(judge(CLAIMS, runs))["mnist-empire-half-krum-workers"]
    assert verdict.verdict == UNMEASURED and "predicted_classes" in verdict.note


def test_the_overhead_needs_recorded_times_and_compares_pairs() -> None:
    runs = whole_paper(lambda config: 0.9)
    for run in runs:
        run.__dict__["processor_seconds"] = 12.0 if run.config.momentum == "workers" else 10.0
    verdict = by_id(judge(CLAIMS, runs))["mnist-overhead"]
    assert verdict.verdict == FAILS and verdict.measured.startswith("+20.0%")
    for run in runs:
        run.__dict__["processor_seconds"] = None
    verdict = by_id(judge(CLAIMS, runs))["mnist-overhead"]
    assert verdict.verdict == UNMEASURED and "processor_seconds" in verdict.note
