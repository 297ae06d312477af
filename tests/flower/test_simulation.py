"""The generated app in Flower's own simulation, with and without a node that lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
pytest.importorskip("ray", reason="FLOWER'S SIMULATION IS NOT TESTED: pip install 'gyroscope[flower]'")

from deployment import make_app, reasons, simulation, table

ROUNDS = 8
FEDERATION = "num-supernodes=5 init-args-num-cpus=2 client-resources-num-cpus=1"


@pytest.mark.slow
def test_one_liar_among_five_costs_next_to_nothing(tmp_path: Path) -> None:
    accuracy = {}
    with simulation(tmp_path) as processes:
        for name, liar in (("honest", None), ("attacked", 2)):
            app = make_app(tmp_path / name, liar)
            out = tmp_path / "runs" / name
            processes.run(
                f"run-{name}", "flwr", "run", app, "sim", "--stream", "--federation-config", FEDERATION,
                "-c", f'rounds={ROUNDS} out="{out}"', seconds=240,
            )  # fmt: skip
            status = json.loads((out / "status.json").read_text())
            assert status["status"] == "complete", processes.tail()
            assert [int(row["step"]) for row in table(out / "evaluations.csv")] == list(range(ROUNDS + 1))
            accuracy[name] = status["final_accuracy"]
    honest, attacked = tmp_path / "runs" / "honest", tmp_path / "runs" / "attacked"
    assert not [row for row in table(honest / "events.csv") if row["event"] != "joined"]
    expected = ["NaN", "shape", "shape", "no .npy"]
    for number, reason in enumerate(expected, start=1):
        (given,) = reasons(attacked, number)
        assert reason in given
    assert accuracy["honest"] > 0.9
    assert accuracy["attacked"] > accuracy["honest"] - 0.04
    assert (attacked / "model.pt").is_file() and (attacked / "flower.toml").is_file()
    shares = table(attacked / "workers.csv")
    assert len(shares) == ROUNDS and len(shares[0]) == 6
