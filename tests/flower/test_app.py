"""The ready app in one process: its files, its settings, its run directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")

import torch
from deployment import table
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from memory_grid import MemoryGrid, app_nodes, context, run_config, silent, unreadable

from gyroscope import momentum, rules
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, RunDirectoryError, UnknownNameError
from gyroscope.cli import main
from gyroscope.integrations.flower import TooFewRepliesError
from gyroscope.integrations.flower.client import load_task, partition
from gyroscope.integrations.flower.server import serve
from gyroscope.integrations.flower.settings import Settings
from gyroscope.runs import training
from gyroscope.runs.config import Config
from gyroscope.runs.setup import first_model

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def config_of(**changes: Any) -> dict[str, Any]:
    return run_config(Settings(**changes))


def final(out: Path) -> dict[str, torch.Tensor]:
    model: dict[str, torch.Tensor] = torch.load(out / "model.pt", weights_only=True)
    return model


@pytest.mark.parametrize("placement", momentum.BASIC_PLACEMENTS)
def test_with_one_local_step_it_is_the_training_that_gyroscope_train_does(tmp_path: Path, placement: str) -> None:
    config = config_of(
        rounds=8, local_steps=1, lr="0.2,5:0.1" if placement == "none" else "0.2", batch=4, momentum=placement,
        seed=3, out=str(tmp_path / "run"),
    )  # fmt: skip
    serve(MemoryGrid(app_nodes(config)), context(0, **config))
    same = Config(
        task="digits", rule="krum", workers=5, declared_byzantine=1, momentum=placement, lr=config["lr"], batch=4,
        steps=8, seed=3,
    )  # fmt: skip
    expected = training.train(same).model.state_dict()
    for name, tensor in final(tmp_path / "run").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


def test_the_run_directory(tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = config_of(rounds=3, local_steps=2, timeout=20.0, out=str(out))
    grid = MemoryGrid({**app_nodes(config, 4), 5: unreadable})
    serve(grid, context(0, **config))
    assert [row["step"] for row in table(out / "evaluations.csv")] == ["0", "1", "2", "3"]
    rejected = [row for row in table(out / "events.csv") if row["event"] == "rejected"]
    assert [(row["step"], row["worker"], row["who"]) for row in rejected] == [(str(n), "4", "node 5") for n in range(3)]
    assert all("unreadable reply: IndexError: list index" in row["detail"] for row in rejected)
    assert [row["worker_4"] for row in table(out / "workers.csv")] == ["0.0"] * 3
    assert Config.load(out / "config.toml").workers == 5
    assert Settings.of(tomllib.loads((out / "flower.toml").read_text())) == Settings.of(config)
    assert json.loads((out / "status.json").read_text())["status"] == "complete"
    with pytest.raises(RunDirectoryError, match="flwr run"):
        training.resume(out)
    serve(MemoryGrid(app_nodes(config)), context(0, **config))
    assert (tmp_path / "run-2" / "status.json").is_file()


def test_a_run_that_fails_says_why_in_its_directory(tmp_path: Path) -> None:
    config = config_of(rounds=3, local_steps=1, timeout=0.2, patience=1, out=str(tmp_path / "run"))
    with pytest.raises(TooFewRepliesError):
        serve(MemoryGrid({**app_nodes(config, 3), 4: silent, 5: silent}), context(0, **config))
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["status"] == "failed" and "n - f = 4" in status["reason"]


def test_the_written_app_has_every_setting_and_is_not_overwritten(tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "My App"
    assert main(["flower", "new", str(folder)]) == 0
    assert "flwr run" in capsys.readouterr().out
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["project"]["name"] == "my-app"
    assert Settings.of(project["tool"]["flwr"]["app"]["config"]) == Settings()
    for component in project["tool"]["flwr"]["app"]["components"].values():
        assert (folder / (component.split(":")[0].replace(".", "/") + ".py")).is_file()
    assert main(["flower", "new", str(folder)]) == 2
    assert "choose another" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"rule": "krumm"}, UnknownNameError, "did you mean 'krum'"),
        ({"f": 2}, InfeasibleError, "lower f to 1"),
        ({"lr": "fast"}, ConfigError, "schedule"),
        ({"momentum": "nowhere"}, UnknownNameError, "workers"),
        ({"local-steps": 0}, ConfigError, "local-steps must be at least 1"),
        ({"rounds": "many"}, ConfigError, "rounds must be a whole number"),
        ({"rounds": True}, ConfigError, "rounds must be a whole number"),
        ({"roundz": 3}, UnknownNameError, "did you mean 'rounds'"),
        ({"timeout": 0.0}, ConfigError, "timeout"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Settings.of({**config_of(), **changes})


def test_numbers_pass_where_flowers_command_line_makes_them() -> None:
    settings = Settings.of({**config_of(), "lr": 0.1, "timeout": 30, "mu": 0})
    assert (settings.lr, settings.timeout, settings.mu) == ("0.1", 30.0, 0.0)


def test_a_node_without_a_number_gets_an_error_with_a_remedy() -> None:
    here = context(0, **config_of())
    here.node_config.clear()
    with pytest.raises(GyroscopeError, match="partition-id"):
        partition(here)


def test_a_node_trains_without_the_packages_that_take_seconds_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(local_steps=2)
    (node,) = app_nodes(config, 1).values()
    load_task.cache_clear()
    for package in ("sklearn.datasets", "pandas", "matplotlib", "gyroscope._linalg._kernels.compiled"):
        monkeypatch.setitem(sys.modules, package, None)  # an import of it fails now
    start = first_model(load_task("digits", ""), seed=1).state_dict()
    content = RecordDict({"arrays": ArrayRecord(start), "config": ConfigRecord({"server-round": 1})})
    reply = node(Message(content, dst_node_id=1, message_type=MessageType.TRAIN))
    assert reply is not None and reply.has_content()


@pytest.mark.parametrize("rule", rules.RULES)
def test_rules_are_all_accepted_by_name_but_those_that_need_trusted_samples(rule: str) -> None:
    if "trusted" in rules.RULES[rule].uses:
        with pytest.raises(ConfigError, match="a Flower app has no such thing"):
            Settings(rule=rule, nodes=11)
    else:
        assert str(rules.parse(Settings(rule=rule, nodes=11).rule)) == rule


def test_importing_gyroscope_does_not_import_flower_and_a_missing_one_is_named() -> None:
    code = (
        "import sys, gyroscope, gyroscope.cli; assert 'flwr' not in sys.modules; sys.modules['flwr'] = None\n"
        "sys.exit(gyroscope.cli.main(['flower', 'new', 'nowhere']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "pip install 'gyroscope[flower]'" in done.stderr
