"""One world of RobustSGD's ranks for all tests of this folder, and the helpers of its neighbours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

_TESTS = Path(__file__).parents[1]
sys.path += [str(_TESTS / name) for name in ("training", "distributed", "flower")]


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    """What each rank of `rank_world.py` found."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("rank_world.py")
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))]
