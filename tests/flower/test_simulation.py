"""The generated app in Flower's own simulation, with a node that lies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
pytest.importorskip("ray", reason="FLOWER'S SIMULATION IS NOT TESTED: pip install 'gyroscope[flower]'")

from deployment import make_app, reasons, simulation, table
from flwr.app import Message
from memory_grid import MemoryGrid, Node, context

from gyroscope.flower.server import serve
from gyroscope.flower.settings import Settings
from gyroscope.flower.template.client_app import app as honest_app

ROUNDS, STEPS = 4, 100
EXPECTED = ["NaN", "shape", "shape", "no .npy"]
FEDERATION = "num-supernodes=5 init-args-num-cpus=2 client-resources-num-cpus=1"


def accuracy_without_a_liar(out: Path) -> float:
    """The same app with the same batches, its nodes in this process."""
    settings = dataclasses.asdict(Settings(rounds=ROUNDS, local_steps=STEPS, out=str(out)))
    run_config: dict[str, Any] = {key.replace("_", "-"): value for key, value in settings.items()}

    def node(number: int) -> Node:
        here = context(number, **run_config)

        def reply(message: Message) -> Message:
            return honest_app(message, here)

        return reply

    serve(MemoryGrid({number + 1: node(number) for number in range(5)}), context(0, **run_config))
    return float(json.loads((out / "status.json").read_text())["final_accuracy"])


@pytest.mark.slow
def test_one_liar_among_five_costs_next_to_nothing(tmp_path: Path) -> None:
    honest = accuracy_without_a_liar(tmp_path / "honest")
    assert honest > 0.9
    out = tmp_path / "runs" / "attacked"
    with simulation(tmp_path) as processes:
        processes.run(
            "run", "flwr", "run", make_app(tmp_path / "app", liars=(2,)), "sim", "--stream",
            "--federation-config", FEDERATION, "-c", f'rounds={ROUNDS} local-steps={STEPS} out="{out}"', seconds=240,
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
