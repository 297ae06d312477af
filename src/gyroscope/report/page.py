"""Write the HTML report: one file with its data, its styles and its scripts, which loads nothing from the network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gyroscope._core.files import write_atomically
from gyroscope._core.optional import extra
from gyroscope.experiments.claims import ClaimVerdict
from gyroscope.experiments.results import RunResult
from gyroscope.report.heat_maps import Axes
from gyroscope.report.page_data import prepare

SCRIPTS = ("base", "claims", "panel", "charts", "table", "heatmap", "grids", "main")
TITLE = "Gyroscope: Byzantine-resilient training, measured"


def write_page(
    runs: Sequence[RunResult],
    verdicts: Sequence[ClaimVerdict],
    path: Path,
    title: str = TITLE,
    axes: Axes | None = None,
) -> Path:
    """Write the report of the runs and of the claims checked on them. An older page is replaced as a whole.

    Args:
        runs: The runs.
        verdicts: The claims; none for runs that are not the paper's.
        path: The file to write.
        title: The title of the page.
        axes: The rows and columns of the heat-maps, as for `heat_maps`.
    """
    write_atomically(path, render(prepare(runs, verdicts, title, axes)).encode())
    return path


def render(data: dict[str, Any]) -> str:
    """Return the page's HTML text."""
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
    """Return JSON that is safe between script tags, whatever text it contains."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _asset(name: str) -> str:
    return (resources.files("gyroscope.report") / "assets" / name).read_text(encoding="utf-8")
