"""The run directory: what is in it, that it re-runs, what it refuses, and a disk that is really full."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import disks
import numpy
import pandas
import pytest
import torch
from launching import gyroscope, lines, start

import gyroscope as gy
from gyroscope.runs import loop
from gyroscope.simulation import metrics as measures

TABLES = ("metrics.csv", "evaluations.csv", "workers.csv")
BASE = ("--rule", "krum", "--attack", "little", "--byzantine", 2, "--workers", 9, "--steps", 20, "--threads", 1)


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir()) if path.is_file()}


def run(out: Path, *more: object) -> Path:
    finished = gyroscope("train", *BASE, *more, "--out", out, "--quiet")
    assert finished.code == 0, finished.err
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("record") / "run")


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_every_promised_file_is_there_and_pandas_reads_the_tables(made: Path) -> None:
    names = {path.name for path in made.iterdir() if not path.name.startswith(".")}
    assert names == {*TABLES, "config.toml", "environment.json", "status.json", "model.pt"}
    metrics = pandas.read_csv(made / "metrics.csv")
    assert tuple(metrics.columns) == measures.COLUMNS
    assert list(metrics["step"]) == list(range(20))
    assert metrics["condition_holds"].dtype == bool
    assert metrics["at_workers"].isna().all(), "momentum at the workers does not switch"
    missing = ["at_workers", *(name for name in metrics if name.endswith("_previous"))]
    assert metrics.drop(columns=missing).notna().all(axis=None)
    evaluations = pandas.read_csv(made / "evaluations.csv")
    assert tuple(evaluations.columns) == ("step", "accuracy", "correct", "samples", "test_loss", "predicted_classes")
    assert list(evaluations["step"]) == [0, 5, 10, 15, 20]
    assert (evaluations["samples"] == 359).all()
    assert numpy.allclose(evaluations["accuracy"], evaluations["correct"] / 359)
    weights = pandas.read_csv(made / "workers.csv")
    assert list(weights.columns) == ["step", *(f"worker_{worker}" for worker in range(9))]
    assert numpy.allclose(weights.drop(columns="step").sum(axis=1), 1)
    shares = weights[["worker_7", "worker_8"]].sum(axis=1)
    assert numpy.allclose(shares, metrics["byzantine_share"]), "Byzantine workers come last"
    assert list(pandas.read_json(made / "environment.json")["threads"]) == [1]
    assert json.loads((made / "status.json").read_text()) == {
        "status": "complete",
        "step": 20,
        "max_accuracy": evaluations["accuracy"].max(),
        "final_accuracy": evaluations["accuracy"].iloc[-1],
    }
    environment = json.loads((made / "environment.json").read_text())
    assert environment[0]["torch"] == torch.__version__
    assert {"commit", "threads", "python", "gyroscope", "numpy"} <= set(environment[0])
    assert environment[0]["processor_seconds"] > 0 and environment[0]["seconds"] > 0


def test_the_configuration_on_record_is_complete_and_reruns_to_the_same_bytes(made: Path, tmp_path: Path) -> None:
    config = gy.Config.load(made / "config.toml")
    unset = {name for name, value in vars(config).items() if value is None}
    without_meaning = {"server_quorum", "declared_byzantine_servers", "worker_quorum"}  # there is one server
    assert unset <= {"checkpoint_every", "data_dir", "sample"} | without_meaning, (  # no sample: everybody is asked
        "everything that changes numbers is written down"
    )
    again = tmp_path / "again"
    assert gyroscope("train", "--config", made / "config.toml", "--out", again, "--quiet").code == 0
    for name in ("config.toml", *TABLES, "model.pt", "status.json"):
        assert (again / name).read_bytes() == (made / name).read_bytes(), name


def test_python_and_the_command_line_give_the_same_numbers_and_floats_read_back_exactly(made: Path) -> None:
    config = gy.Config(rule="krum", attack="little", byzantine=2, workers=9, steps=20, threads=1)
    result = gy.train(config)
    for table, frame in zip(TABLES, (result.metrics, result.evaluations, result.weights), strict=True):
        with open(made / table, newline="") as file:
            cells = list(csv.DictReader(file))
        assert list(frame.columns) == list(cells[0]) and len(frame) == len(cells)
        for row, values in zip(cells, frame.to_dict("records"), strict=True):
            for name, value in values.items():
                if isinstance(value, bool):
                    assert row[name] == str(value)
                elif pandas.isna(value):
                    assert row[name] == ""
                else:
                    assert float(row[name]) == value, (table, name)
        read, frame = (each.dropna(axis="columns", how="all") for each in (pandas.read_csv(made / table), frame))
        pandas.testing.assert_frame_equal(read, frame, check_dtype=False, rtol=1e-14)


def test_options_and_configuration_file_mean_the_same(made: Path, tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text(
        'task = "digits"\nrule = "krum"\nattack = "little"\nbyzantine = 2\nworkers = 9\nsteps = 20\nthreads = 1\n'
    )
    out = tmp_path / "run"
    assert gyroscope("train", "--config", toml, "--out", out, "--quiet").code == 0
    assert (out / "metrics.csv").read_bytes() == (made / "metrics.csv").read_bytes()


def test_options_beside_a_configuration_file_win(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("seed = 5\nsteps = 100\nnesterov = true\n")
    out = tmp_path / "run"
    finished = gyroscope(
        "train", "--config", tmp_path / "run.toml", "--steps", 2, "--no-nesterov", "--out", out, "--quiet"
    )
    assert finished.code == 0
    config = gy.Config.load(out / "config.toml")
    assert (config.seed, config.steps, config.nesterov) == (5, 2, False)


@pytest.mark.parametrize("rate", ["0.123456789", "0.1", "1e-07"])
def test_a_learning_rate_is_the_same_number_in_a_file_and_as_an_option(tmp_path: Path, rate: str) -> None:
    (tmp_path / "number.toml").write_text(f"lr = {rate.replace('1e-07', '1e-7')}\nsteps = 2\n")
    (tmp_path / "text.toml").write_text(f'lr = "{rate}"\nsteps = 2\n')
    results = [gy.train(gy.Config.load(tmp_path / name)) for name in ("number.toml", "text.toml")]
    assert [result.metrics["lr"][0] for result in results] == [float(rate)] * 2


def test_the_interval_of_evaluations_does_not_change_training(tmp_path: Path) -> None:
    often, seldom = (run(tmp_path / str(every), "--evaluate-every", every) for every in (5, 50))
    for name in ("metrics.csv", "workers.csv", "model.pt"):
        assert (often / name).read_bytes() == (seldom / name).read_bytes()
    assert list(pandas.read_csv(seldom / "evaluations.csv")["step"]) == [0, 20]


def test_the_interval_of_checkpoints_does_not_change_training(made: Path, tmp_path: Path) -> None:
    out = run(tmp_path / "run", "--checkpoint-every", 1)
    for name in (*TABLES, "model.pt"):
        assert (out / name).read_bytes() == (made / name).read_bytes()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_an_existing_run_is_refused_and_nothing_of_it_changes(copy: Path) -> None:
    before = contents(copy)
    finished = gyroscope("train", *BASE, "--seed", 9, "--out", copy, "--quiet")
    assert finished.code == 2
    assert "--overwrite" in finished.err and f"--resume {copy}" in finished.err
    assert len(finished.err.strip().splitlines()) == 1
    assert contents(copy) == before


def test_overwrite_replaces_the_run_and_spares_a_strangers_file(copy: Path, tmp_path: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    (copy / "checkpoint.pt").write_bytes(b"left over")
    fresh = run(tmp_path / "fresh", "--seed", 9)
    run(copy, "--seed", 9, "--overwrite")
    assert (copy / "notes.txt").read_text() == "mine"
    assert not (copy / "checkpoint.pt").exists()
    for name in ("config.toml", *TABLES, "model.pt", "status.json"):
        assert (copy / name).read_bytes() == (fresh / name).read_bytes()


def test_a_mistake_with_overwrite_does_not_cost_the_old_run(copy: Path) -> None:
    before = contents(copy)
    finished = gyroscope("train", "--rule", "bulyan", "--declared-byzantine", 20, "--out", copy, "--overwrite")
    assert finished.code == 2
    assert contents(copy) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_of_other_files_is_refused_and_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    finished = gyroscope("train", *BASE, "--out", tmp_path, "--quiet", *(["--overwrite"] if overwrite else []))
    assert finished.code == 2
    assert "thesis.tex" in finished.err
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_an_empty_directory_is_fine(tmp_path: Path) -> None:
    run(tmp_path, "--steps", 1)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    finished = gyroscope("train", *BASE, "--out", tmp_path / "file", "--quiet")
    assert finished.code == 2 and "is a file" in finished.err
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("out", ["x" * 300, "/proc/nothing/here"])
def test_a_path_that_cannot_be_made_is_one_message(tmp_path: Path, out: str) -> None:
    finished = gyroscope("train", *BASE, "--out", out, "--quiet", cwd=tmp_path)
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert len(finished.err.strip().splitlines()) == 1
    assert "--resume" not in finished.err, "there is nothing to resume"


def test_without_out_each_run_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        assert gyroscope("train", *BASE, "--steps", 1, "--quiet", cwd=tmp_path).code == 0
    names = sorted(os.listdir(tmp_path / "runs"))
    assert names == [
        "digits-krum-little-f_2-workers-seed_1",
        "digits-krum-little-f_2-workers-seed_1-2",
    ]


# -- a disk that is full, really ---------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with disks.small_disk(tmp_path / "disk", "256k") as place:
            yield place
    except disks.CannotMountError as reason:
        pytest.skip(str(reason))


LONG = (*BASE[:-4], "--steps", 400, "--threads", 1, "--momentum", "server", "--evaluate-every", 25)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("long") / "run"
    assert gyroscope("train", *LONG, "--checkpoint-every", 1000, "--out", out, "--quiet").code == 0
    return contents(out)


def check_full(finished: object, out: Path) -> None:
    assert finished.code == 2  # type: ignore[attr-defined]
    message = finished.err.strip()  # type: ignore[attr-defined]
    assert "the disk is full" in message
    assert f"gyroscope train --resume {out}" in message
    assert len(message.splitlines()) == 1, message


def test_a_full_disk_is_one_message_and_with_more_room_the_run_completes_to_the_same_bytes(
    small_disk: Path, long_run: dict[str, bytes]
) -> None:
    out = small_disk / "run"
    check_full(gyroscope("train", *LONG, "--checkpoint-every", 1000, "--out", out, "--quiet"), out)
    check_full(gyroscope("train", "--resume", out, "--quiet"), out)  # still full: nothing gets worse
    disks.resize(small_disk, "4m")
    finished = gyroscope("train", "--resume", out, "--quiet")
    assert finished.code == 0, finished.err
    now = contents(out)
    for name in (*TABLES, "model.pt", "status.json", "config.toml"):
        assert now[name] == long_run[name], name


def test_a_disk_that_fills_up_between_checkpoints_loses_nothing(small_disk: Path, long_run: dict[str, bytes]) -> None:
    disks.resize(small_disk, "4m")
    out, ballast = small_disk / "run", small_disk / "ballast"
    process = start("train", *LONG, "--checkpoint-every", 50, "--out", out, "--quiet")
    assert process.until(lambda: lines(out / "metrics.csv") > 100)
    disks.fill(ballast)
    check_full(process.end(), out)
    assert (out / "checkpoint.pt").exists()
    ballast.unlink()
    finished = gyroscope("train", "--resume", out, "--quiet")
    assert finished.code == 0, finished.err
    now = contents(out)
    for name in (*TABLES, "model.pt", "status.json"):
        assert now[name] == long_run[name], name


def test_a_disk_too_full_to_begin_with_says_so(small_disk: Path) -> None:
    disks.fill(small_disk / "ballast")
    finished = gyroscope("train", *BASE, "--out", small_disk / "run", "--quiet")
    assert finished.code == 2
    assert "the disk is full" in finished.err
    assert len(finished.err.strip().splitlines()) == 1
    (small_disk / "ballast").unlink()
    run(small_disk / "run")  # the same command again


def test_a_read_only_disk_is_one_message(small_disk: Path) -> None:
    disks.resize(small_disk, "4m")
    out = run(small_disk / "run")
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    for arguments in (("--resume", out), (*BASE, "--out", small_disk / "other")):
        finished = gyroscope("train", *arguments, "--quiet")
        assert "Traceback" not in finished.err
        assert finished.code == 0 if finished.out else finished.code == 2


# -- older tables ------------------------------------------------------------------------------------------------------


def test_a_run_begun_before_a_column_existed_continues_with_the_column_empty_until_then(tmp_path: Path) -> None:
    config, rounds = gy.Config(rule="krum", workers=7, steps=9), iter(range(4))
    gy.train(config, out=tmp_path / "run", stop=lambda: next(rounds, None) is None)
    path = tmp_path / "run" / "metrics.csv"
    pandas.read_csv(path, dtype=str).drop(columns="omega").assign(unknown=3).to_csv(path, index=False)
    with open(path, "a") as file:
        file.write("1")  # the beginning of a line for step 12, when the process was killed
    rows = gy.resume(tmp_path / "run").tables["metrics.csv"]
    whole = gy.train(config).tables["metrics.csv"]
    assert rows == [{**row, "omega": None} if number < 5 else row for number, row in enumerate(whole)]
    assert tuple(pandas.read_csv(path).columns) == measures.COLUMNS


# -- runs that diverge -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ["nan", "inf", "sign-flip:scale=1e30"])
def test_averaging_under_a_fault_diverges_on_record_without_a_traceback(tmp_path: Path, attack: str) -> None:
    out = tmp_path / "run"
    finished = gyroscope(
        "train", "--rule", "average", "--attack", attack, "--byzantine", 2, "--steps", 20, "--out", out, "--quiet"
    )
    assert finished.code == 4
    assert finished.err == ""
    assert finished.out.startswith("diverged after step ") and "lower --lr" in finished.out
    assert "; last evaluated at step 0: maximum accuracy " in finished.out
    assert finished.out.endswith(f" -> {out}\n") and finished.out.count("\n") == 1
    status = json.loads((out / "status.json").read_text())
    assert status["status"] == "diverged"
    metrics = pandas.read_csv(out / "metrics.csv")
    assert len(metrics) == status["step"] < 20
    assert tuple(metrics.columns) == measures.COLUMNS
    assert len(pandas.read_csv(out / "evaluations.csv")) == 1
    assert (out / "model.pt").exists()
    again = gyroscope("train", "--resume", out, "--quiet")
    assert (again.code, again.out) == (4, finished.out), "a diverged run has ended: it is only read"


def test_a_float64_model_that_explodes_diverges_too() -> None:
    """Squares of its gradients overflow long before the parameters do."""
    from torch import nn

    inputs = torch.randn(40, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    task = gy.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 3), nn.LogSoftmax(dim=1)).double(),
        train=(inputs, torch.arange(40) % 3),
        test=(inputs, torch.arange(40) % 3),
    )
    config = gy.Config(attack="sign-flip:scale=1e200", byzantine=2, workers=5, steps=10, l2=0.1)
    assert gy.train(config, task=task).status == "diverged"


@pytest.mark.parametrize("rule", ["krum", "median", "bulyan"])
@pytest.mark.parametrize("attack", ["nan", "inf"])
def test_a_resilient_rule_under_a_fault_completes_with_finite_metrics(rule: str, attack: str) -> None:
    result = gy.train(gy.Config(rule=rule, attack=attack, byzantine=2, workers=11, steps=15))
    assert result.status == "complete"
    theirs = [name for name in measures.COLUMNS if "attack" in name]
    previous = [name for name in measures.COLUMNS if name.endswith("_previous")]
    ours = result.metrics.drop(columns=[*theirs, *previous, "at_workers"])
    if rule == "median":
        ours = ours.drop(columns="byzantine_share")  # a share has no meaning there
    else:
        assert (ours["byzantine_share"] == 0).all()
    assert numpy.isfinite(ours.astype(float)).all(axis=None)
    assert result.max_accuracy > 0.5


def test_a_run_with_a_directory_keeps_no_row_per_round_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server plays rounds for weeks. What its result has is read from the directory, the same to the last bit."""
    kept: list[dict[str, int]] = []
    result = loop.TrainingLoop.result

    def noting(self: loop.TrainingLoop, *arguments: Any) -> gy.Result:
        kept.append({table: len(rows) for table, rows in self.tables.items()})
        return result(self, *arguments)

    monkeypatch.setattr(loop.TrainingLoop, "result", noting)
    config = gy.Config(workers=5, rule="krum", byzantine=1, attack="little", steps=6, batch=4, threads=1)
    there, nowhere = gy.train(config, out=tmp_path / "run"), gy.train(config)
    assert kept[0]["metrics.csv"] == kept[0]["workers.csv"] == 0 and kept[1]["metrics.csv"] == 6
    for table in ("metrics.csv", "workers.csv", "evaluations.csv"):
        pandas.testing.assert_frame_equal(there.frame(table), nowhere.frame(table), check_exact=True)
