"""The command that reproduces the paper, on pictures of noise in MNIST's format: interrupted, and gone on with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from interrupting import heed_interrupts

import gyroscope as gy
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def pictures(folder: Path) -> Path:
    """200 pictures and 50 to test with."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    for name, count in zip(NAMES, (200, 200, 50, 50), strict=True):
        shape = (count, 28, 28) if "images" in name else (count,)
        values = rng.integers(0, 256 if "images" in name else 10, shape, dtype=np.uint8)
        header = bytes([0, 0, 8, len(shape)]) + np.array(shape, dtype=">u4").tobytes()
        (folder / name).write_bytes(header + values.tobytes())
    return folder


def test_interrupted_and_started_again_it_redoes_nothing_and_ends_with_figures_and_claims(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "gyroscope", "reproduce", "mnist", "--steps", "40", "--seeds", "1,2", "--jobs", "1",
        "--only", "mnist-little-krum-f_12-lr_0.5-*", "--data-dir", str(pictures(tmp_path / "data")), "--out", str(out),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heed_interrupts
    )
    deadline = time.monotonic() + 120
    while not list(out.glob(f"*/{run_dir.MODEL}")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    said = b"".join(process.communicate(timeout=120))
    assert process.returncode == 130 and b"goes on where it stopped" in said and b"Traceback" not in said
    before = {path: path.stat().st_mtime_ns for path in out.glob(f"*/{run_dir.MODEL}")}
    assert 0 < len(before) < 4, "the blow came too late to mean anything"

    again = subprocess.run(command, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "4 of 4 runs are complete" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing complete was redone
    assert "of the paper's 47 claims" in again.stdout
    assert (out / "report" / "index.html").is_file()
    assert (out / "report" / "figures" / "mnist-little-f_12-lr_0.5-at_worker.pdf").is_file()

    run = out / "mnist-little-krum-f_12-lr_0.5-at_worker-seed_2"
    alone = gy.train(Config.load(run / run_dir.CONFIG), out=tmp_path / "alone")
    assert alone.config.steps == 40 and alone.config.momentum == "workers" and alone.config.seed == 2
    for table in (run_dir.METRICS, run_dir.EVALUATIONS, run_dir.WEIGHTS):
        assert (run / table).read_bytes() == (tmp_path / "alone" / table).read_bytes()
