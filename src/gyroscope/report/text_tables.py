"""Format tables as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from gyroscope._core.files import write_atomically


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = (), escape: bool = False
) -> str:
    """Return a table in GitHub's Markdown; the columns named in `right` are aligned to the right.

    With `escape` every text stays in its cell and is not taken for HTML or Markdown.
    """
    rule = "".join("---:|" if name in right else "---|" for name in header)
    lines = ["| " + " | ".join(map(_escaped, row) if escape else row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{rule}", *lines[1:]])


def _escaped(text: str) -> str:
    flat = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", flat)


def write_csv(path: Path, rows: Iterable[Iterable[object]]) -> Path:
    """Write rows, the header first, as a CSV file that is replaced as a whole."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    write_atomically(path, buffer.getvalue().encode())
    return path
