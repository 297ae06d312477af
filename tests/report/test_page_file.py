"""The file itself: safe whatever is in it, whole or absent, and not too heavy."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pandas
import pytest

from gyroscope._core import files
from gyroscope.experiments import grid, results
from gyroscope.report import page

NASTY = "</script><img src=x onerror='window.broken=1'>&lt;{{DATA}}\u2028"


class Tags(HTMLParser):
    """What a browser would see of the page: its elements, and the text of the data's script."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.seen and self.seen[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.data += data


def read(path: Path) -> Tags:
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    tags.close()
    return tags


def test_hostile_names_stay_text(runs, verdicts, tmp_path: Path):
    renamed = [dataclasses.replace(run, config=dataclasses.replace(run.config, rule=NASTY)) for run in runs[:1]]
    hostile = dataclasses.replace(verdicts[0], statement=NASTY, note=NASTY)
    path = page.write_page(renamed, [hostile], tmp_path / "report.html", title=NASTY)
    tags = read(path)
    assert not [tag for tag, _ in tags.seen if tag == "img"]
    data = json.loads(tags.data)
    assert data["title"] == data["setups"][0]["rule"] == data["claims"][0]["note"] == NASTY


def test_nothing_is_loaded_from_elsewhere(runs, verdicts, tmp_path: Path):
    tags = read(page.write_page(runs, verdicts, tmp_path / "report.html"))
    loads = [value for tag, attributes in tags.seen for key, value in attributes.items() if key in ("src", "href")]
    assert loads and all(re.match(r"#|data:,$", value or "") for value in loads)
    (policy,) = (attributes for tag, attributes in tags.seen if attributes.get("http-equiv"))
    assert str(policy["content"]).startswith("default-src 'none'")


def test_an_older_page_is_replaced_whole_or_not_at_all(runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "new" / "report.html"
    page.write_page(runs, [], path, title="first")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        page.write_page(runs, [], path, title="second")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_the_papers_grid_stays_below_eight_megabytes(tmp_path: Path):
    """Seeds are averaged in the page, so the weight of 220 runs is that of their 44 setups with bands: two seeds."""
    random = numpy.random.default_rng(0)
    for setup in grid.with_seeds(grid.paper("mnist"), [1, 2]):
        config = setup.config.resolve()
        folder = tmp_path / "runs" / setup.name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(config.to_toml())
        (folder / "status.json").write_text('{"status": "complete", "step": 300}')
        noise = random.random((300, 3)).round(8)
        metrics = pandas.DataFrame(noise, columns=["ratio_sent", "ratio_bound", "straightness"]).rename_axis("step")
        metrics.to_csv(folder / "metrics.csv")
        pandas.DataFrame({"step": range(0, 301, 5), "accuracy": random.random(61)}).to_csv(folder / "evaluations.csv")
        shares = pandas.DataFrame(random.random((300, 51)).round(6), columns=[f"worker_{i}" for i in range(51)])
        (shares if config.rule != "median" else shares[:0]).rename_axis("step").to_csv(folder / "workers.csv")
    path = page.write_page(results.load(tmp_path / "runs"), [], tmp_path / "report.html")
    assert path.stat().st_size < 8e6
