"""docs/rules.md agrees with the rules' class variables, and its specs for other libraries' Krum can be built."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from gyroscope.rules import PREAGGREGATIONS, RULES, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "rules.md").read_text(encoding="utf-8")


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module(name)


def test_the_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = script("update_rules", monkeypatch).parts()
    assert script("markers", monkeypatch).replaced(PAGE, parts) == PAGE, "run python docs/update_rules.py"
    for name in RULES:
        assert all(f"| `{name}` |" in parts[table] for table in ("rules", "properties"))


def test_krum_by_other_names_can_be_built() -> None:
    specs = re.findall(r"`(krum\S*)` \|$", PAGE, re.MULTILINE)
    assert len(specs) >= 6
    for spec in specs:
        assert str(parse(spec)) == spec


@pytest.mark.parametrize(
    ("use", "verb"), [("state", "keep state"), ("randomness", "draw at random"), ("trusted", "compare with")]
)
def test_the_page_names_every_rule_that_depends_on_more_than_the_rows(use: str, verb: str) -> None:
    start = PAGE.partition("Most rules use nothing but the rows. ")[2].partition(":\n\n")[0].replace("\n", " ")
    (clause,) = (part for part in start.split("; ") if verb in part)
    named = set(re.findall(r"`([a-z-]+)`", clause))
    everything = {**RULES, **PREAGGREGATIONS}
    assert named - {"random"} == {name for name, kind in everything.items() if use in kind.uses}
