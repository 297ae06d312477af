"""Verdicts on ranks: what looks bad, what is remembered, and when the job stops."""

from __future__ import annotations

import csv
import math
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from exposition import parse

from gyroscope._core.errors import ExchangeError
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.distributed.verdict_metrics import serve_metrics

GOOD = Seen(True, 1.0)
FAR, GARBAGE = Seen(True, 50.0), Seen(True, 5000.0)
NAN = Seen(False, math.inf)
MISSING = Seen.of([math.nan, math.nan])


def after(steps: list[list[Seen]], f: int = 1, weight: torch.Tensor | None = None) -> RankVerdicts:
    verdicts = RankVerdicts(len(steps[0]), f)
    for seen in steps:
        verdicts.take(seen, weight)
    return verdicts


@pytest.mark.parametrize(
    ("row", "verdict"), [(GOOD, "ok"), (FAR, "suspect"), (NAN, "non-finite"), (MISSING, "missing")]
)
def test_a_rank_is_what_its_rows_are(row: Seen, verdict: str) -> None:
    verdicts = after([[GOOD, GOOD, row, GOOD, GOOD]] * 3)
    assert [verdicts.verdict(rank) for rank in range(5)] == ["ok", "ok", verdict, "ok", "ok"]


def test_one_nan_is_forgotten() -> None:
    verdicts = after([[GOOD] * 5] * 5 + [[GOOD, GOOD, NAN, GOOD, GOOD]] + [[GOOD] * 5])
    assert verdicts.report() == "step 7: 5 ok"
    assert verdicts.non_finite_steps == [0, 0, 1, 0, 0]


def test_a_rank_without_weight_is_suspect() -> None:
    verdicts = after([[GOOD] * 5] * 4, weight=torch.tensor([0.25, 0.25, 0.25, 0.0, 0.25], dtype=torch.float64))
    assert verdicts.report() == "step 4: 4 ok, rank 3 suspect (1.00)"


def test_a_rule_that_leaves_out_more_than_f_rows_accuses_no_honest_rank() -> None:
    steps = []
    for step in range(40):
        liar = Seen(True, 3.0)
        steps.append([*(Seen(True, 1.0 + (rank + step) % 4 / 10) for rank in range(4)), liar])
    krum = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0], dtype=torch.float64)  # two of five rows
    assert after(steps, weight=krum).report() == "step 40: 4 ok, rank 4 suspect (1.00)"
    honest = RankVerdicts(5, 1)
    for step in range(40):  # each rank is left out three times of five, and farthest off once
        honest.take([Seen(True, 1.0 + (rank - step) % 5 / 10) for rank in range(5)], krum.roll(step))
    assert honest.report() == "step 40: 5 ok"
    turns = RankVerdicts(15, 3)
    for step in range(60):  # 12 to 14 never get weight; one of them in turn sticks out, and two honest rows in turn
        row = torch.full((15,), 0.1, dtype=torch.float64)
        row[12:] = row[2 * step % 12] = row[(2 * step + 1) % 12] = 0.0
        far = [2.0 if rank in (2 * step % 12, (2 * step + 1) % 12) else 1.0 for rank in range(12)]
        turns.take([Seen(True, each) for each in [*far, *(3.0 if rank == step % 3 else 1.9 for rank in range(3))]], row)
    assert turns.report() == "step 60: 12 ok, " + ", ".join(f"rank {rank} suspect (1.00)" for rank in (12, 13, 14))
    assert turns.bad >= {12, 13, 14}  # all whose row had no weight: a quarantine counts these
    broken = [[*seen[:3], NAN, seen[4]] for seen in steps]
    assert after(broken, weight=krum).report() == "step 40: 4 ok, rank 3 non-finite (1.00)"


def test_the_step_stops_when_more_than_f_ranks_are_bad() -> None:
    with pytest.raises(
        ExchangeError, match=r"3 of 7 .* f = 2: ranks 1 \(far from the others\), 4 \(not finite\), 6 \(missing\)"
    ):
        after([[GOOD, GARBAGE, GOOD, GOOD, NAN, GOOD, MISSING]], f=2)
    with pytest.raises(ExchangeError, match="5 of 5 ranks"):
        after([[NAN] * 5])


def test_far_rows_alone_do_not_stop_a_job() -> None:
    """Two honest ranks with an unusual batch each, in the same step."""
    verdicts = after([[GOOD, FAR, GOOD, FAR, GOOD]] * 2)
    assert verdicts.verdict(1) == verdicts.verdict(3) == "suspect"
    with pytest.raises(ExchangeError, match=r"2 of 5 .* in half of the steps before 20"):
        after([[GOOD, FAR, GOOD, FAR, GOOD]] * 20)


def test_a_step_whose_end_this_rank_missed_counts() -> None:
    verdicts = after([[GOOD] * 5])
    verdicts.take(None, None)
    assert verdicts.report() == "step 2: 5 ok"


def test_prometheus_reads_the_verdicts() -> None:
    verdicts = after([[GOOD, GOOD, GOOD, FAR, GOOD]] * 2)
    server = serve_metrics(verdicts, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/secrets", timeout=10)
    finally:
        server.shutdown()
        server.server_close()
    metrics = parse(text)
    assert metrics["gyroscope_steps_total"].value("gyroscope_steps_total") == 2
    assert metrics["gyroscope_rank_suspicion"].value("gyroscope_rank_suspicion", rank="3") == 1
    assert metrics["gyroscope_rank_state"].value("gyroscope_rank_state", rank="3", state="suspect") == 1
    assert metrics["gyroscope_rank_state"].value("gyroscope_rank_state", rank="2", state="ok") == 1


def test_verdicts_are_written_and_saved(tmp_path: Path) -> None:
    verdicts = after([[GOOD, GOOD, GOOD, FAR, GOOD]] * 2)
    for _ in range(2):
        verdicts.write_csv(tmp_path / "verdicts.csv")
    with (tmp_path / "verdicts.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert rows[3]["verdict"] == "suspect" and rows[3]["rank"] == "3" and float(rows[3]["distance"]) == 50.0
    fresh = RankVerdicts(5, 1)
    fresh.load_state_dict(verdicts.state_dict())
    assert fresh.suspicion == verdicts.suspicion and fresh.steps == 2
