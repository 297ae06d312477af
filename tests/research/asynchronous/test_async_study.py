"""The study behind docs/beyond/asynchronous.md: its runs are what they say, and its numbers what they mean."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest

from gyroscope.research.asynchronous import study_runs, study_tables
from gyroscope.research.asynchronous.study_tables import agreement


def test_agreement_is_cohens() -> None:
    found = agreement([True, True, False, False], [True, False, False, False])
    assert (found.same, found.accepted, found.other_accepted) == (0.75, 0.5, 0.25)
    assert found.kappa == pytest.approx((0.75 - 0.5) / 0.5)
    assert agreement([True, False], [False, True]).kappa == -1.0
    assert agreement([True, False], [True, False]).kappa == 1.0
    assert math.isnan(agreement([True, True], [True, True]).kappa)


def test_every_run_of_the_study_is_feasible_and_has_a_name_of_its_own() -> None:
    todo = study_runs.study_runs("digits", [1, 2])
    assert len({entry.name for entry in todo}) == len(todo)
    settings = [tuple(sorted(entry.config.resolve().experiment().items())) for entry in todo]
    parts = [entry.part for entry in todo]
    assert len(set(zip(parts, settings, strict=True))) == len(todo)


def test_the_study_runs_once_and_gives_tables_and_a_figure(tmp_path: Path) -> None:
    wanted = (
        "idle_0-rate_0.05-workers",
        "idle_0-rate_0.05-none",
        "uneven-rate_0.05-workers",
        "empire-speed_10-kardam-workers",
        "dampening-inverse-server",
    )
    todo = [
        entry
        for entry in study_runs.study_runs("digits", [1], rounds=4)
        if entry.name.removesuffix("-seed_1") in wanted
    ]
    assert len(todo) == len(wanted)
    assert [left for left, _ in study_runs.run_all(todo, tmp_path)] == [4, 3, 2, 1, 0]
    assert list(study_runs.run_all(todo, tmp_path)) == []
    changed = dataclasses.replace(todo[0], config=dataclasses.replace(todo[0].config, mu=0.5))
    assert not study_runs.is_complete(changed, tmp_path / changed.name)
    runs = study_tables.load(todo, tmp_path)
    (attacked,) = study_tables.where(runs, "attacks", attack="empire")
    accepted = attacked.arrivals[attacked.arrivals["accepted"]]
    assert attacked.byzantine_share == pytest.approx(100 * accepted["byzantine"].sum() / len(accepted))
    table = study_tables.attacks_table(runs)
    assert f"| empire | 10 | kardam | {attacked.byzantine_share:.0f} |" in table
    lies = attacked.arrivals.query("byzantine")
    assert f" / {100 * lies['refused_lipschitz'].sum() / len(lies):.0f} |" in table
    (summed,) = study_tables.where(runs, "staleness", momentum="workers", speeds="equal")
    (plain,) = study_tables.where(runs, "staleness", momentum="none")
    table = study_tables.staleness_table(runs)
    assert f"| 0.05 | no pause | {summed.staleness:.1f} | {100 * summed.agreement.same:.0f} |" in table
    assert f"| {summed.max_accuracy:.1f} | - | - | - | {plain.max_accuracy:.1f} |" in table
    (uneven,) = study_tables.where(runs, "staleness", speeds="lognormal:sigma=0.5")
    sent = uneven.arrivals["worker"].value_counts(sort=False).sort_index().sort_values(kind="stable")
    fastest = [
        uneven.arrivals.loc[uneven.arrivals["worker"] == worker, "accepted"].mean() for worker in sent.index[-3:]
    ]
    assert f"| {100 * sum(fastest) / 3:.0f} |" in study_tables.speeds_table(runs)
    assert "| inverse | 0." in study_tables.dampening_table(runs)
    assert all(path.stat().st_size > 0 for path in study_tables.figure(runs, tmp_path / "figure"))
