"""What the documents show, runs."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import types
from pathlib import Path

import pytest

from gyroscope.attacks import ATTACKS
from gyroscope.cli import main, parser
from gyroscope.research.replicated import drift
from gyroscope.simulation import metrics

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[Path, str]]:
    return [
        (path, block)
        for path in DOCUMENTS
        for block in re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]


def commands() -> list[str]:
    """Every gyroscope command that stands alone on an indented line of a document."""
    lines = [line for path in DOCUMENTS for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.split("#")[0].strip() for line in lines if re.match(r"    gyroscope \w", line)]


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_document: dict[Path, list[str]] = {}
    for path, block in blocks("python"):
        by_document.setdefault(path, []).append(block)
    assert by_document
    for path, parts in by_document.items():
        module = types.ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)  # where dataclasses look for what a class refers to
        exec(compile("\n".join(parts), str(path), "exec"), module.__dict__)


@pytest.mark.parametrize("command", commands())
def test_commands_can_be_parsed(command: str) -> None:
    if "--help" in command:
        with pytest.raises(SystemExit) as stopped:
            parser().parse_args(shlex.split(command)[1:])
        assert stopped.value.code == 0
    else:
        assert callable(parser().parse_args(shlex.split(command)[1:]).run)


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_recorded_column_is_explained() -> None:
    text = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
    patterns = {"cosine_A_B": r"cosine_\w+_\w+", "cosine_A_previous": r"cosine_\w+_previous"}
    for column in metrics.COLUMNS:
        named = f"`{column}`" in text
        by_pattern = any(name in text and re.fullmatch(pattern, column) for name, pattern in patterns.items())
        assert named or by_pattern, column


def test_every_attack_is_explained_with_its_parameters() -> None:
    text = (ROOT / "docs" / "attacks.md").read_text(encoding="utf-8")
    lines = {name: line for line in text.splitlines() for name in re.findall(r"`([\w-]+)`", line.split(" | ")[0])}
    for name, kind in ATTACKS.items():
        assert lines[name].startswith("| `"), name
        for field in dataclasses.fields(kind):
            assert f"`{field.name}`" in lines[name], (name, field.name)


def test_every_column_of_the_drift_is_explained() -> None:
    text = (ROOT / "docs" / "beyond" / "servers.md").read_text(encoding="utf-8")
    for column in drift.COLUMNS:
        assert f"`{column}`" in text, column


def test_the_readme_begins_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.index("make demo") < text.index("make test") < text.index("gyroscope train")


def test_no_document_or_source_names_a_place_on_somebodys_machine() -> None:
    sources = [path for folder in ("src", "tests", "docs", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    for path in [*sources, *DOCUMENTS, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(work|root|home)/(main|shared|\w+/\.pyenv)", text), path


def test_the_rule_and_the_attack_of_the_readme_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = (block for path, block in blocks("python") if "class Trimmed(" in block)
    (command,) = (command for command in commands() if "mine:Trimmed" in command)
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main([*shlex.split(command)[1:], "--steps", "20", "--out", "run", "--quiet"]) == 0
    assert 'rule = "mine:Trimmed:extra=1"' in (tmp_path / "run" / "config.toml").read_text()
