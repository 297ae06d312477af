"""gy.ddp and RobustOptimizer in real processes, against a single process that has all rows in one matrix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ddp_world
import pytest
import torch
from ddp_world import CASES, FAULTY, N

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return each rank's results, by case. The world runs once."""
    folder = tmp_path_factory.mktemp("ddp-world")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(Path(ddp_world.__file__)), str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert run.returncode == 0, run.stderr
    ranks = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(N)]
    replicas = [torch.load(folder / f"replica-{rank}.pt", weights_only=True) for rank in range(2 * ddp_world.REPLICAS)]
    return [{**one, "replicas": replicas} for one in ranks]


@pytest.mark.parametrize("name", CASES)
def test_every_rank_gets_what_one_process_gets(found: list[dict[str, Any]], name: str) -> None:
    first = found[0][name]["parameters"]
    assert all(torch.equal(one[name]["parameters"], first) for one in found)
    if name != "krum by buckets":  # each bucket selects by itself
        assert torch.allclose(first, ddp_world.alone(CASES[name]), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", ddp_world.WITHOUT_DDP)
def test_any_optimizer_gets_the_same_without_ddp(found: list[dict[str, Any]], name: str) -> None:
    first = found[0]["optimizer"][name]
    assert all(torch.equal(one["optimizer"][name], first) for one in found)
    assert torch.allclose(first, ddp_world.alone(CASES[name]), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", ["median", "krum", "nan"])
@pytest.mark.parametrize("momentum", ["workers", "server"])
def test_local_steps_get_what_one_process_gets(found: list[dict[str, Any]], momentum: str, name: str) -> None:
    first = found[0]["local steps"][f"{momentum}, {name}"]
    assert all(torch.equal(one["local steps"][f"{momentum}, {name}"], first) for one in found)
    assert torch.allclose(first, ddp_world.alone_with_local_steps(momentum, CASES[name]), rtol=1e-3, atol=5e-5)


def test_saved_local_steps_go_on_with_the_same_bits(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert torch.equal(one["local steps resumed"], one["local steps"]["workers, median"])


@pytest.mark.parametrize("name", ddp_world.SHARDED)
def test_a_sharded_model_gets_the_same(found: list[dict[str, Any]], name: str) -> None:
    for one in found:
        assert torch.allclose(one["sharded"][name], ddp_world.alone(CASES[name]), rtol=1e-3, atol=2e-5)


def test_krum_selects_in_each_sharded_unit_by_itself(found: list[dict[str, Any]]) -> None:
    assert all(torch.equal(one["sharded krum"], found[0]["sharded krum"]) for one in found)


def test_a_saved_sharded_job_goes_on_with_the_same_bits(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert torch.equal(one["sharded resumed"], one["sharded"]["median"])


@pytest.mark.parametrize("name", ["median", "nan"])
def test_replicas_that_are_sharded_inside_are_the_workers(found: list[dict[str, Any]], name: str) -> None:
    wanted = ddp_world.alone(ddp_world.IN_REPLICAS[name], ddp_world.REPLICAS)
    for replica in found[0]["replicas"]:
        assert torch.allclose(replica[name], wanted, rtol=1e-3, atol=2e-5)


def test_a_rule_that_reads_distances_works_between_replicas(found: list[dict[str, Any]]) -> None:
    first, *others = (replica["caf"] for replica in found[0]["replicas"])
    assert all(torch.equal(other, first) for other in others)


def test_a_saved_optimizer_goes_on_with_the_same_bits(found: list[dict[str, Any]]) -> None:
    for one in found:
        assert torch.equal(one["optimizer resumed"], one["optimizer"]["caf-history"])


@pytest.mark.parametrize("name", ["median, False", "median, True", "caf-history, False", "caf-history, True"])
def test_a_saved_job_goes_on_with_the_same_bits(found: list[dict[str, Any]], name: str) -> None:
    whole = found[0][name.split(",")[0]]["parameters"]
    for one in found:
        assert torch.equal(one["resumed"][name], whole)


def test_the_report_names_the_faulty_rank(found: list[dict[str, Any]]) -> None:
    assert found[0]["median"]["report"] == "step 5: 5 ok"
    assert f"rank {FAULTY} " in found[0]["garbage"]["report"]
    assert float(found[0]["nan, krum"]["weight"].sum()) == pytest.approx(1.0)


def test_more_than_f_bad_ranks_stop_the_step_and_are_named(found: list[dict[str, Any]]) -> None:
    for rank, one in enumerate(found):
        assert one["too many"].startswith(f"rank {rank}: 2 of 5 ranks sent garbage or nothing")
        assert "1 (not finite), 4 (not finite)" in one["too many"]
        # The aggregate is not finite either, and blames nobody for it.
        assert "3 of 5 ranks" in one["most"] and "ranks 1 (not finite), 2 (not finite), 4 (not finite)." in one["most"]


def test_a_second_momentum_is_named_once(found: list[dict[str, Any]]) -> None:
    for one in found:
        with_momentum, without = one["warned"]
        assert len(with_momentum) == 1
        assert "betas=(0.0, ...)" in with_momentum[0]
        assert without == []


def test_what_cannot_work_is_refused(found: list[dict[str, Any]]) -> None:
    unwrapped, infeasible, stateful, unknown = found[0]["refused"]
    assert "wrap it first" in unwrapped
    assert "Krum needs n >= 2f + 3" in infeasible
    assert "use scope='model'" in stateful
    assert "scope must be 'model' or 'bucket', got 'layer'" in unknown


def test_small_and_large_tables_have_the_same_sum_on_all_ranks(found: list[dict[str, Any]]) -> None:
    first, _ = found[0]["totals"]
    tables = [
        torch.randn(7, 7, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) for rank in range(N)
    ]
    assert torch.allclose(first, torch.stack(tables).sum(dim=0), rtol=1e-12)
    assert all(torch.equal(total, first) for one in found for total in one["totals"])
