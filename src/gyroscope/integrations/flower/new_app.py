"""`gyroscope flower new`: a small complete Flower app, written into a folder."""

from __future__ import annotations

import dataclasses
import re
from importlib import metadata, resources
from pathlib import Path

from gyroscope._core.errors import ConfigError
from gyroscope.integrations.flower.settings import Settings
from gyroscope.runs import run_dir

_PACKAGE = "robust_app"


def write(folder: str | Path) -> Path:
    """Write the app. The folder must be new or empty."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists already and is not an empty folder: choose another one")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "robust-app"
    templates = resources.files("gyroscope.integrations.flower.template")
    project = templates.joinpath("app.toml").read_text(encoding="utf-8")
    comments = [field.metadata.get("comment") for field in dataclasses.fields(Settings)]
    lines = zip(Settings().to_toml().splitlines(), comments, strict=True)
    config = "\n".join(f"{line:<28}# {comment}" if comment else line for line, comment in lines)
    project = project.format(name=name, flwr=metadata.version("flwr"), config=config)
    with run_dir.disk_errors(folder, "new app"):
        package = folder / _PACKAGE
        package.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(project, encoding="utf-8")
        (package / "__init__.py").write_text('"""A Byzantine-resilient Flower app."""\n', encoding="utf-8")
        for module in ("server_app.py", "client_app.py"):
            source = templates.joinpath(module).read_text(encoding="utf-8")
            (package / module).write_text(source, encoding="utf-8")
    return folder
