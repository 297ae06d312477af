"""docs/rules.md agrees with the rules' class variables, and its specs for other libraries' Krum can be built."""

from __future__ import annotations

import re

import pytest

from benchmarks.pages import DOCS, markers, update_rules
from gyroscope.cli import list_names
from gyroscope.rules import PREAGGREGATIONS, RULES, parse

PAGE = (DOCS / "rules.md").read_text(encoding="utf-8")


def test_the_tables_are_up_to_date() -> None:
    parts = update_rules.parts()
    assert markers.replaced(PAGE, parts) == PAGE, "run python -m benchmarks.pages.update_rules"
    for name in RULES:
        assert all(f"| `{name}` |" in parts[table] for table in ("rules", "properties"))
    robust = parse("dnc:robust=true").bound_factor(update_rules.N, update_rules.F)
    assert f"`dnc:robust=true`, which is within {robust:.3g} R of the honest mean" in PAGE


def test_what_list_shows_is_up_to_date() -> None:
    written = list_names.NAMES.read_text(encoding="utf-8")
    assert update_rules.names() == written, "run python -m benchmarks.pages.update_rules"


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
