"""A server that asks some of its workers in each round: the numbers of the simulation, faults, and who is judged."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from clusters import Cluster, table
from test_server import assert_same_numbers, options

import gyroscope as gy
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.momentum import Participation

CONFIG = gy.Config(workers=6, rule="median", declared_byzantine=1, steps=14, sample=3, threads=1)
ATTACKED = dataclasses.replace(CONFIG, byzantine=1, attack="little")


def all_options(config: gy.Config) -> list[object]:
    return [*options(config), "--sample", config.sample, "--absent", config.absent, "--worker-weights",
            config.worker_weights]  # fmt: skip


def taking_part(config: gy.Config) -> Participation:
    found = config.resolve().participation()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        ATTACKED,
        dataclasses.replace(CONFIG, rule="caf-history", momentum="workers", nesterov=True),
        dataclasses.replace(ATTACKED, absent="left-out", momentum="server"),
        dataclasses.replace(ATTACKED, shards="quantity:alpha=1.0", worker_weights="sizes"),
    ],
    ids=["momentum-little", "nesterov-history", "left-out-little", "weights-little"],
)
def test_the_numbers_are_those_of_the_simulation(config: gy.Config, tmp_path: Path) -> None:
    assert config.workers is not None
    with Cluster(tmp_path, *all_options(config), workers=config.workers - config.byzantine) as cluster:
        cluster.serve("--grace", 60, deadline=30)
        cluster.join()
        finished = cluster.end()
        assert finished.code == 0, finished
        assert [process.end().code for process in cluster.workers.values()] == [0] * cluster.count
        assert_same_numbers(cluster.out, gy.train(config), sampled_known=config.momentum != "workers")


@pytest.mark.slow
def test_an_interrupted_run_continues_exactly(tmp_path: Path) -> None:
    """The server stops while the workers that it has asked wait; one of the others restarts."""
    taking = taking_part(CONFIG)
    asked = taking.asked(6)
    other = next(worker for worker in range(6) if worker not in asked)
    with Cluster(tmp_path, *all_options(CONFIG), workers=6, gates=(6,)) as cluster:
        cluster.serve("--grace", 60, deadline=30)
        cluster.join()
        cluster.at_gate(6, *asked)
        assert not (tmp_path / f"reached-6-{other}").exists(), "it is not asked"
        cluster.server.signal(signal.SIGINT)
        assert cluster.end().code == 130
        cluster.workers[other].kill()
        cluster.open(6)
        cluster.serve("--grace", 60, resume=True, deadline=30)
        cluster.join(other)
        assert cluster.end().code == 0
        assert_same_numbers(cluster.out, gy.train(CONFIG), sampled_known=False)


@pytest.mark.slow
def test_a_row_of_nan_and_a_worker_that_dies_cost_those_rounds_that_ask_for_them(tmp_path: Path) -> None:
    """f = 2: one worker sends NaN once, another is gone after the first round, and no round waits for its deadline."""
    config = dataclasses.replace(CONFIG, declared_byzantine=2, workers=7, sample=4, steps=20)
    taking = taking_part(config)
    gone = 5
    bad, step = next((w, s) for s in range(3, 9) for w in taking.asked(s) if w != gone and w not in taking.asked(s + 1))
    with Cluster(tmp_path, *all_options(config), workers=7, gates=(1,)) as cluster:
        cluster.faults = {bad: {step: "nan"}}
        cluster.serve("--grace", 60, deadline=30)
        cluster.join()
        cluster.at_gate(1, *(worker for worker in taking.asked(1) if worker != gone))
        cluster.workers[gone].kill()
        cluster.until_event("lost", gone)
        cluster.open(1)
        assert cluster.end().code == 0
        assert [row["step"] for row in cluster.events("not finite", bad)] == [str(step)]
        assert not cluster.events("late")
        evaluations = table(cluster.out / "evaluations.csv")
        assert float(evaluations[-1]["accuracy"]) > 0.5


def test_nothing_is_concluded_of_a_worker_that_is_not_asked() -> None:
    verdicts = RankVerdicts(4, 1)
    for _ in range(30):
        verdicts.note([Seen(True, 1.0), Seen(True, 1.0), Seen(True, 1.0), Seen(False, 0.0, asked=False)], None)
    assert verdicts.suspicion[3] == 0 and not verdicts.bad
    verdicts.note([Seen(True, 1.0), Seen(True, 1.0), Seen(True, 1.0), Seen(False, 0.0)], None)
    assert verdicts.bad == {3}
