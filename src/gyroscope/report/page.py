"""The HTML report: one file that holds its data, its styles and its scripts, and asks nothing of the network."""

from __future__ import annotations

import html
import json
import os
import re
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gyroscope._core.optional import extra
from gyroscope.experiments.results import RunResult
from gyroscope.report.page_data import Verdict, prepare

SCRIPTS = ("base", "claims", "panel", "charts", "table", "heatmap", "main")
TITLE = "Gyroscope: Byzantine-resilient training, measured"


def write_page(runs: Sequence[RunResult], verdicts: Sequence[Verdict], path: str | Path, title: str = TITLE) -> Path:
    """Write the report of the runs and of the claims checked on them. An older page is replaced as a whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = render(prepare(runs, verdicts, title)).encode()
    write_whole(path, content)
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as any other new file, not mkstemp's private one
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def render(data: dict[str, Any]) -> str:
    """The page's text."""
    with extra("lab", "the HTML report"):
        plotly = resources.files("plotly")
    parts = {
        "TITLE": html.escape(str(data["title"])),
        "STYLE": _asset("page.css"),
        "PLOTLY": (plotly / "package_data" / "plotly.min.js").read_text(encoding="utf-8"),
        "DATA": embedded(data),
        "SCRIPT": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    }
    # One pass, so that a part that happens to contain another's mark is left alone.
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def embedded(data: Any) -> str:
    """JSON that is safe between script tags, whatever text is in it."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (resources.files("gyroscope.report") / "assets" / name).read_text(encoding="utf-8")
