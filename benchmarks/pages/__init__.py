"""Scripts that rerun the measurements behind pages of docs/ and rewrite their tables and figures.

Run one from the checkout: `python -m benchmarks.pages.update_rules`.
"""

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
GRIDS = Path(__file__).resolve().parent
