"""The generated app in Flower's own simulation, with a Byzantine node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
pytest.importorskip("ray", reason="FLOWER'S SIMULATION IS NOT TESTED: pip install 'gyroscope[flower]'")

from deployment import PATIENCE, make_app, reasons, simulation, table
from memory_grid import accuracy_in_this_process

from gyroscope.integrations.flower.settings import Settings

ROUNDS, STEPS = 4, 100
EXPECTED = ["NaN", "shape", "shape", "no .npy"]
FEDERATION = "num-supernodes=5 init-args-num-cpus=2 client-resources-num-cpus=1"


@pytest.mark.slow
def test_one_byzantine_node_among_five_costs_next_to_nothing(tmp_path: Path) -> None:
    honest = accuracy_in_this_process(Settings(rounds=ROUNDS, local_steps=STEPS), tmp_path / "honest", honest=5)
    assert honest > 0.9
    out = tmp_path / "runs" / "attacked"
    with simulation(tmp_path) as processes:
        processes.run(
            "run", "flwr", "run", make_app(tmp_path / "app", byzantine=(2,)), "sim", "--stream",
            "--federation-config", FEDERATION,
            "-c", f'rounds={ROUNDS} local-steps={STEPS} timeout={PATIENCE} out="{out}"',
        )  # fmt: skip
        status = json.loads((out / "status.json").read_text())
        assert status["status"] == "complete", processes.tail()
    for number, reason in enumerate(EXPECTED, start=1):
        (given,) = reasons(out, number)
        assert reason in given
    assert status["final_accuracy"] > honest - 0.04
    assert [int(row["step"]) for row in table(out / "evaluations.csv")] == list(range(ROUNDS + 1))
    shares = table(out / "workers.csv")
    assert len(shares) == ROUNDS and len(shares[0]) == 6
    assert (out / "model.pt").is_file() and (out / "flower.toml").is_file()
