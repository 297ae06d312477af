"""A small real set of runs for the reports, made once by the scheduler, and claims to go with it."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from gyroscope.experiments import results, scheduler
from gyroscope.experiments.claims import ClaimVerdict
from gyroscope.experiments.grid import Setup, with_seeds
from gyroscope.runs.config import Config

STEPS, SEEDS, F = 20, (1, 2), 5


def setups() -> list[Setup]:
    """Two attacks, three rules, both placements, two learning rates for one attack; baselines; one that diverges."""
    chosen = []
    for place, lr in itertools.product(("server", "workers"), ("0.2", "0.05")):
        common = Config(task="digits", momentum=place, lr=lr, steps=STEPS, evaluate_every=2)
        chosen.append(common)
        for attack, rule in itertools.product(("little", "empire"), ("krum", "median", "bulyan")):
            if attack == "little" or lr == "0.2":
                chosen.append(dataclasses.replace(common, rule=rule, attack=attack, byzantine=F))
    chosen.append(dataclasses.replace(chosen[0], attack="nan", byzantine=F))
    return [Setup(f"setup-{number}", config) for number, config in enumerate(chosen)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    planned = scheduler.plan(with_seeds(setups(), SEEDS), out)
    outcomes = scheduler.execute(planned, out, ["cpu", "cpu"])
    failures = [outcome.log for outcome in outcomes if outcome.status == "failed"]
    assert not failures, failures[0]
    assert {outcome.status for outcome in outcomes} == {"complete", "diverged"}
    return out


@pytest.fixture(scope="session")
def runs(folder: Path) -> list[results.RunResult]:
    return results.load(folder)


@pytest.fixture(scope="session")
def verdicts() -> list[ClaimVerdict]:
    return [
        ClaimVerdict(
            check=lambda results: ("", True),
            id="drop-server",
            place="Section 5.2, Figure 2",
            statement="With momentum at the server all three rules lose about 15 points under 'A little is enough' "
            "with a quarter of the workers Byzantine.",
            quantity="drop of the maximum accuracy against the unattacked average, mean over the seeds",
            paper="about 15 points",
            threshold="between 8 and 25 points for each rule",
            measured="krum 12.1 ± 1.3, median 14.0 ± 0.9, bulyan 13.2 ± 2.2 points",
            verdict="holds",
        ),
        ClaimVerdict(
            check=lambda results: ("", True),
            id="workers-win",
            place="Section 5.3",
            statement="Workers beat or equal the server in every setting but krum against empire at half.",
            quantity="difference of the maximum accuracies",
            paper="every setting but one",
            threshold="no setting worse by more than 1 point",
            measured="19 of 20 settings",
            verdict="does not hold",
            note="Median under empire at f = 24 loses 1.4 ± 0.5 points.",
        ),
        ClaimVerdict(
            check=lambda results: ("", True),
            id="cifar-krum",
            place="Figure 3",
            statement="Krum stays at about 20 % on CIFAR-10 under little with f = 5.",
            quantity="maximum accuracy",
            paper="about 20 %",
            threshold="between 12 and 28 %",
            measured="",
            verdict="not measured",
            note="No CIFAR-10 runs in this folder.",
        ),
    ]
