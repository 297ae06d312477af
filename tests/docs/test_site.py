"""The documentation site: it builds without a warning, and a real browser walks all of its pages."""

from __future__ import annotations

import csv
import functools
import html.parser
import http.server
import re
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.browser import Browser

pytest.importorskip("furo", reason="the site is built by Sphinx: pip install 'gyroscope[docs]', or make docs")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (390, 1280)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does."""
    out = tmp_path_factory.mktemp("site")
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "sphinx-build" in line)
    options = line.split()[1:-2]
    assert "-W" in options, "a warning must be an error"
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ROOT / "docs", out], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


def pages(site: Path) -> list[str]:
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))


class Page(html.parser.HTMLParser):
    """The ids of a page, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.add(value or "")
            if name in ("href", "src") and value:
                self.links.add(value)


def test_every_link_and_anchor_leads_somewhere(site: Path) -> None:
    read = {site / name: Page(site / name) for name in pages(site)}
    for path, page in read.items():
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.relative_to(site)} refers to {link}"
            if parts.fragment and target in read and not link.startswith("#!"):
                assert urllib.parse.unquote(parts.fragment) in read[target].ids, f"{path.relative_to(site)}: {link}"


def test_figures_are_vectors_where_there_are_any(site: Path) -> None:
    assert 'src="_images/demo.svg"' in (site / "index.html").read_text(encoding="utf-8")
    drawn = {path.name for path in (ROOT / "docs").rglob("*.svg")} - {"favicon.svg"}
    assert drawn <= {path.name for path in (site / "_images").glob("*.svg")}


def test_a_block_that_is_a_file_has_its_name_above_it_and_no_table_falls_apart(site: Path) -> None:
    for page in (ROOT / "docs" / "tutorials").glob("*.md"):
        shown = (site / "tutorials" / f"{page.stem}.html").read_text(encoding="utf-8")
        for name in re.findall(r'^```\w+ title="([^"]+)"$', page.read_text(encoding="utf-8"), re.MULTILINE):
            assert re.search(rf'class="caption-text">{re.escape(name)}<', shown), (page.name, name)
    for page in site.rglob("*.html"):
        assert "<p>|" not in page.read_text(encoding="utf-8"), f"{page.name} shows a line of a table as text"


def test_every_document_is_a_page(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        assert (site / path.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), path


def test_all_pages_in_a_browser(site: Path, address: str, browser: Browser) -> None:
    """No page scrolls sideways on a phone or a desk, none has an error in its console, none asks another host."""
    for name in pages(site):
        browser.visit(address + name, WIDTHS[0])
        for width in WIDTHS:
            browser.size(width, 900)
            # On a phone the theme lets a box inside of the page scroll.
            boxes = "[document.documentElement, document.querySelector('.content')]"
            wide, window = browser.run(f"return [{boxes}.map(box => box.scrollWidth), window.innerWidth]")
            assert max(wide) <= window == width, f"{name} is {wide} pixels wide in a window of {window}"
        assert browser.console() == [], name
        hosts = {urllib.parse.urlsplit(url).netloc for url in browser.requests() if url.startswith("http")}
        assert hosts == {urllib.parse.urlsplit(address).netloc}, name


def test_the_search_finds_krum(address: str, browser: Browser) -> None:
    browser.visit(address + "index.html", 1280)
    field = browser.find(".sidebar-search")
    field.send_keys("krum\n")
    browser.until("return document.querySelectorAll('#search-results li').length > 3")
    assert any("rules" in text.lower() for text in browser.texts("#search-results li"))
    assert browser.console() == []


def test_light_and_dark(address: str, browser: Browser) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        browser.visit(address + "index.html", 390, scheme=scheme)
        grounds.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == "rgb(255, 255, 255)" and max(map(int, grounds[1][4:-1].split(","))) < 60


def test_a_big_table_can_be_sorted_and_filtered(site: Path, address: str, browser: Browser) -> None:
    browser.visit(address + "leaderboard.html", 1280)
    first = "document.querySelector('.table-tools').nextElementSibling.querySelector('table')"
    column = f"return [...{first}.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[2].innerText)"
    heading = browser.run(f"return {first}.tHead.rows[0].cells[2].querySelector('button')")
    browser.click(heading)
    rising = [float(text) for text in browser.run(column)]
    assert rising == sorted(rising) and len(rising) > 12
    browser.click(heading)
    assert [float(text) for text in browser.run(column)] == sorted(rising, reverse=True)
    field = browser.find(".table-tools input")
    field.send_keys("caf history")
    names = browser.run(column.replace("cells[2]", "cells[1]"))
    assert 0 < len(names) < len(rising) and all("caf-history" in name for name in names)
    assert browser.texts(".table-tools output")[0] == f"{len(names)} of {len(rising)} rows"


def test_a_big_table_has_its_csv_beside_it(site: Path) -> None:
    tables = sorted((site / "_tables").glob("leaderboard-*.csv"))
    with tables[0].open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert lines[0]["defence"] == "caf-history" and len(lines) > 12
    for name in ("zoo", "rules", "reproduction", "heterogeneity"):
        assert f'href="_tables/{name}-1.csv"' in (site / f"{name}.html").read_text(encoding="utf-8")
