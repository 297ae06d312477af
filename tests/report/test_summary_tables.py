"""The Markdown and CSV tables."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pandas
import pytest

from gyroscope.report.summary_tables import write_csv, write_markdown


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_csv_has_a_row_per_setup_that_pandas_reads(runs, tmp_path: Path):
    frame = pandas.read_csv(write_csv(runs, tmp_path / "new" / "summary.csv"), keep_default_na=False, na_values=[""])
    assert len(frame) == 23
    picked = frame[(frame.rule == "bulyan") & (frame.attack == "empire") & (frame.momentum == "workers")]
    maxima = pandas.Series(
        [
            run.evaluations["accuracy"].max()
            for run in runs
            if (run.config.rule, run.config.attack, run.config.momentum) == ("bulyan", "empire", "workers")
        ]
    )
    assert picked["max_accuracy_mean"].item() == pytest.approx(maxima.mean(), abs=1e-6)
    assert picked["max_accuracy_std"].item() == pytest.approx(maxima.std(), abs=1e-6)
    assert picked["seeds"].item() == picked["complete"].item() == 2
    reference = frame[(frame.attack == "none") & (frame.momentum == "workers") & (frame.lr == 0.2)]
    drop = 100 * (reference["max_accuracy_mean"].item() - picked["max_accuracy_mean"].item())
    assert picked["drop_points"].item() == pytest.approx(drop, abs=1e-3)
    assert frame[frame.attack == "nan"]["diverged"].item() == 2


def test_markdown_has_both_tables(runs, verdicts, tmp_path: Path):
    text = write_markdown(runs, verdicts, tmp_path / "report.md").read_text(encoding="utf-8")
    assert "3 claims: 1 holds, 1 does not hold, 1 not measured." in text
    rows = [cells(line) for line in text.splitlines() if line.startswith("|")]
    claims, accuracies, unmeasured = rows[:4], rows[4:29], rows[29:]
    assert {len(row) for row in claims + unmeasured} == {9} and {len(row) for row in accuracies} == {11}
    assert [row[1] for row in unmeasured[2:]] == ["cifar-krum"]
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == ["# Report", "## Claims", "## Results", "## Claims that were not measured"]
    assert text.index("All runs: task = digits") < text.index("## Claims")
    assert claims[3][:2] == ["✗ does not hold", "workers-win"]
    assert len(accuracies) == 2 + 23
    assert accuracies[2][:6] == ["digits", "little", "5", "0.2", "server", "krum"]
    assert re.fullmatch(r"\d+\.\d ± \d+\.\d", accuracies[2][6])
    assert [row[-1] for row in accuracies[2:] if row[1] == "nan"] == ["diverged"]


def test_markdown_keeps_text_in_its_cell(runs, verdicts, tmp_path: Path):
    hostile = dataclasses.replace(verdicts[0], statement="a | b\n<img src=x> *c* \\")
    text = write_markdown(runs, [hostile], tmp_path / "report.md").read_text(encoding="utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| ✓"))
    assert cells(row)[2] == r"a \| b &lt;img src=x> \*c\* \\"


def test_no_runs_give_empty_tables(tmp_path: Path):
    assert write_csv([], tmp_path / "summary.csv").read_text() == ""
    assert "0 runs" in write_markdown([], [], tmp_path / "report.md").read_text()
