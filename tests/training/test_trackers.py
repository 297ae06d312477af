"""TensorBoard, W&B and MLflow get the scalars of the tables: each record is read back as its program reads it."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas
import pytest
from launching import Started

from gyroscope import Config
from gyroscope.cli import main
from gyroscope.runs.training import resume, train

SMALL = ("train", "--steps", "30", "--workers", "7", "--threads", "1", "--quiet", "--out")
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every record in this folder, whatever the developer's variables say, and nothing sent anywhere."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def _without(package: str, option: str, out: str) -> int:
    sys.modules[package] = None  # type: ignore[assignment]
    return main(["train", "--steps", "2", option, "--quiet", "--out", out])


@pytest.mark.parametrize("name", PACKAGES)
def test_without_its_package_it_is_one_message_that_leaves_nothing_behind(tmp_path: Path, name: str) -> None:
    finished = Started(_without, PACKAGES[name], f"--{name}", str(tmp_path / "run")).end()
    assert finished.code == 2 and finished.out == "" and len(finished.err.strip().splitlines()) == 1
    assert f"--{name} needs" in finished.err and f"pip install 'gyroscope[{name}]'" in finished.err
    assert os.listdir(tmp_path) == []


def test_tensorboard_gets_the_scalars_of_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the optional extra tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    assert main([*SMALL, str(out), "--tensorboard"]) == 0
    events = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    metrics = pandas.read_csv(out / "metrics.csv")
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(metrics["step"])
    assert [event.value for event in losses] == pytest.approx(list(metrics["loss"]))
    assert [event.step for event in events.Scalars("accuracy")] == [0, 5, 10, 15, 20, 25, 30]


# -- MLflow ----------------------------------------------------------------------------------------------------------


def check_mlflow(out: Path, uri: str, status: str = "FINISHED") -> None:
    """Compare what MLflow's client reads with the tables of a run."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("gyroscope")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == out.name and run.info.status == status
    assert run.data.params["rule"] == Config.load(out / "config.toml").rule
    for table, column in (("metrics", "loss"), ("evaluations", "accuracy"), ("evaluations", "test_loss")):
        wanted = pandas.read_csv(out / f"{table}.csv")
        found = {each.step: each.value for each in client.get_metric_history(run.info.run_id, column)}
        assert found == pytest.approx(dict(zip(wanted["step"], wanted[column], strict=True)))


@pytest.mark.slow
def test_mlflow_gets_the_scalars_of_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the optional extra mlflow is not installed")
    out = tmp_path / "run"
    assert main([*SMALL, str(out), "--rule", "median", "--mlflow"]) == 0
    check_mlflow(out, os.environ["MLFLOW_TRACKING_URI"])


@pytest.mark.slow
def test_a_resumed_run_goes_on_in_the_same_record_of_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the optional extra mlflow is not installed")
    out, uri = tmp_path / "run", os.environ["MLFLOW_TRACKING_URI"]
    rounds = iter(range(12))
    config = Config(steps=20, workers=7, threads=1, evaluate_every=5)
    assert train(config, out=out, stop=lambda: next(rounds) == 11, mlflow=True).status == "interrupted"
    check_mlflow(out, uri, "KILLED")
    assert resume(out, mlflow=True).status == "complete"
    check_mlflow(out, uri)


@pytest.mark.slow
def test_an_mlflow_that_fails_costs_the_record_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow", reason="the optional extra mlflow is not installed")
    from sqlalchemy import create_engine, text

    engine = create_engine(os.environ["MLFLOW_TRACKING_URI"])

    def lose_the_database() -> bool:
        with contextlib.suppress(Exception), engine.begin() as connection:
            connection.execute(text("DROP TABLE latest_metrics"))
        return False

    config = Config(steps=10, workers=7, threads=1)
    assert train(config, out=tmp_path / "run", stop=lose_the_database, mlflow=True).status == "complete"
    assert capsys.readouterr().err.count("--mlflow: the run goes on, and its record ends here") == 1


def test_an_mlflow_that_cannot_be_used_is_a_mistake_that_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow", reason="the optional extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    assert main([*SMALL, str(tmp_path / "run"), "--mlflow"]) == 2
    said = capsys.readouterr().err
    assert "nonsense://here" in said and "set MLFLOW_TRACKING_URI" in said
    assert os.listdir(tmp_path) == []


# -- W&B -------------------------------------------------------------------------------------------------------------


def wandb_rows(out: Path) -> list[dict[str, float]]:
    """Return the history in all of a run's offline folders, by W&B's own messages.

    W&B has no reader for Python any more. Its files are LevelDB logs: after a head of seven bytes come blocks of 32 KiB
    with pieces of records, each behind its checksum, its length and whether it is whole (1), or the first (2), a
    middle (3) or the last (4) piece.
    """
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted((out / "wandb").glob("offline-run-*/*.wandb")):
        for record in _log_records(path.read_bytes()):
            message = wandb_internal_pb2.Record()
            message.ParseFromString(record)
            if message.WhichOneof("record_type") == "history":
                items = message.history.item
                found.append({item.key or item.nested_key[0]: json.loads(item.value_json) for item in items})
    return found


def _log_records(data: bytes) -> Iterator[bytes]:
    at, record = 7, b""
    while at < len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def check_wandb(out: Path) -> None:
    """Compare what is in W&B's files with the tables of a run."""
    rows = wandb_rows(out)
    for table, column in (("metrics", "loss"), ("evaluations", "accuracy"), ("evaluations", "test_loss")):
        wanted = pandas.read_csv(out / f"{table}.csv")
        found = {row["_step"]: row[column] for row in rows if column in row}
        assert found == pytest.approx(dict(zip(wanted["step"], wanted[column], strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("mode", [None, "offline"])
def test_wandb_gets_the_scalars_of_the_tables_without_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: str | None
) -> None:
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    if mode:
        monkeypatch.setenv("WANDB_MODE", mode)
    out = tmp_path / "run"
    assert main([*SMALL, str(out), "--wandb"]) == 0
    assert capsys.readouterr().err == ""
    check_wandb(out)


@pytest.mark.slow
def test_wandb_keeps_the_id_of_a_resumed_run_and_loses_it_with_the_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the optional extra wandb is not installed")
    out, rounds = tmp_path / "run", iter(range(12))
    config = Config(steps=20, workers=7, threads=1, evaluate_every=5)
    assert train(config, out=out, stop=lambda: next(rounds) == 11, wandb=True).status == "interrupted"
    first = json.loads((out / "trackers.json").read_text())
    assert resume(out, wandb=True).status == "complete"
    assert json.loads((out / "trackers.json").read_text()) == first
    check_wandb(out)
    train(config, out=out, overwrite=True)
    assert not (out / "trackers.json").exists() and not (out / "wandb").exists()
