"""Kinds of runs beside the core's: files and directories of 0.1, two kinds at once, and those of other packages."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gyroscope as gy
from gyroscope import research
from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, RunDirectoryError
from gyroscope.cli import main, parser
from gyroscope.research.adaptive import AdaptiveConfig, AdaptiveRun
from gyroscope.research.asynchronous import AsyncConfig
from gyroscope.research.replicated import ReplicatedConfig, ReplicatedResult, ReplicatedRun
from gyroscope.runs import setup, variants
from gyroscope.runs.config import Config
from gyroscope.runs.training import Run, load_task

OLD = Path(__file__).parent / "version_0_1"
"""Run directories of 0.1, without the model."""
KINDS = {"plain": Config, "adaptive": AdaptiveConfig, "feedback": AdaptiveConfig, "servers": ReplicatedConfig}
QUICK = "--steps 2 --workers 11 --threads 1 --quiet"

# -- configurations of 0.1 ---------------------------------------------------------------------------------------------


def written(name: str, *changes: str) -> str:
    """A configuration as 0.1 wrote it, with all keys, and some of them changed."""
    text = (OLD / name / "config.toml").read_text()
    for change in changes:
        key = change.split(" = ")[0]
        text, count = re.subn(rf"^{key} = .*$", change, text, flags=re.MULTILINE)
        text += "" if count else f"{change}\n"
    return text


@pytest.mark.parametrize("name", KINDS)
def test_a_file_of_0_1_loads_as_the_kind_of_run_that_its_values_ask_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(written(name))
    assert {"adapt", "servers", "exchange_every"} <= set(re.findall(r"^\w+", path.read_text(), re.MULTILINE))
    config = Config.load(path)
    assert type(config) is KINDS[name]
    for key, value in dataclasses.asdict(config.resolve()).items():
        assert getattr(config, key) == value, "0.1 wrote configurations with nothing left to fill in"
    assert main(["train", "--config", str(path), "--quiet", "--out", str(tmp_path / "run")]) == 0
    again = Config.load(tmp_path / "run" / "config.toml")
    assert type(again) is KINDS[name] and again.experiment() == config.experiment()
    kept = set(re.findall(r"^\w+", (tmp_path / "run" / "config.toml").read_text(), re.MULTILINE))
    assert kept <= {field.name for field in dataclasses.fields(KINDS[name])}, "defaults of other kinds are gone"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        (['adapt = "lr"'], AdaptiveConfig),
        (['momentum = "feedback"'], AdaptiveConfig),
        (["servers = 3"], ReplicatedConfig),
        (["servers = 1", 'adapt = "none"'], Config),
        (['momentum = "server-kept"'], Config),
    ],
    ids=str,
)
def test_one_value_decides(changes: list[str], kind: type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(written("plain", *changes))
    assert type(Config.load(path)) is kind
    assert main(["train", "--config", str(path), "--quiet", "--out", str(tmp_path / "run")]) == 0
    assert type(Config.load(tmp_path / "run" / "config.toml")) is kind


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("servers", 'adapt = "mu"'),
        ("servers", 'momentum = "adaptive"'),
        ("adaptive", "servers = 3"),
        ("feedback", 'server_attack = "nan"'),
    ],
)
def test_two_kinds_at_once_are_one_clear_sentence(
    name: str, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(written(name, change))
    says = "adaptive momentum and several servers are two kinds of runs that have no form together: leave out "
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {says}")) as raised:
        Config.load(path)
    assert "\n" not in str(raised.value) and change.split(" = ")[0] in str(raised.value)
    assert main(["train", "--config", str(path), "--quiet", "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error == f"gyroscope: error: {raised.value}\n" and not (tmp_path / "run").exists()


def test_options_besides_a_file_may_ask_for_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("plain", "servers"):
        (tmp_path / f"{name}.toml").write_text(written(name))
    assert main(["train", "--config", str(tmp_path / "plain.toml"), "--adapt", "lr", "--quiet",
                 "--out", str(tmp_path / "run")]) == 0  # fmt: skip
    assert type(Config.load(tmp_path / "run" / "config.toml")) is AdaptiveConfig
    assert main(["train", "--config", str(tmp_path / "servers.toml"), "--adapt", "lr", "--quiet",
                 "--out", str(tmp_path / "no")]) == 2  # fmt: skip
    assert "two kinds of runs" in capsys.readouterr().err and not (tmp_path / "no").exists()


def test_a_key_of_another_kind_says_which(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"servers (is a key of|belongs to) ReplicatedConfig, .* use `from gyroscope\.research"
    ):
        Config(servers=6)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"adapt (is a key of|belongs to) AdaptiveConfig"):
        ReplicatedConfig(servers=6, adapt="mu")  # type: ignore[call-arg]


def test_objects_become_specs() -> None:
    config = ReplicatedConfig(server_attack=gy.attacks.SignFlip())  # type: ignore[arg-type]
    assert config.server_attack == "sign-flip"


# -- run directories of 0.1 --------------------------------------------------------------------------------------------


def old_run(name: str, tmp_path: Path, status: str = "complete") -> Path:
    """A run directory of 0.1 with a model in it."""
    path = tmp_path / name
    shutil.copytree(OLD / name, path)
    config = Config.load(path / "config.toml")
    torch.save(setup.first_model(load_task(config), 3).state_dict(), path / "model.pt")
    known = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps({**known, "status": status}))
    return path


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("status", ["complete", "diverged"])
def test_a_directory_of_0_1_that_has_ended_is_read_back(
    name: str, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = old_run(name, tmp_path, status)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    result = gy.resume(path)
    assert (result.status, result.step) == (status, 2)
    known = json.loads((path / "status.json").read_text())
    assert (result.max_accuracy, result.final_accuracy) == (known["max_accuracy"], known["final_accuracy"])
    for table, rows in result.tables.items():
        header, *lines = (path / table).read_text().splitlines()
        assert [list(row) for row in rows] == [header.split(",")] * len(lines)
        assert [",".join("" if cell is None else repr(cell) for cell in row.values()) for row in rows] == lines
    model = torch.load(path / "model.pt", weights_only=True)
    assert all(torch.equal(tensor, model[key]) for key, tensor in result.model.state_dict().items())
    assert isinstance(result, ReplicatedResult) == (name == "servers") == ("drift.csv" in result.tables)
    assert main(["train", "--resume", str(path), "--quiet"]) == (4 if status == "diverged" else 0)
    assert f"{known['max_accuracy']:.2%}" in capsys.readouterr().out
    after = {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}
    assert after == before, "reading changes nothing"


@pytest.mark.parametrize("name", KINDS)
def test_a_directory_of_0_1_without_a_checkpoint_begins_anew_with_its_configuration(name: str, tmp_path: Path) -> None:
    path = old_run(name, tmp_path, "interrupted")
    result = gy.resume(path)
    whole = gy.train(Config.load(OLD / name / "config.toml"))
    assert result.status == "complete" and result.tables == whole.tables
    kind = {Config: Run, AdaptiveConfig: AdaptiveRun, ReplicatedConfig: ReplicatedRun}[KINDS[name]]
    assert variants.run_class(Config.load(path / "config.toml")) is kind


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_of_0_1_is_refused_with_a_remedy(name: str, tmp_path: Path) -> None:
    path = old_run(name, tmp_path, "interrupted")
    torch.save({"step": 1, "parameters": torch.zeros(3), "momentum": {}}, path / "checkpoint.pt")
    with pytest.raises(RunDirectoryError, match=r"under gyroscope 0\.1, .* continue it with 0\.1, or begin anew"):
        gy.resume(path)


def test_an_asynchronous_directory_of_0_1_has_a_configuration_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "async"
    shutil.copytree(OLD / "async", path)
    config = AsyncConfig.load(path / "config.toml")
    assert config.resolve().experiment() == config.experiment()
    with pytest.raises(RunDirectoryError, match="asynchronous run, which cannot be resumed"):
        gy.resume(path)
    assert main(["async", "--config", str(path / "config.toml"), "--quiet", "--out", str(tmp_path / "again")]) == 0
    names = [(folder / "arrivals.csv").read_text().splitlines()[0] for folder in (path, tmp_path / "again")]
    assert names[0] == names[1]


# -- kinds of runs and commands of other packages ----------------------------------------------------------------------


@pytest.fixture
def warmup(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The example of the README, installed: a module that an entry point names."""
    text = (Path(research.__file__).parent / "README.md").read_text(encoding="utf-8")
    module = types.ModuleType("warmup_package")
    monkeypatch.setitem(sys.modules, "warmup_package", module)
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(block, "README.md", "exec"), module.__dict__)
    install(monkeypatch, "gyroscope.variants", warmup="warmup_package:VARIANT")
    variants.variants.cache_clear()
    yield module
    variants.variants.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, group: str, **points: str) -> None:
    """Let the entry points of this group be those of installed packages and these."""
    real = registry.entry_points

    def listed(**chosen: str) -> list[importlib.metadata.EntryPoint]:
        more = [importlib.metadata.EntryPoint(name, value, group) for name, value in points.items()]
        return [*real(**chosen), *(more if chosen == {"group": group} else [])]

    monkeypatch.setattr(registry, "entry_points", listed)


