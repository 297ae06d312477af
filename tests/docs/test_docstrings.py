"""Everything in `gyroscope.__all__` has an example that runs, says what it takes, and is on a page of the reference."""

from __future__ import annotations

import doctest
import inspect
import re
import types
from pathlib import Path
from typing import Any

import pytest

import gyroscope

NAMES = [name for name in gyroscope.__all__ if name != "__version__"]
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
ALIASES = {
    "errors": "gyroscope._core.errors",
    "tasks": "gyroscope.simulation.tasks",
    "theory": "gyroscope._core.theory",
}
"""Modules whose page names them as they are imported."""


def thing(name: str) -> Any:
    return getattr(gyroscope, name)


def own_doctest(name: str) -> doctest.DocTest:
    """Return the examples of a docstring itself, without those of its members."""
    text = inspect.getdoc(thing(name)) or ""
    return doctest.DocTestParser().get_doctest(text, {}, f"gyroscope.{name}", None, 0)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_an_example_that_runs(name: str) -> None:
    examples = own_doctest(name)
    assert examples.examples, f"the docstring of gyroscope.{name} has no example"
    assert "import gyroscope as gy" in (examples.docstring or ""), "an example stands by itself"
    printed: list[str] = []
    doctest.DocTestRunner(verbose=False).run(examples, out=printed.append)
    assert not printed, "".join(printed)


def test_an_example_that_is_wrong_is_seen() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    printed: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(wrong, out=printed.append).failed == 1 and printed


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_explained(name: str) -> None:
    what = thing(name)
    if isinstance(what, types.ModuleType) or name in ("Config", "GyroscopeError", "Result"):
        return  # Config's fields carry their help texts, and those of a Result, which `train` makes, docstrings
    text = f"{inspect.getdoc(what)}\n{inspect.getdoc(what.__init__)}"
    arguments = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert arguments, f"the docstring of gyroscope.{name} has no Args"
    named = set(re.findall(r"\w+", " ".join(re.findall(r"^    ([\w, ]+):", arguments[1], re.MULTILINE))))
    assert set(inspect.signature(what).parameters) <= named
    if inspect.isfunction(what):
        assert "\nReturns:\n" in text and "\nRaises:\n" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_on_a_page_of_the_reference(name: str) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md"))
    wanted = ALIASES.get(name, f"gyroscope.{name}")
    assert re.search(rf"^\.\. auto\w+:: {re.escape(wanted)}$", pages, re.MULTILINE)


@pytest.mark.parametrize("module", ["errors", "theory"])
def test_the_reference_lists_all_of_a_module(module: str) -> None:
    page = (REFERENCE / f"{module}.md").read_text(encoding="utf-8")
    for name, value in vars(thing(module)).items():
        ours = getattr(value, "__module__", "") == thing(module).__name__ and not name.startswith("_")
        if ours and (inspect.isclass(value) or module == "theory"):
            assert re.search(rf":: gyroscope(\.{module})?\.{name}$", page, re.MULTILINE), name
