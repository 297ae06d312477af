"""Rewrite the tables of docs/rules.md, and what `gyroscope list` shows, from what the rules and the others declare.

python -m benchmarks.pages.update_rules
"""

from __future__ import annotations

import json
from typing import get_args

from benchmarks.pages import DOCS, markers
from gyroscope.cli import list_names
from gyroscope.rules import MIXTURES, PREAGGREGATIONS, RULES, Rule
from gyroscope.rules.base import STEERABLE, Property

N, F = 25, 5
"""The workers and Byzantine workers for which the tables show the guarantees' factors."""


def parts() -> dict[str, str]:
    """Return the tables of the page by the name of their marker."""
    return {
        "rules": rules(),
        "properties": properties(),
        "unsupported": unsupported(),
        "preaggregations": preaggregations(),
        "mixtures": mixtures(),
    }


def rules() -> str:
    lines = ["| rule | what | needs | from |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {rule.summary} | {rule.needs} | {rule.paper} |" for name, rule in RULES.items()]
    return "\n".join(lines)


def preaggregations() -> str:
    lines = ["| pre-aggregation | what | needs | a rule loses | from |", "|---|---|---|---|---|"]
    for name, stage in PREAGGREGATIONS.items():
        lost = "; ".join(f"{one} ({why})" for one, why in stage.unsupported.items()) or "-"
        lines.append(f"| `{name}` | {stage.summary} | {stage.needs} | {lost} | {stage.paper} |")
    return "\n".join(lines)


def mixtures() -> str:
    lines = ["| mixture | what |", "|---|---|"]
    return "\n".join(lines + [f"| `{order}:RULE/RULE/...` | {summary} |" for order, summary in MIXTURES.items()])


def properties() -> str:
    wanted = get_args(Property)
    lines = [f"| rule | guarantee | {' | '.join(wanted)} | reads |", "|---|---|" + ":-:|" * len(wanted) + "---|"]
    for name, rule in RULES.items():
        has = " | ".join("" if one in rule.unsupported else "✓" for one in wanted)
        lines.append(f"| `{name}` | {guarantee(rule())} | {has} | {rule.reads} |")
    return "\n".join(lines)


def guarantee(rule: Rule) -> str:
    """Return in a few words what the rule guarantees for any f rows."""
    factor = rule.bound_factor(N, F)
    words = {
        "range": "honest range" + (f", widened by {factor:.3g} of its width" if factor else ""),
        "distance": f"within {factor:.3g} R of the honest mean",
        "norm": f"no longer than {f'{factor:.3g} times ' if factor != 1 else ''}the longest honest row",
        "finite": "finite",
        "none": "none",
    }[rule.guarantee]
    return words + ", may be steered" * (rule.guarantee in STEERABLE)


def unsupported() -> str:
    lines = ["| rule | unsupported | because |", "|---|---|---|"]
    lines += [f"| `{name}` | {one} | {why} |" for name, rule in RULES.items() for one, why in rule.unsupported.items()]
    return "\n".join(lines)


def names() -> str:
    """Return the content of the file from which `gyroscope list` reads."""
    return (
        json.dumps({what: list_names.listing(what) for what in list_names.KINDS}, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    markers.replace(DOCS / "rules.md", parts())
    list_names.NAMES.write_text(names(), encoding="utf-8")
