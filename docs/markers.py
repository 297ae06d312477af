"""What the scripts here share: what they write of a page stands between markers, and the words around it stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def replace(page: Path, parts: Mapping[str, str]) -> None:
    """Put each text between `<!-- name begin -->` and `<!-- name end -->`."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), parts), encoding="utf-8")


def replaced(text: str, parts: Mapping[str, str]) -> str:
    """What the page will be."""
    for name, content in parts.items():
        before, _, rest = text.partition(f"<!-- {name} begin -->")
        _, _, after = rest.partition(f"<!-- {name} end -->")
        text = f"{before}<!-- {name} begin -->\n{content}\n<!-- {name} end -->{after}"
    return text
