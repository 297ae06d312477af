"""The READMEs of research: short, with links that lead somewhere and commands that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from gyroscope import research
from gyroscope.cli import parser

HERE = Path(research.__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/__init__.py"))


def test_every_experiment_has_one() -> None:
    assert [folder.name for folder in FOLDERS] == ["adaptive", "asynchronous", "replicated"]
    assert (HERE / "README.md").is_file()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_has_question_method_answer_page_and_command(folder: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 25
    for part in ("**Question.**", "**Method.**", "**Answer.**", "**Page", "**Command.**"):
        assert part in text, part
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links and all((folder / link).is_file() for link in links)
    commands = re.findall(r"^    gyroscope (.*)$", text, re.MULTILINE)
    assert commands and all(callable(parser().parse_args(shlex.split(command)).run) for command in commands)
