"""RobustSGD in real processes, against a single process that has all rows in one matrix."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import robust_world
import torch
from robust_world import CASES, FAULTY, STEPS, Case, fresh, give, gradient, values_of
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope.distributed import RobustSGD
from gyroscope.rules import RuleContext, RuleState

N = robust_world.N
ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "distributed.md"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the world's results. It runs once, also when several processes share the tests."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "robust-world"
    verdict = place / "verdict.txt"
    try:
        place.mkdir()
    except FileExistsError:
        end = time.monotonic() + 200
        while not verdict.exists():
            assert time.monotonic() < end, "the process that runs the world hangs"
            time.sleep(0.1)
    else:
        command = [sys.executable, robust_world.__file__, str(place)]
        try:
            run = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=180)
            text = f"exit code {run.returncode}\n{run.stderr}"
        except subprocess.TimeoutExpired:
            text = "the world hangs"
        (place / "verdict").write_text(text)
        (place / "verdict").rename(verdict)
    assert verdict.read_text().startswith("exit code 0\n"), verdict.read_text()
    return place


@pytest.fixture(scope="session")
def found(folder: Path) -> list[dict[str, Any]]:
    """Return each rank's results, by scenario."""
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(N)]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}


def bits(values: Tensor) -> bytes:
    """NaN equals itself, and 0 does not equal -0."""
    return values.contiguous().numpy().tobytes()


def same_everywhere(found: list[dict[str, Any]], name: str) -> Tensor:
    """The parameters after each step, after a check that all ranks have the same."""
    traces = [one[name]["trace"] for one in found]
    assert len({bits(trace) for trace in traces}) == 1
    return traces[0]


# -- against the oracle -----------------------------------------------------------------------------------------------


def oracle(case: Case) -> Tensor:
    """The parameters after each step, by one process that holds all rows in one matrix."""
    settings = {"lr": 0.1, "weight_decay": 0.0, "clip": None, "mu": 0.9, "nesterov": False, "momentum": "workers"}
    settings.update(case.settings)
    mu, placement = settings["mu"] if settings["momentum"] != "none" else 0.0, settings["momentum"]
    parameters = values_of(fresh(case.shapes, 0))
    momenta, server = [torch.zeros_like(parameters)] * N, torch.zeros_like(parameters)
    trace = [parameters]
    remembered: RuleState = {}
    for step in range(STEPS):
        rows = []
        for rank in range(N):
            row = gradient(rank, step, len(parameters), case.bad)
            if settings["weight_decay"] != 0:  # 0 * NaN is NaN
                row = row + settings["weight_decay"] * parameters
            if settings["clip"] is not None and not row.norm() <= settings["clip"]:
                row = row * (settings["clip"] / row.norm())
            if placement == "workers":
                new = mu * momenta[rank] + row
                row = row + mu * new if settings["nesterov"] else new
                momenta[rank] = new if new.isfinite().all() else momenta[rank]
            rows.append(row)
        context = RuleContext(step, settings.get("seed", 0), remembered)
        (direction, _), remembered = case.rule.step(torch.stack(rows), case.f, context)
        if placement == "server":
            server = mu * server + direction
            direction = direction + mu * server if settings["nesterov"] else server
        parameters = parameters - settings["lr"] * direction
        trace.append(parameters)
    return torch.stack(trace)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_do_what_one_process_would_and_stay_equal(found: list[dict[str, Any]], name: str) -> None:
    case, trace = CASES[name], same_everywhere(found, name)
    expected = oracle(case)
    assert case.bad is None or not case.rule.resilient or trace.isfinite().all()
    if case.rule.name == "median":
        assert bits(trace) == bits(expected)
    torch.testing.assert_close(trace, expected, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("plain SGD")])
def test_the_average_is_plain_sgd_on_the_mean_gradient(found: list[dict[str, Any]], name: str) -> None:
    case, trace = CASES[name], same_everywhere(found, name)
    parameters = fresh(case.shapes, 0)
    settings = dict(case.settings)
    mu = 0.0 if settings.pop("momentum", "workers") == "none" else settings.pop("mu", 0.9)
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=mu, **settings)
    for step in range(STEPS):
        give(parameters, torch.stack([gradient(rank, step, 22) for rank in range(N)]).mean(dim=0))
        optimizer.step()
        torch.testing.assert_close(trace[step + 1], values_of(parameters), rtol=1e-6, atol=1e-6)


