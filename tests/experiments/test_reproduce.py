"""The command that reproduces the paper, on pictures of noise in MNIST's format: interrupted, and gone on with."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from interrupting import heed_interrupts

import gyroscope as gy
from gyroscope.cli import main
from gyroscope.runs import run_dir
from gyroscope.runs.config import Config
from gyroscope.simulation.data.catalogue import CATALOGUE

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


@pytest.mark.slow
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
    assert "little" in again.stderr and subprocess.run([*command, "--quiet"], capture_output=True).stderr == b""
    assert "of the paper's 50 claims" in again.stdout
    assert (out / "report" / "index.html").is_file()
    assert (out / "report" / "figures" / "mnist-little-f_12-lr_0.5-at_worker.pdf").is_file()

    run = out / "mnist-little-krum-f_12-lr_0.5-at_worker-seed_2"
    alone = gy.train(Config.load(run / run_dir.CONFIG), out=tmp_path / "alone")
    assert alone.config.steps == 40 and alone.config.momentum == "workers" and alone.config.seed == 2
    for table in (run_dir.METRICS, run_dir.EVALUATIONS, run_dir.WEIGHTS):
        assert (run / table).read_bytes() == (tmp_path / "alone" / table).read_bytes()


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, no folder of data, and no source that can be reached."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name in ("GYROSCOPE_DATA", "GYROSCOPE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, entry in CATALOGUE.items():
        unreachable = dataclasses.replace(entry, mirrors=("http://127.0.0.1:9/",), npm_package=None, system_folder=None)
        monkeypatch.setitem(CATALOGUE, name, unreachable)
    return tmp_path


@pytest.mark.usefixtures("nowhere")
def test_a_dry_run_without_data_lists_the_plan_and_says_in_one_line_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "all", "--only", "krum-f_12", "--only", "krum-f_5", "--seeds", "1", "--dry-run"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    *planned, left, missing = capsys.readouterr().out.splitlines()
    assert len(planned) == 16 and all(line.startswith("run ") for line in planned)
    assert left == "0 of 16 runs are complete, 16 are left"
    assert missing == (
        "no estimate for missing data sets: MNIST (8 runs; http://127.0.0.1:9/), CIFAR-10 (8 runs; "
        "http://127.0.0.1:9/); download them into a folder and name it with --data-dir or GYROSCOPE_DATA"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("nowhere")
def test_a_dry_run_estimates_the_runs_whose_data_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text('[grid]\ntask = ["digits", "fashion-mnist", "mnist-relu", "mnist"]\n')
    assert main(["sweep", str(tmp_path / "grid.toml"), "--dry-run", "--quiet"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Fashion-MNIST (1 run; http" in said and "MNIST (2 runs; http" in said
    assert "MB of disk for the others; from 3 rounds of each of 1 kinds of run" in said


@pytest.mark.usefixtures("nowhere")
def test_a_folder_of_data_that_does_not_exist_is_an_error_in_a_dry_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--seeds", "1", "--dry-run", "--data-dir", str(tmp_path / "absent")]) == 2
    assert "does not exist" in capsys.readouterr().err
