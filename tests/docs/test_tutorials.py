"""The tutorials run as notebooks in a real kernel, print what their pages show, and draw their pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages import update_tutorials
from benchmarks.pages.update_tutorials import FOLDER, NAMES, notebook, notebook_file, page, pictures, printed, shown
from gyroscope._core.errors import DataError
from gyroscope.simulation.data import sources

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MNIST = "gyroscope reproduce mnist"


def check_alike(found: str, wanted: str) -> None:
    """Assert that two outputs are equal but for numbers, which differ a little between processors."""
    assert _NUMBER.sub("#", found) == _NUMBER.sub("#", wanted)
    for one, other in zip(_NUMBER.findall(found), _NUMBER.findall(wanted), strict=True):
        assert float(one) == pytest.approx(float(other), abs=0.1 if float(other) < 1 else 5.0)


def test_outputs_that_differ_are_seen() -> None:
    check_alike("accuracy 97.2%, 0.93", "accuracy 96.0%, 0.95")
    for other in ("accuracy 91.0%, 0.93", "accuracy 97.2%, 0.7", "loss 97.2%, 0.93", "accuracy 97.2%, 0.93, more"):
        with pytest.raises(AssertionError):
            check_alike(other, "accuracy 97.2%, 0.93")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_tutorial_runs_and_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    if name == "flower":
        pytest.importorskip("ray", reason="FLOWER'S SIMULATION IS NOT TESTED: pip install 'gyroscope[flower]'")
    made = notebook(page(name).read_text(encoding="utf-8"))
    whole = True
    if name == "reproduce-the-paper" and not _mnist_is_there():
        first = next(number for number, cell in enumerate(made.cells) if cell.source.startswith(f"%%bash\n{_MNIST}"))
        made.cells, whole = made.cells[:first], False  # its first half needs no MNIST
    outputs = [(cell, text, reproducible) for cell, text, reproducible in shown(made)]
    assert outputs
    update_tutorials.run(made, tmp_path)
    for cell, text, reproducible in outputs:
        if reproducible:
            check_alike(printed(cell), text)
        else:
            assert printed(cell).strip(), cell.source
    if whole:
        for picture in pictures(name):
            assert (tmp_path / picture).stat().st_size > 5000, picture


def _mnist_is_there() -> bool:
    try:
        sources.load_raw("mnist")
    except DataError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_is_what_jupytext_makes_of_the_page(name: str) -> None:
    path = FOLDER / "notebooks" / f"{name}.ipynb"
    remedy = "run python -m benchmarks.pages.update_tutorials --notebooks"
    assert path.read_text(encoding="utf-8") == notebook_file(name), remedy
    kinds = [cell.cell_type for cell in notebook(page(name).read_text(encoding="utf-8")).cells]
    assert kinds.count("code") > 4 and kinds[0] == "markdown"


def test_the_index_lists_every_tutorial() -> None:
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == sorted([*NAMES, "index"])
    for name in NAMES:
        assert f"({name}.md)" in text and f"(notebooks/{name}.ipynb)" in text and pictures(name), name
