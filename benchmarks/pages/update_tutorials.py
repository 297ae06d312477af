"""Run the tutorials of docs/tutorials, and write what follows from them: outputs in the pages, pictures, notebooks.

python -m benchmarks.pages.update_tutorials              # all of them
python -m benchmarks.pages.update_tutorials flower       # one
python -m benchmarks.pages.update_tutorials --notebooks  # runs nothing: the notebooks only, after a change of words

A tutorial is one Markdown file. The site shows it, jupytext makes a notebook of it, and tests/docs/test_tutorials.py
runs the notebook. A block of `python` or `bash` is a cell; one with `title="train.py"` is a file, which the reader
saves. A block of `text` right behind a cell holds what the cell prints to standard output; the test compares numbers
with a tolerance, and not at all where its title is "for example", because they are others in every run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

from benchmarks.pages import DOCS

FOLDER = DOCS / "tutorials"
NAMES = (
    "see-an-attack",
    "own-training-loop",
    "ddp-with-adamw",
    "server-for-strangers",
    "write-a-rule",
    "reproduce-the-paper",
    "flower",
)
PORTS = ("29517", "29518", "8001")
"""The ports in the pages; a run takes others, which are free."""
_HEADER = """---
jupyter:
  kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
"""Not in the pages, where it would be shown. Without it jupytext takes the language of most blocks, perhaps bash."""
_MARK = "GYROSCOPE_TUTORIAL"
"""A variable by which the processes of a run are known."""
_OUTPUT = re.compile(r"\A\n*```text(?P<title> title=\"for example\")?\n(?P<text>.*?)```", re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?=\S)")
_BLOCKS = re.compile(r"(```(?:python|bash)[^\n]*\n(?:(?!```).)*```\n\n```text[^\n]*\n)(?:(?!```).)*```", re.DOTALL)
"""A cell and what the page shows of its output."""
_PICTURE = re.compile(r"\]\(images/(\S+?)\)")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
"""A kernel asks its programs for colours."""
_PATIENCE = 300
"""Seconds for a cell, whatever else the machine does."""


def page(name: str) -> Path:
    """Return the file of a tutorial."""
    return FOLDER / f"{name}.md"


def notebook(text: str) -> Any:
    """Return the notebook of a page: jupytext's, in which a block with a title writes the file of that name."""
    made = jupytext.reads(_HEADER + text, fmt="md")
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
        title = cell.metadata.pop("title", None)
        if cell.cell_type == "code" and title:
            cell.source = f"%%writefile {title}\n{cell.source}"
    made.metadata = {"kernelspec": made.metadata["kernelspec"]}
    return made


def notebook_file(name: str) -> str:
    """Return the content of docs/tutorials/notebooks/NAME.ipynb, whose links lead where those of the page do."""
    made = notebook(page(name).read_text(encoding="utf-8"))
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = _LINK.sub("../", cell.source)
    return str(nbformat.writes(made, version=nbformat.NO_CONVERT)) + "\n"


def run(made: Any, folder: Path) -> None:
    """Execute the cells of a notebook in a folder, with a real kernel, and end all processes that they started."""
    ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source = _replaced(cell.source, ports)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "SOURCE_DATE_EPOCH": "0",
        "MATPLOTLIBRC": str(folder / ".matplotlibrc"),
        _MARK: str(folder),
    }
    (folder / ".matplotlibrc").write_text("svg.hashsalt: gyroscope\n")  # the same bytes for the same picture
    client = NotebookClient(made, timeout=_PATIENCE, resources={"metadata": {"path": str(folder)}})
    try:
        client.execute(env=environment)
    finally:
        _end_processes(folder)
    back = {free: port for port, free in ports.items()}
    for cell in made.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output.text = _replaced(output.text, back)


def printed(cell: Any) -> str:
    """Return what an executed cell has printed to standard output."""
    texts = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    return "".join(f"{line.rstrip()}\n" for line in _COLOUR.sub("", "".join(texts)).strip("\n").split("\n"))


def shown(made: Any) -> Iterator[tuple[Any, str, bool]]:
    """Yield each cell whose output the page shows, with this output, and whether its numbers are reproducible."""
    for cell, behind in zip(made.cells, made.cells[1:], strict=False):
        found = _OUTPUT.match(behind.source) if behind.cell_type == "markdown" else None
        if cell.cell_type == "code" and found:
            yield cell, found["text"], found["title"] is None


def with_outputs(text: str, made: Any) -> str:
    """Return a page in which each shown output is what the executed notebook's cell has printed."""
    outputs = [printed(cell) for cell, *_ in shown(made)]
    assert len(_BLOCKS.findall(text)) == len(outputs), (
        "a block that the page shows as an output is none in the notebook"
    )
    remaining = iter(outputs)
    return _BLOCKS.sub(lambda found: f"{found[1]}{next(remaining)}```", text)


def pictures(name: str) -> list[str]:
    """Return the files of the pictures in a page, which its cells draw."""
    return _PICTURE.findall(page(name).read_text(encoding="utf-8"))


def update(name: str) -> None:
    """Run a tutorial, and write its outputs into the page, and its pictures."""
    started = time.monotonic()
    text = page(name).read_text(encoding="utf-8")
    made = notebook(text)
    with tempfile.TemporaryDirectory() as folder:
        run(made, Path(folder))
        for picture in pictures(name):
            shutil.copy(Path(folder, picture), FOLDER / "images" / picture)
    page(name).write_text(with_outputs(text, made), encoding="utf-8")
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def _replaced(text: str, words: dict[str, str]) -> str:
    return re.sub(rf"\b({'|'.join(words)})\b", lambda found: words[found[1]], text)


def _free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [str(probe.getsockname()[1]) for probe in probes]


def _end_processes(folder: Path) -> None:
    """End what a tutorial has left running: servers, if a cell failed before the one that stops them."""
    mark = f"{_MARK}={folder}".encode()
    for kind, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 1.0)):
        end = time.monotonic() + seconds
        left = _processes(mark)
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, kind)
        while left and time.monotonic() < end:
            time.sleep(0.1)
            left = _processes(mark)


def _processes(mark: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):  # elsewhere than on Linux there is none
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *NAMES], default=[], metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--notebooks", action="store_true", help="run nothing, write the notebooks only")
    options = parser.parse_args()
    (FOLDER / "images").mkdir(exist_ok=True)
    (FOLDER / "notebooks").mkdir(exist_ok=True)
    for name in options.names or NAMES:
        if not options.notebooks:
            update(name)
        (FOLDER / "notebooks" / f"{name}.ipynb").write_text(notebook_file(name), encoding="utf-8")


if __name__ == "__main__":
    main()
