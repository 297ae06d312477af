"""Format Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> str:
    """Return a table in GitHub's Markdown; the columns named in `right` are aligned to the right."""
    rule = "".join("---:|" if name in right else "---|" for name in header)
    lines = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{rule}", *lines[1:]])


def escape(text: str) -> str:
    """Return text that stays in its cell and is not taken for HTML or Markdown."""
    flat = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", flat)