def test_the_entry_points_of_the_readme_are_those_of_this_package() -> None:
    text = (Path(research.__file__).parent / "README.md").read_text(encoding="utf-8")
    for kind, names in (("variant", {"adaptive", "replicated"}), ("command", {"async"})):
        assert f'[project.entry-points."gyroscope.{kind}s"]' in text
        assert set(registry.installed(kind)) >= names


def test_another_packages_kind_of_run_trains_from_python_and_resumes(warmup: Any, tmp_path: Path) -> None:
    config = warmup.WarmupConfig(rule="krum", workers=7, steps=6, lr="0.5", warmup=4, threads=1)
    whole = gy.train(config, out=tmp_path / "whole")
    assert list(whole.metrics["lr"]) == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    assert type(whole.config) is warmup.ResolvedWarmupConfig
    rounds = iter(range(2))
    part = gy.train(config, out=tmp_path / "parts", stop=lambda: next(rounds, None) is None)
    assert part.status == "interrupted"
    assert gy.resume(tmp_path / "parts").tables == whole.tables
    assert "warmup = 4" in (tmp_path / "whole" / "config.toml").read_text()


def test_its_fields_are_options_and_keys_and_exclude_the_other_kinds(
    warmup: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *QUICK.split(), "--warmup", "2", "--out", str(tmp_path / "run")]) == 0
    assert type(Config.load(tmp_path / "run" / "config.toml")) is warmup.WarmupConfig
    assert type(Config.from_mapping({"warmup": 0})) is Config
    assert type(Config.from_mapping({"warmup": 0, "servers": 6})) is ReplicatedConfig
    with pytest.raises(ConfigError, match=r"warmup (is a key of|belongs to) WarmupConfig"):
        Config(warmup=2)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="warmup must be at least 0, got -1"):
        Config.from_mapping({"warmup": -1})
    with pytest.raises(ConfigError, match="several servers and learning-rate warmup are two kinds of runs"):
        Config.from_mapping({"warmup": 2, "servers": 6})
    capsys.readouterr()
    assert main(["train", *QUICK.split(), "--warmup", "2", "--adapt", "lr", "--out", str(tmp_path / "no")]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "no").exists()
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert "rounds in which the learning rate grows" in " ".join(capsys.readouterr().out.split())


def test_another_packages_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = types.ModuleType("greeting_package")

    def add(commands: Any) -> None:
        command = commands.add_parser("greet", help="greet somebody")
        command.add_argument("name")
        command.set_defaults(run=greet)

    def greet(options: argparse.Namespace) -> int:
        print(f"hello, {options.name}")
        return 0

    module.add = add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "greeting_package", module)
    install(monkeypatch, "gyroscope.commands", greet="greeting_package", broken="no_such_package")
    with pytest.warns(UserWarning, match="the command 'broken' of no_such_package cannot be added"):
        assert main(["greet", "world"]) == 0
    assert capsys.readouterr().out == "hello, world\n"


def test_without_research_the_core_has_its_own_runs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **chosen: [])
    variants.variants.cache_clear()
    try:
        assert variants.variants() == () and type(Config.from_mapping({"rule": "krum"})) is Config
        assert gy.train(gy.Config(workers=3, steps=2)).status == "complete"
        assert "--servers" not in parser().format_help()
        with pytest.raises(gy.errors.UnknownNameError, match="unknown configuration key 'servers'"):
            Config.from_mapping({"servers": 6})
    finally:
        monkeypatch.undo()
        variants.variants.cache_clear()
