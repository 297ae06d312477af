"""Tasks are measured by a metric of their own, named with its direction wherever it is shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gyroscope as gy
from gyroscope._core.errors import ConfigError, DataError, RunDirectoryError, UnknownNameError
from gyroscope.experiments import results
from gyroscope.report.page_data import prepare
from gyroscope.report.paper_figures import write_all
from gyroscope.report.summary_tables import write_csv, write_markdown
from gyroscope.simulation.evaluation import TaskTest
from gyroscope.simulation.task_metric import METRICS, TaskMetric, class_hits, known_metric, metric_for, squared_errors

SETTINGS = gy.tasks.Defaults(workers=5, batch=8, steps=6, evaluate_every=3, lr="0.05")


def regression(columns: tuple[int, ...], **changes: object) -> gy.Task:
    """A straight line with noise; targets (N,) or (N, 1)."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    y = (x @ torch.tensor([1.0, -2.0, 0.5])).reshape(200, *columns)
    model = (lambda: nn.Linear(3, 1)) if columns else (lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))
    return gy.Task(model, (x[:150], y[:150]), (x[150:], y[150:]), F.mse_loss, SETTINGS, **changes)  # type: ignore[arg-type]


class Bigrams(nn.Module):
    """A language model of one table: (B, T) -> (B, V, T), or (B, T, V)."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(7, 7), last

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.table(x)
        return outputs if self.last else outputs.transpose(1, 2)  # type: ignore[no-any-return]


def language(last: bool, metric: str | None) -> gy.Task:
    text = torch.randint(7, (60, 12), generator=torch.Generator().manual_seed(0))
    loss = (lambda x, y: F.cross_entropy(x.flatten(0, 1), y.flatten())) if last else F.cross_entropy
    data = (text[:, :-1], text[:, 1:])
    return gy.Task(lambda: Bigrams(last), data, data, loss, SETTINGS, metric=metric)


@pytest.mark.parametrize("columns", [(), (1,)], ids=["one-dimensional", "(N, 1)"])
def test_a_regression_is_measured_by_its_mean_squared_error(columns: tuple[int, ...], tmp_path: Path) -> None:
    result = gy.train(gy.Config(task="custom", rule="median"), task=regression(columns), out=tmp_path / "run")
    assert result.metric == METRICS["mse"]
    assert list(result.evaluations.columns) == ["step", "mse", "samples", "test_loss"]
    assert torch.allclose(torch.tensor(result.evaluations["mse"]), torch.tensor(result.evaluations["test_loss"]))
    assert result.best == result.evaluations["mse"].min() < result.evaluations["mse"].iloc[0]
    with pytest.raises(ConfigError, match="its metric is mse"):
        _ = result.max_accuracy
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["metric"], status["better"], status["best"]) == ("mse", "lower", result.best)


@pytest.mark.parametrize("last", [False, True], ids=["(B, V, T)", "(B, T, V)"])
@pytest.mark.parametrize("metric", [None, "loss", "perplexity"])
def test_a_language_model_has_a_sensible_metric(last: bool, metric: str | None, tmp_path: Path) -> None:
    task = language(last, metric)
    result = gy.train(gy.Config(task="custom", rule="krum", declared_byzantine=1), task=task, out=tmp_path / "run")
    assert result.metric.name == {None: "accuracy", "loss": "test_loss"}.get(metric, metric)
    rows = pandas.read_csv(tmp_path / "run" / "evaluations.csv")
    if metric is None:
        assert rows["accuracy"].between(0, 1).all()
        assert (rows["correct"] == (rows["accuracy"] * 60 * 11).round()).all()
    elif metric == "perplexity":
        assert rows["perplexity"].tolist() == pytest.approx([math.exp(loss) for loss in rows["test_loss"]])
    assert result.final == rows[result.metric.name].iloc[-1]
    again = gy.resume(tmp_path / "run", task=task)
    assert (again.best, again.final) == (result.best, result.final)


def test_an_interrupted_run_continues_with_its_metric(tmp_path: Path) -> None:
    config = gy.Config(task="custom", rule="median", checkpoint_every=2)
    whole = gy.train(config, task=regression((1,)), out=tmp_path / "whole")
    rounds = iter(range(99))
    first = gy.train(config, task=regression((1,)), out=tmp_path / "run", stop=lambda: next(rounds) == 3)
    assert first.status == "interrupted"
    resumed = gy.resume(tmp_path / "run", task=regression((1,)))
    assert resumed.evaluations.equals(whole.evaluations)


def test_a_metric_of_ones_own(tmp_path: Path) -> None:
    mae = gy.TaskMetric("mae", "lower", lambda x, y: (x - y).abs())
    task = regression((1,), metric=mae, name="line")
    result = gy.train(gy.Config(task="custom", rule="median"), task=task, out=tmp_path / "run")
    test = TaskTest.of(task)
    found = test.row(0, result.model, 0)["mae"]
    assert found == pytest.approx(
        float((result.model(test.samples.inputs) - test.samples.targets).detach().abs().mean())
    )
    (run,) = results.load(tmp_path)
    assert (run.metric.name, run.metric.better) == ("mae", "lower")
    assert run.best == result.best


def test_reports_name_the_metric_and_its_direction(tmp_path: Path) -> None:
    task = regression((1,))
    for seed, attack in ((1, "none"), (1, "sign-flip"), (2, "none"), (2, "sign-flip")):
        byzantine = 0 if attack == "none" else 1
        rule = "average" if attack == "none" else "median"
        config = gy.Config(task="custom", rule=rule, attack=attack, byzantine=byzantine, seed=seed)
        gy.train(config, task=task, out=tmp_path / "runs" / f"{attack}-{seed}")
    runs = results.load(tmp_path / "runs")
    text = write_markdown(runs, [], tmp_path / "report.md").read_text()
    assert "mse (lower is better)" in text and "maximum (%)" not in text
    rows = pandas.read_csv(write_csv(runs, tmp_path / "report.csv"))
    attacked, clean = rows[rows["attack"] != "none"].iloc[0], rows[rows["attack"] == "none"].iloc[0]
    assert attacked["drop"] == pytest.approx(attacked["best_mean"] - clean["best_mean"], abs=2e-4)
    page = prepare(runs, [], "title")
    assert {setup["metric"]["words"] for setup in page["setups"]} == {"mse"}
    drawn = next(setup for setup in page["setups"] if setup["attack"] == "none")
    assert drawn["best"][0] == pytest.approx(clean["best_mean"], rel=1e-4)


def test_runs_of_another_metric_are_another_setup(tmp_path: Path) -> None:
    for seed, metric in ((1, "mse"), (2, "loss")):
        config = gy.Config(task="custom", rule="median", seed=seed)
        gy.train(config, task=regression((1,), metric=metric), out=tmp_path / metric)
    setups = results.group(results.load(tmp_path))
    assert [(setup.metric.name, len(setup.runs)) for setup in setups] == [("test_loss", 1), ("mse", 1)]
    assert len(prepare(results.load(tmp_path), [], "title")["setups"]) == 2
    assert write_all(results.load(tmp_path), tmp_path / "figures") == [], "the paper's figures show accuracies"


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_run_is_not_resumed_with_another_metric(interrupted: bool, tmp_path: Path) -> None:
    config = gy.Config(task="custom", rule="median", checkpoint_every=2)
    gy.train(config, task=regression((1,), metric="loss"), out=tmp_path / "run", stop=lambda: interrupted)
    with pytest.raises(RunDirectoryError, match="is measured by test_loss, and the task by mse"):
        gy.resume(tmp_path / "run", task=regression((1,)))


def test_a_share_of_ones_own_is_read_back_in_percent(tmp_path: Path) -> None:
    close = gy.TaskMetric("close", "higher", lambda x, y: ((x - y).abs() < 1).float(), percent=True)
    result = gy.train(
        gy.Config(task="custom", rule="median"), task=regression((1,), metric=close), out=tmp_path / "run"
    )
    assert result.best_text().endswith("%")
    (run,) = results.load(tmp_path)
    assert run.metric.percent and run.metric.better == "higher"


def test_an_infinite_loss_is_null_in_json(tmp_path: Path) -> None:
    huge = gy.TaskMetric("huge", "lower", of_loss=lambda loss: math.inf)
    gy.train(gy.Config(task="custom", rule="median"), task=regression((1,), metric=huge), out=tmp_path / "run")
    text = (tmp_path / "run" / "status.json").read_text()
    assert json.loads(text)["best"] is None and "Infinity" not in text


def test_targets_that_count_for_nothing_are_not_counted() -> None:
    outputs, targets = torch.rand(6, 4, 5), torch.randint(4, (6, 5))
    targets[::2] = -100
    counted = class_hits(outputs, targets)
    assert counted.numel() == 15
    model, test = nn.Identity(), TaskTest(gy.Split(outputs, targets), METRICS["accuracy"], F.cross_entropy)
    row = test.row(0, model, 0)
    assert row["accuracy"] == pytest.approx(float(counted.double().mean()))
    assert row["correct"] == int(counted.sum())
    assert row["test_loss"] == pytest.approx(float(F.cross_entropy(outputs, targets)))


@pytest.mark.parametrize("classes", [1, 3])
def test_the_classes_that_a_model_gives_are_counted(classes: int) -> None:
    outputs = torch.zeros(30, 5)
    outputs[range(30), torch.arange(30) % classes] = 1.0
    test = TaskTest(gy.Split(outputs, torch.randint(5, (30,))), METRICS["accuracy"], F.cross_entropy)
    assert test.row(0, nn.Identity(), 0)["predicted_classes"] == classes


def test_a_cost_is_a_number_also_where_both_sides_are_lost() -> None:
    loss = METRICS["loss"]
    assert loss.cost(math.inf, math.inf) == 0 and loss.cost(1.0, math.inf) == math.inf
    assert loss.cost(math.nan, 1.0) == 0


def test_what_does_not_fit_is_one_message() -> None:
    with pytest.raises(DataError, match=r"outputs \(8,\) for torch.int64 targets \(8,\).*metric='mse'"):
        class_hits(torch.zeros(8), torch.zeros(8, dtype=torch.int64))
    with pytest.raises(DataError, match=r"outputs \(8, 1\) for torch.float32 targets \(8,\)"):
        class_hits(torch.zeros(8, 1), torch.zeros(8))
    with pytest.raises(DataError, match=r"outputs \(8, 3\) for targets \(8,\)"):
        squared_errors(torch.zeros(8, 3), torch.zeros(8))
    with pytest.raises(UnknownNameError, match="accuracy"):
        metric_for("acuracy", torch.zeros(1))
    with pytest.raises(ConfigError, match="'higher' or 'lower'"):
        TaskMetric("mae", "up")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="letters, digits and underscores"):
        TaskMetric("mean error", "lower", squared_errors)
    with pytest.raises(ConfigError, match="either scores or of_loss"):
        TaskMetric("mae", "lower")
    for taken in ("accuracy", "loss", "lr", "test_loss", "samples"):
        with pytest.raises(ConfigError, match="another column has it"):
            metric_for(TaskMetric(taken, "lower", squared_errors), torch.zeros(1))
    with pytest.raises(DataError, match="not their mean, got one number"):
        TaskMetric("mae", "lower", lambda x, y: (x - y).mean()).batch_total(torch.zeros(3), torch.zeros(3))
    with pytest.raises(DataError, match=r"64 scores \(8, 8\) for 8 targets \(8,\) and outputs \(8, 1\).*reshape"):
        TaskMetric("mae", "lower", lambda x, y: (x - y).abs()).batch_total(torch.zeros(8, 1), torch.zeros(8))
    with pytest.raises(DataError, match=r"outputs \(4, 2, 3\) for targets \(4, 3, 2\)"):
        squared_errors(torch.zeros(4, 2, 3), torch.zeros(4, 3, 2))


def test_scores_are_per_target_per_sample_or_of_some_targets() -> None:
    outputs, targets = torch.rand(4, 5, 3), torch.randint(5, (4, 3))
    for scores, count in (
        (class_hits, 12),
        (lambda x, y: class_hits(x, y).reshape(4, 3).float().mean(dim=1), 4),
        (lambda x, y: class_hits(x, y)[y.flatten() == 0], int((targets == 0).sum())),
    ):
        assert TaskMetric("own", "higher", scores).batch_total(outputs, targets)[1] == count  # type: ignore[arg-type]


def test_shapes_of_classes() -> None:
    outputs, targets = torch.rand(4, 5, 3), torch.randint(5, (4, 3))
    expected = (outputs.argmax(dim=1) == targets).flatten()
    assert torch.equal(class_hits(outputs, targets), expected)
    assert torch.equal(class_hits(outputs.transpose(1, 2), targets), expected)


def test_better_is_a_direction() -> None:
    accuracy, loss = METRICS["accuracy"], METRICS["loss"]
    assert accuracy.best([0.1, math.nan, 0.5]) == 0.5 and loss.best([2.0, 1.0]) == 1.0
    assert math.isnan(loss.best([math.nan]))
    assert accuracy.cost(0.9, 0.8) == pytest.approx(10) and loss.cost(1.0, 1.5) == pytest.approx(0.5)
    assert accuracy.text(0.975) == "97.50%" and loss.text(1.7341) == "1.734"
    assert known_metric("bleu", "higher").better == "higher"


def test_the_text_ships_with_python(tmp_path: Path) -> None:
    config = gy.Config(task="text:width=8,layers=1", steps=4, workers=4, batch=4, evaluate_every=4, rule="median")
    result = gy.train(config, out=tmp_path / "run")
    assert result.metric.name == "perplexity"
    first, last = result.evaluations["perplexity"].iloc[[0, -1]]
    assert 1 < last < first < 1000
    assert "perplexity" in (tmp_path / "run" / "evaluations.csv").read_text()
