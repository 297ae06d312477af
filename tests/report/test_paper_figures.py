"""The paper's figures from runs of any kind: which files, and that they are pictures."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest

from gyroscope.cli import main
from gyroscope.experiments import grid, results, scheduler
from gyroscope.report import figures, paper_figures


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[results.RunResult]:
    out = tmp_path_factory.mktemp("runs")
    base = {"task": "digits", "steps": 12, "lr": "0.2"}
    attacked = grid.expand(
        {**base, "attack": "little", "byzantine": 5},
        {"rule": ["krum", "krum:m=1", "median"], "momentum": ["server", "workers"], "seed": [1, 2]},
    )
    baselines = grid.expand({**base, "rule": "average"}, {"momentum": ["server", "workers"], "seed": [1, 2]})
    outcomes = scheduler.execute(scheduler.plan([*attacked, *baselines], out), out, [None, None])
    assert all(outcome.status == "complete" for outcome in outcomes)
    return results.load(out)


@pytest.mark.slow
def test_every_figure_is_drawn_under_the_papers_name(runs: list[results.RunResult], tmp_path: Path) -> None:
    drawn: list[str] = []
    written = paper_figures.write_all(runs, tmp_path, lambda what, done, total: drawn.append(what))
    kinds = ("ratio", "straightness")
    names = {
        *(f"digits-little-f_5-lr_0.2-{place}" for place in ("at_update", "at_worker")),
        *(f"digits-little-{rule}-f_5-lr_0.2-{kind}" for rule in ("krum", "krum_m_1", "median") for kind in kinds),
        "digits-little-f_5",
    }
    assert set(drawn) == names
    assert {path.name for path in written} == {f"{name}.{ending}" for name in names for ending in ("png", "pdf", "svg")}
    for path in written:
        start = path.read_bytes()[:8]
        assert start.startswith({".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[path.suffix])
        assert path.stat().st_size > 5_000


@pytest.mark.slow
def test_the_same_runs_give_the_same_pictures(runs: list[results.RunResult], tmp_path: Path) -> None:
    some = [run for run in runs if run.config.rule in ("krum", "average")]
    first = paper_figures.write_all(some, tmp_path / "a")
    second = paper_figures.write_all(some, tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


TITLE = "cifar10, A little is enough, f = 11, bulyan, rescoring, rate 0.001, momentum at the workers"


@pytest.mark.parametrize("size", [None, (3.5, 2.6), (9.0, 5.0)])
def test_titles_stay_within_the_figure(size: tuple[float, float] | None) -> None:
    curve = figures.Curve("krum", [pandas.DataFrame({"step": [0, 1], "accuracy": [0.1, 0.9]})])
    options = figures.FigureOptions(size)
    figure = options.apply(figures.accuracy_figure([(TITLE, [curve])], options=options))
    figure.draw_without_rendering()
    box, whole = figure.axes[0].title.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1


def test_options_of_figures() -> None:
    curve = figures.Curve("krum", [pandas.DataFrame({"step": [0, 1], "accuracy": [0.1, 0.9]})])
    options = figures.FigureOptions((3.5, 2.6), "mine", (80.0, 100.0))
    figure = options.apply(figures.accuracy_figure([(TITLE, [curve])], options=options))
    assert tuple(figure.get_size_inches()) == (3.5, 2.6) and figure.axes[0].get_ylim() == (80.0, 100.0)
    assert figure.axes[0].get_title() == "" and figure.get_suptitle() == "mine"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--figure-size", "3.5"], "write 3.5x2.6"),
        (["--figure-size", "0x3"], "both numbers must be from 0.5 to 100"),
        (["--accuracies", "90-80"], "the smaller number first"),
        (["--accuracies", "all"], "write 80-100"),
    ],
)
def test_options_that_cannot_be_read(
    tmp_path: Path, options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path), "--format", "figures", *options]) == 2
    assert why in capsys.readouterr().err
