"""gy.ddp when ranks are killed, stopped and started again, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import elastic_world
import pytest
import torch
import torch.distributed as dist
from elastic_world import LOST, STEPS, N

pytestmark = pytest.mark.slow


def start(store: dist.TCPStore, rank: int, fault: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, elastic_world.__file__, str(store.port), str(rank), fault, str(folder)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def results(ranks: dict[int, subprocess.Popen[str]], folder: Path) -> dict[int, dict[str, Any]]:
    """Wait for the ranks, and return what they found."""
    found = {}
    for rank, process in ranks.items():
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        found[rank] = {**torch.load(folder / f"{rank}.pt", weights_only=True), "said": said}
    return found


@pytest.mark.parametrize("fault", ["kill", "stop"])
def test_the_others_go_on_without_a_lost_rank(tmp_path: Path, fault: str) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = {rank: start(store, rank, fault, tmp_path) for rank in range(N)}
    lost = ranks.pop(LOST)
    found = results(ranks, tmp_path)
    lost.send_signal(signal.SIGCONT)
    _, said = lost.communicate(timeout=60)
    assert lost.returncode != 0
    if fault == "stop":  # it wakes up, and finds that the others have gone on
        assert "have gone on without it (ranks 0, 1, 2, 4)" in said
    first = found[0]
    assert all(torch.equal(one["parameters"], first["parameters"]) for one in found.values())
    assert first["steps"] == STEPS
    assert f"4 ok, rank {LOST} missing" in first["report"]
    assert ["lost, silent for" in one["said"] for one in found.values()] == [True, False, False, False]
    assert f" s: ranks {LOST}\n" in first["said"]


@pytest.mark.parametrize("rule", ["caf-history", "krum", "median"])
def test_a_rank_that_is_started_again_joins_the_others(tmp_path: Path, rule: str) -> None:
    """Also if its first attempt dies at the moment when the others let it in."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    ranks = {rank: start(store, rank, f"wait {rule}", tmp_path) for rank in range(N)}
    ranks[LOST].wait(60)
    time.sleep(1)
    if rule == "krum":
        start(store, LOST, f"die {rule}", tmp_path).wait(60)
    ranks[LOST] = start(store, LOST, f"back {rule}", tmp_path)
    found = results(ranks, tmp_path)
    assert found[LOST]["began"] > elastic_world.AT
    assert len({one["steps"] for one in found.values()}) == 1
    first = found[0]["parameters"]
    assert all(torch.equal(one["parameters"], first) for one in found.values())
    assert "missing" not in found[0]["report"]
    assert f"back: ranks {LOST}\n" in found[0]["said"]
    assert f"rank {LOST} was started before with this store" in found[LOST]["said"]


@pytest.mark.parametrize("rule", ["median", "krum", "caf-history"])
def test_a_rank_that_lost_the_end_of_a_step_gets_it_from_another(tmp_path: Path, rule: str) -> None:
    found = {}
    for fault in ("none", "lose"):
        store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        ranks = {rank: start(store, rank, f"{fault} {rule}", tmp_path) for rank in range(N)}
        found[fault] = results(ranks, tmp_path)
    undisturbed = found["none"][0]
    for one in found["lose"].values():
        assert torch.equal(one["parameters"], undisturbed["parameters"])
        assert one["report"] == undisturbed["report"] and one["steps"] == STEPS