def test_every_step_moves(found: list[dict[str, Any]]) -> None:
    for name in CASES:
        trace = same_everywhere(found, name)
        assert not any(bits(a) == bits(b) for a, b in itertools.pairwise(trace)), name


def test_a_random_rule_does_not_part_the_ranks(found: list[dict[str, Any]]) -> None:
    same_everywhere(found, "random_rule")


def test_shares_show_the_suspect(found: list[dict[str, Any]]) -> None:
    for name in ("krum, NaN", "krum, inf", "krum, 3e38", "bulyan, NaN"):
        weights = [one[name]["weight"] for one in found]
        assert all(torch.equal(weight, weights[0]) for weight in weights)
        assert weights[0][FAULTY] == 0 and weights[0].sum().item() == pytest.approx(1)
    assert found[0]["median"]["weight"] is None


# -- as an optimizer --------------------------------------------------------------------------------------------------


def test_groups_scheduler_missing_gradients_new_groups_and_frozen_parameters(found: list[dict[str, Any]]) -> None:
    trace = same_everywhere(found, "groups_scheduler_and_frozen")
    weight, bias, late, frozen = slice(0, 6), slice(6, 8), slice(8, 12), slice(12, 17)
    parameters = values_of(fresh(((3, 2), (2,), (4,), (5,)), 0))
    momentum = torch.zeros(N, 17)
    for step in range(6):
        active, lr, decay = torch.zeros(17, dtype=torch.bool), torch.zeros(17), torch.zeros(17)
        active[weight] = active[bias] = True
        active[late] = step >= 2
        active[frozen] = step >= 4
        factor = 0.5 ** (step // 2)
        lr[weight] = lr[frozen] = 0.5 * factor
        lr[bias] = 0.125 * factor
        lr[late] = 2 * factor  # the group came when the scheduler had halved the others' already
        decay[bias] = 0.25
        rows = torch.stack([gradient(rank, step, 17) for rank in range(N)])
        rows[:3, bias] = 0
        momentum = torch.where(active, 0.5 * momentum + rows + decay * parameters, momentum)
        parameters = torch.where(active, parameters - lr * momentum.sort(dim=0).values[3], parameters)
        expected = parameters.clone()
        if step < 2:
            expected[late] = 0  # not yet the optimizer's: they differ from rank to rank, and the trace leaves them out
        torch.testing.assert_close(trace[step], expected, rtol=1e-6, atol=1e-6)


def test_a_resumed_run_has_the_same_bits(found: list[dict[str, Any]]) -> None:
    for rank in range(N):
        assert len(found[rank]["resume"]) == 7
        for name, one in found[rank]["resume"].items():
            assert bits(one["straight"]) == bits(one["resumed"]), (rank, name)
            assert one["saved untouched"] and one["saved"] == (0 if name.startswith("none") else 3), (rank, name)
    for name in found[0]["resume"]:
        assert len({bits(one["resume"][name]["resumed"]) for one in found}) == 1


def test_a_rank_recovers_from_a_bad_batch(found: list[dict[str, Any]]) -> None:
    momenta, weights = found[FAULTY]["recovery"]["momenta"], found[FAULTY]["recovery"]["weights"]
    begin = gradient(FAULTY, 0, 3)
    then = 0.5 * begin + gradient(FAULTY, 3, 3)
    last = 0.5 * then + gradient(FAULTY, 4, 3)
    torch.testing.assert_close(momenta, torch.stack([begin, begin, begin, then, last]))
    assert weights[1][FAULTY] == weights[2][FAULTY] == 0


def test_parameters_and_gradients_may_have_any_memory_layout(found: list[dict[str, Any]]) -> None:
    (values,) = same_everywhere(found, "transposed")
    begin = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).t()
    mean = torch.stack([gradient(rank, 0, 12) for rank in range(N)]).mean(dim=0)
    torch.testing.assert_close(values[:12], begin.reshape(-1) - 0.5 * mean)
    torch.testing.assert_close(values[12:].view(5, 2)[:, 0], torch.tensor([0.0, -1.0, 0.0, 0.0, -0.5]))


def test_a_closure_is_evaluated_with_gradients(found: list[dict[str, Any]]) -> None:
    one = found[1]["closure"]
    assert one["loss"] == pytest.approx(one["before"].square().sum().item() / 2)
    torch.testing.assert_close(one["after"], 0.9 * one["before"])


