"""examples/ddp.py, as its docstring says: five ranks, of which one sends NaN or garbage, is killed, or is stopped."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ddp.py"
N, FAULTY = 5, 3
STEPS = 150
"""Half of what the example does, for the test's sake."""
ALLOWED = 0.05
"""How much test loss a fault may cost, as docs/ddp.md says."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*options: str) -> dict[int, tuple[float | None, str]]:
    """Run the example; return each rank's test loss, None where it failed, and what it printed."""
    common = {"WORLD_SIZE": str(N), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(EXAMPLE), "--steps", str(STEPS), *options],
            env={**os.environ, **common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(N)
    ]
    deadline = time.monotonic() + 180
    others = [process for rank, process in enumerate(ranks) if rank != FAULTY]
    while any(process.poll() is None for process in others) and time.monotonic() < deadline:
        time.sleep(0.1)
    found: dict[int, tuple[float | None, str]] = {}
    for rank, process in enumerate(ranks):
        if process.poll() is None:
            time.sleep(0 if "stop" in options else 5)  # the last to end may be a moment later than the others
            process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=30)
        loss = re.search(r"test loss (\S+)", said)
        found[rank] = (float(loss[1]) if loss else None, said)
    return found


@pytest.fixture(scope="module")
def clean() -> float:
    """Return the test loss of a run without a fault, the same on all ranks."""
    losses = {loss for loss, _ in run().values()}
    assert len(losses) == 1
    (loss,) = losses
    assert loss is not None
    return loss


@pytest.mark.parametrize("fault", ["nan", "garbage", "kill", "stop"])
def test_a_fault_costs_almost_nothing(fault: str, clean: float) -> None:
    found = run("--fault", fault)
    losses = {loss for rank, (loss, _) in found.items() if rank != FAULTY}
    assert len(losses) == 1, found
    (loss,) = losses
    assert loss is not None, found
    assert abs(loss - clean) <= ALLOWED
    state = "missing" if fault in ("kill", "stop") else "non-finite" if fault == "nan" else "suspect"
    assert f"rank {FAULTY} {state}" in found[0][1]
    if fault in ("kill", "stop"):
        assert found[FAULTY][0] is None


@pytest.mark.parametrize("fault", ["nan", "garbage", "kill", "stop"])
def test_plain_ddp_does_not_survive_it(fault: str, clean: float) -> None:
    found = run("--fault", fault, "--plain")
    losses = [loss for loss, _ in found.values()]
    if fault in ("kill", "stop"):
        assert losses == [None] * N
    else:
        assert all(loss is None or math.isnan(loss) or loss > clean + ALLOWED for loss in losses)
