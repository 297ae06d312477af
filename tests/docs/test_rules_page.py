"""docs/rules.md says what the rules say of themselves, and what it tells of Krum elsewhere are specs of ours."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from gyroscope.rules import RULES, parse

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