# -- mistakes ---------------------------------------------------------------------------------------------------------

MESSAGES = {
    "infeasible": "InfeasibleError: Krum needs n >= 2f .* 3 = 9 workers for f = 3, got n = 7: lower f to 2",
    "numbers": "different models: rank 0 has 2 tensors with 3 parameters, rank 3 has 3 with 5. Build the same model",
    "shapes": "different models: rank 0 has 2 tensors with 12 .* rank 4 has 2 with 12, of other shapes",
    "settings": "ranks 0 and 2 have different settings; this rank has krum f=",
    "lr": "lr must be a number of at least 0, got -0.1",
    "clip": "clip must be above 0",
    "decay": "weight_decay must be a number of at least 0, got -1",
    "momentum": "UnknownNameError: unknown momentum placement 'servers': did you mean 'server'",
    "types": "one floating-point type and one device, got torch.float32 on cpu, torch.float64 on cpu",
    "all frozen": "no parameters to train",
    "trusted": "the rule nnm.fltrust needs a gradient at samples that the server itself holds, and RobustSGD has no",
    "other rank's state": r"rank \d cannot continue from the state of rank \d: each rank has its own momentum",
    "other momentum's state": r"holds \['server'\], but momentum at 'workers' needs \['workers'\]",
    "other model's state": r"has the shape \(2,\), its parameter \(1,\)",
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_mistake_is_an_error_on_every_rank(found: list[dict[str, Any]], name: str) -> None:
    for one in found:
        assert re.search(MESSAGES[name], one["mistakes"][name]), one["mistakes"][name]


def test_a_rank_outside_the_group_gets_an_error(found: list[dict[str, Any]]) -> None:
    errors = [one["mistakes"]["not a member"] for one in found]
    assert all("not in the process group" in text for text in errors[3:]) and errors[:3] == ["nothing"] * 3


def test_torch_distributed_must_be_initialised() -> None:
    with pytest.raises(ConfigError, match=r"not initialised: call torch.distributed.init_process_group\('gloo'\)"):
        RobustSGD(fresh(((2,),), 0), lr=0.1, rule="median", f=0)


@pytest.mark.parametrize("word", ["SIGSTOP", "SIGKILL"])
def test_a_rank_that_hangs_or_dies_is_an_error_on_all_others(folder: Path, word: str) -> None:
    """Within the process group's timeout: a rank that waited forever would have written nothing."""
    files = [folder / f"{word}-{rank}.txt" for rank in range(3)]
    assert not files[robust_world.LOST].exists()
    for rank in (0, 2):
        text = files[rank].read_text()
        assert text.startswith(f"at step 3: rank {rank} of 3 cannot exchange with the others: a rank has ended, hangs")
        assert "start all ranks again from what they saved" in text and "timeout=..." in text


# -- what it is for ---------------------------------------------------------------------------------------------------


def test_krum_learns_where_the_average_does_not(found: list[dict[str, Any]]) -> None:
    members = [one["digits"] for one in found[2:]]
    for rule in ("krum", "average"):
        assert len({bits(one[rule]["values"]) for one in members}) == 1
    assert members[0]["krum"]["accuracy"] > 0.8
    assert not members[0]["average"]["accuracy"] > 0.5
    assert members[0]["krum"]["weight"][FAULTY - 2] == 0


def test_the_example_learns(folder: Path) -> None:
    (accuracy,) = re.findall(r"accuracy ([\d.]+) %", (folder / "example-0.txt").read_text())
    assert float(accuracy) > 80
    assert all((folder / f"example-{rank}.txt").read_text() == "" for rank in (1, 2, 3))


def test_the_document_shows_the_example() -> None:
    (difference,) = re.findall(r"```diff\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    lines = difference.splitlines()
    assert {line[:1] for line in lines} <= {"", " ", "+", "-"}
    after = [line[1:] for line in lines if not line.startswith("-")]
    assert after == robust_world.EXAMPLE.read_text(encoding="utf-8").splitlines()
    compile("\n".join(line[1:] for line in lines if not line.startswith("+")), "before", "exec")


def test_the_package_does_not_import_it() -> None:
    code = "import gyroscope, sys; sys.exit('gyroscope.distributed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=_environment()).returncode == 0
