"""Lightning, Accelerate and the Trainer of transformers with gy.ddp, in four real processes, of which one sends NaN."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import integration_world
import pytest
import torch
from integration_world import FAULTY, FILES, N
from torch import nn

from gyroscope._core.errors import ConfigError
from gyroscope.integrations.accelerate import robust

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the ranks have written what they found, for all packages that are installed. The world runs once."""
    place = tmp_path_factory.mktemp("integrations")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    packages = [name for name in FILES if importlib.util.find_spec(name)]
    command = [sys.executable, str(Path(integration_world.__file__)), str(place), *packages]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=place)
    assert run.returncode == 0, run.stderr
    return place


def found(folder: Path, package: str, case: str) -> Found:
    """Return what each rank found."""
    if importlib.util.find_spec(package) is None:  # importorskip would take seconds to import it
        pytest.skip(f"{package} IS NOT TESTED: pip install 'gyroscope[lightning,hugging-face]'")
    return [torch.load(folder / package / f"{case}-{rank}.pt", weights_only=True) for rank in range(N)]


@pytest.mark.parametrize("package", FILES)
def test_the_example_learns_although_one_rank_sends_nan(folder: Path, package: str) -> None:
    ranks = found(folder, package, "robust")
    assert all(torch.equal(one["parameters"], ranks[0]["parameters"]) for one in ranks)
    for one in ranks:
        assert f"3 ok, rank {FAULTY} non-finite" in one["report"]
        assert one["steps"] == one.get("taken", one["steps"]) > 0  # the hook has seen every step
        assert one["loss"] < 3.0 if package == "transformers" else one["accuracy"] > 0.8


@pytest.mark.parametrize("package", FILES)
def test_without_gyroscope_the_same_rank_ruins_the_model(folder: Path, package: str) -> None:
    for one in found(folder, package, "plain"):
        assert not one["parameters"].isfinite().all()
        assert math.isnan(one["loss"]) if package == "transformers" else one["accuracy"] < 0.2


@pytest.mark.parametrize("package", FILES)
def test_the_example_is_short(package: str) -> None:
    lines = (integration_world.EXAMPLES / f"{FILES[package]}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 60


@pytest.mark.parametrize(
    ("package", "name"),
    [("lightning", "resumed"), ("accelerate", "resumed"), ("transformers", "again"), ("transformers", "anew")],
)
def test_a_resumed_training_goes_on_with_the_same_bits(folder: Path, package: str, name: str) -> None:
    ranks = found(folder, package, "resumed")
    assert ranks[0]["whole"].isfinite().all()
    for one in ranks:
        assert torch.equal(one[name], ranks[0]["whole"])


def test_a_resumed_training_goes_on_with_its_verdicts(folder: Path) -> None:
    for one in found(folder, "transformers", "resumed"):
        assert one["steps"] == [6, 6]


def test_lightning_says_when_a_checkpoint_has_no_momentum(folder: Path) -> None:
    for one in found(folder, "lightning", "resumed"):
        with_momentum, without = one["warned"]
        assert with_momentum == []
        assert without == ["the checkpoint has the momentum of 0 ranks: all ranks begin without, for some steps"]


@pytest.mark.parametrize(("package", "name"), [("lightning", "refused"), ("accelerate", "infeasible")])
def test_a_rule_that_needs_more_ranks_is_refused(folder: Path, package: str, name: str) -> None:
    for one in found(folder, package, "resumed"):
        assert one[name].startswith("InfeasibleError: Krum needs n >= 2f + 3 = 5")


def test_a_model_that_accelerate_compiles_is_accepted(folder: Path) -> None:
    assert {one["compiled"] for one in found(folder, "accelerate", "resumed")} == {"accepted"}


def test_a_model_that_accelerate_has_not_wrapped_is_refused(folder: Path) -> None:
    for one in found(folder, "accelerate", "resumed"):
        assert "got Linear with distributed_type MULTI_CPU and 4 processes: pass what prepare()" in one["not wrapped"]


def test_a_single_process_is_refused() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate IS NOT TESTED")
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"got Linear with distributed_type NO and 1 process.* 2f \+ 1 processes"):
        robust(accelerator, model, rule="median", f=1)
