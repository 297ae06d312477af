"""The documents show code, commands, links and names that work."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import re
import shlex
import sys
import types
from pathlib import Path

import pytest

import gyroscope
from gyroscope.attacks import ATTACKS
from gyroscope.cli import parser
from gyroscope.research.replicated import drift
from gyroscope.simulation import metrics

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = ROOT / "CHANGELOG.md"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", CHANGELOG, *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "src" / "gyroscope"


def blocks(language: str) -> list[tuple[Path, str]]:
    """Return every fenced block in this language, with the document that holds it."""
    return [
        (path, block)
        for path in DOCUMENTS
        for block in re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    ]


def commands() -> list[str]:
    """Return every gyroscope command that is alone on an indented line of a document."""
    lines = [line for path in DOCUMENTS for line in path.read_text(encoding="utf-8").splitlines()]
    return [line.split("#")[0].strip() for line in lines if re.match(r"    gyroscope \w", line)]


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_document: dict[Path, list[str]] = {}
    for path, block in blocks("python"):
        by_document.setdefault(path, []).append(block)
    assert by_document
    for path, parts in by_document.items():
        if "gyroscope.integrations.flower" in "".join(parts) and not importlib.util.find_spec("flwr"):
            continue  # `make test` has no Flower, .ci/run does
        folder = tmp_path / path.relative_to(ROOT).with_suffix("")
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        module = types.ModuleType("example")
        monkeypatch.setitem(sys.modules, "example", module)  # dataclasses resolve annotations there
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
        for target, section in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", path.read_text(encoding="utf-8")):
            if target.startswith(("http:", "https:")):
                continue
            page = path.parent / target if target else path
            assert page.exists(), f"{path.name} links to {target}"
            if section:
                headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
                assert section in anchors, f"{path.name} links to {target}#{section}"


def test_module_names_exist() -> None:
    """Check dotted names but for entry-point groups; the changelog also has names of earlier versions."""
    groups = {f"gyroscope.{kind}s" for kind in ("command", "variant", "preaggregation", "sharding", "task")}
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8") if path != CHANGELOG else ""
        for name in set(re.findall(r"\bgyroscope(?:\.[A-Za-z_]\w*)+", text)) - groups:
            assert _exists(name), f"{path.name} names {name}"


def _exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for known in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(parts[:known]))
        except ModuleNotFoundError:
            continue
        except gyroscope.GyroscopeError:  # gyroscope.integrations.flower without Flower
            return True
        for attribute in parts[known:]:
            if not hasattr(thing, attribute):
                return False
            thing = getattr(thing, attribute)
        return True
    return False


def test_files_of_the_package_exist() -> None:
    """Check paths such as `runs/loop.py`; those that begin with src/ or robust_app/ are of files to be written."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8") if path != CHANGELOG else ""
        for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
            if not name.startswith(("src/", "robust_app/")):
                assert (PACKAGE / name).is_file() or (ROOT / name).is_file(), f"{path.name} names {name}"


def test_the_design_has_a_line_for_every_package() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    shown = re.findall(r"^      (\w+)/ ", text, re.MULTILINE)
    assert sorted(shown) == sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
    layers = re.search(r"^layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    if layers:
        order = [package for line in re.findall(r'"(.+?)"', layers[1]) for package in line.split(" | ")]
        assert shown == order, "the tree of docs/design.md and the contract of import-linter differ"


def test_the_changelog_has_this_version_and_the_usual_headings() -> None:
    text = CHANGELOG.read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert versions[0] == "Unreleased" and gyroscope.__version__ in versions
    kinds = set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


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
