"""Rewrite the generated parts of a page: each stands between two markers, and the text around them stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gyroscope.experiments import results


def replace(page: Path, parts: Mapping[str, str]) -> None:
    """Write each part of the page between its markers `<!-- name begin -->` and `<!-- name end -->`."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """Return the page's text with each part put between its markers."""
    for name, content in parts.items():
        before, _, rest = text.partition(f"<!-- {name} begin -->")
        _, _, after = rest.partition(f"<!-- {name} end -->")
        text = f"{before}<!-- {name} begin -->\n{content}\n<!-- {name} end -->{after}"
    return text


def runs_in(folder: Path) -> list[results.RunResult]:
    """Return the folder's runs.

    Raises:
        SystemExit: There is none: a page made of them would be empty.
    """
    if found := results.load(folder):
        return found
    raise SystemExit(f"there is no run in {folder}, and the page would be empty")
