"""A small complete Flower app, written into a folder of the user's."""

from __future__ import annotations

import re
from importlib import metadata, resources
from pathlib import Path

from gyroscope._core.errors import ConfigError
from gyroscope.integrations.flower.settings import Settings
from gyroscope.runs import run_dir

_PACKAGE = "robust_app"

_COMMENTS = {
    "nodes": "n: how many nodes are asked each round",
    "rule": "gyroscope list rules",
    "f": "how many of the nodes may lie, crash or stay silent",
    "momentum": "workers, server, none",
    "lr": 'of the local steps; "0.05,15:0.01" for 0.01 from round 15 on',
    "local-steps": "many when deployed: a round takes seconds, a step milliseconds",
    "batch": "samples per local step; 0: the task's own choice",
    "task": "gyroscope list tasks",
    "timeout": "seconds that the nodes have for a round",
    "patience": "rounds in a row with too few valid replies before the run stops",
    "out": "run directory; empty: a new one in runs/, where the SuperLink was started",
    "data-dir": "where the data set lies on the node; empty: GYROSCOPE_DATA, the cache, or a download",
}


def write(folder: str | Path) -> Path:
    """Write the app. The folder must be new or empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already and is not an empty folder: choose another one")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "robust-app"
    templates = resources.files("gyroscope.integrations.flower.template")
    project = templates.joinpath("app.toml").read_text(encoding="utf-8")
    project = project.format(name=name, flwr=metadata.version("flwr"), config=_config())
    with run_dir.disk_errors(folder, "new app"):
        package = folder / _PACKAGE
        package.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
        (package / "__init__.py").write_text('"""A Byzantine-resilient Flower app."""\n', encoding="utf-8")
        for module in ("server_app.py", "client_app.py"):
            source = templates.joinpath(module).read_text(encoding="utf-8")
            (package / module).write_text(source, encoding="utf-8")
    return folder


def _config() -> str:
    lines = []
    for line in Settings().to_toml().splitlines():
        comment = _COMMENTS.get(line.split(" = ")[0])
        lines.append(f"{line:<28}# {comment}" if comment else line)
    return "\n".join(lines)
