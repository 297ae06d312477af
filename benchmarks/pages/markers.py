"""Rewrite the generated parts of a page: each stands between two markers, and the text around them stays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


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
