"""One NaN picture in the training set: every path completes, within a point of its clean run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gyroscope as gy
from gyroscope.runs.training import load_task

POINT = 0.01
CONFIG = gy.Config(task="digits", rule="median", declared_byzantine=2, steps=150, evaluate_every=50, threads=1)


def poisoned(task: gy.Task, sample: int = 3) -> gy.Task:
    """The task with one NaN picture among the training set."""
    train = gy.Split.of(task.train)
    inputs = train.inputs.clone()
    inputs[sample] = float("nan")
    return dataclasses.replace(task, train=dataclasses.replace(train, inputs=inputs))


@pytest.mark.parametrize("momentum", ["workers", "server", "server-kept", "none"])
@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "median"},
        {"rule": "krum", "attack": "little", "byzantine": 2},
        {"rule": "krum", "attack": "mimic", "byzantine": 2, "nesterov": True, "clip": float("inf")},
    ],
    ids=["median", "krum, little", "krum, mimic, unclipped"],
)
def test_the_simulation(momentum: str, settings: dict[str, Any]) -> None:
    if momentum == "none":
        settings = {**settings, "nesterov": False}
    config, task = dataclasses.replace(CONFIG, momentum=momentum, **settings), load_task(CONFIG)
    clean, bad = gy.train(config, task=task), gy.train(config, task=poisoned(task))
    # Without momentum at the workers the attack itself moves the accuracy by more than a point from seed to seed.
    within = POINT if momentum in ("workers", "server-kept") or config.attack == "none" else 2 * POINT
    assert bad.status == "complete" and bad.max_accuracy > clean.max_accuracy - within
    assert bad.metrics["loss"].notna().all() and bad.metrics["sent_norm"].notna().all()


def test_batch_norms_running_statistics_stay_finite() -> None:
    targets = torch.arange(2200) % 3
    inputs = torch.randn(2200, 6) + torch.nn.functional.one_hot(targets, 6) * 3.0
    train, test = (inputs[:200], targets[:200]), (inputs[200:], targets[200:])
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    task = gy.Task(model, train, test, loss=torch.nn.functional.cross_entropy)
    config = gy.Config(rule="median", declared_byzantine=2, workers=9, batch=16, steps=60, lr=0.1)
    clean, bad = gy.train(config, task=task), gy.train(config, task=poisoned(task))
    assert all(bool(buffer.isfinite().all()) for buffer in bad.model.buffers())
    assert bad.status == "complete" and bad.max_accuracy > clean.max_accuracy - POINT


@pytest.mark.slow
def test_robust_sgd(ranks: list[dict[str, Tensor]]) -> None:
    for found in ranks:
        assert float(found["clean"]) > 0.8
        assert float(found["poisoned"]) > float(found["clean"]) - POINT


@pytest.mark.slow
def test_a_server_and_its_worker_processes(tmp_path: Path) -> None:
    from clusters import Cluster

    accuracies = []
    for sample in (None, 3):
        folder = tmp_path / str(sample)
        folder.mkdir()
        options = ("--workers", 7, "--rule", "median", "--declared-byzantine", 2, "--steps", 150, "--threads", 1)
        with Cluster(folder, *options, workers=7) as cluster:
            cluster.poisoned = sample
            cluster.serve()
            cluster.join()
            assert cluster.end().code == 0
            not_finite = cluster.events("not finite")
        assert bool(not_finite) == (sample is not None), "else the NaN picture was never drawn"
        assert len(not_finite) < 20, "a NaN picture must cost a round, not all that follow"
        status = json.loads((folder / "run" / "status.json").read_text())
        assert status["status"] == "complete"
        accuracies.append(status["max_accuracy"])
    assert accuracies[1] > accuracies[0] - POINT


def test_the_flower_mod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
    from memory_grid import MemoryGrid, app_nodes, context, run_config

    from gyroscope.integrations.flower import client
    from gyroscope.integrations.flower.server import serve
    from gyroscope.integrations.flower.settings import Settings

    real, accuracies = client.load_task, []
    for sample in (None, 3):
        out = tmp_path / str(sample)
        settings = Settings(rule="median", f=1, nodes=5, rounds=60, local_steps=2, momentum="workers", out=str(out))
        if sample is not None:
            bad = poisoned(real(settings.task, settings.data_dir), sample)
            monkeypatch.setattr(client, "load_task", lambda spec, data_dir, bad=bad: bad)
        config = run_config(settings)
        serve(MemoryGrid(app_nodes(config, settings.nodes)), context(0, **config))
        rejected = (out / "events.csv").read_text().count("rejected")
        assert (rejected > 0) == (sample is not None) and rejected < 20
        accuracies.append(json.loads((out / "status.json").read_text())["max_accuracy"])
    assert accuracies[1] > accuracies[0] - POINT


@pytest.mark.slow
def test_a_flower_federation_and_its_node_processes(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
    pytest.importorskip("ray", reason="FLOWER'S SIMULATION IS NOT TESTED: pip install 'gyroscope[flower]'")
    from deployment import PATIENCE, simulation, table
    from memory_grid import accuracy_in_this_process

    from gyroscope.integrations.flower import new_app
    from gyroscope.integrations.flower.settings import Settings

    settings = Settings(rule="median", f=1, rounds=40, local_steps=5, lr="0.02", momentum="workers", timeout=PATIENCE)
    clean, bad, app = tmp_path / "clean", tmp_path / "bad", new_app.write(tmp_path / "app")
    with open(app / "robust_app" / "client_app.py", "a", encoding="utf-8") as file:
        # The client keeps the task that it has loaded: this changes what the nodes' processes train on.
        file.write('\n\nclient.load_task("digits", "").train.inputs[3] = float("nan")\n')
    (tmp_path / "run.toml").write_text(dataclasses.replace(settings, out=str(bad)).to_toml(), encoding="utf-8")
    with simulation(tmp_path) as processes:
        processes.run(
            "run", "flwr", "run", app, "sim", "--stream", "-c", tmp_path / "run.toml",
            "--federation-config", "num-supernodes=5 init-args-num-cpus=2 client-resources-num-cpus=1",
        )  # fmt: skip
        found = json.loads((bad / "status.json").read_text())
        assert found["status"] == "complete", processes.tail()
    rejected = [row["detail"] for row in table(bad / "events.csv") if row["event"] == "rejected"]
    assert rejected and all("NaN" in reason for reason in rejected), "else the NaN picture was never drawn"
    assert len(rejected) < 20, "a NaN picture must cost a round, not all that follow"
    # Nodes without processes draw the same batches, and the median does not depend on the order of the rows: the
    # accuracies of a clean federation are these, digit by digit.
    accuracy_in_this_process(settings, clean, honest=settings.nodes)
    expected = json.loads((clean / "status.json").read_text())
    for accuracy in ("max_accuracy", "final_accuracy"):
        assert expected[accuracy] > 0.9 and found[accuracy] > expected[accuracy] - POINT
