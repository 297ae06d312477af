"""The numbers that the page shows, against pandas on the run directories themselves."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy
import pandas
import pytest

from gyroscope.experiments import results
from gyroscope.report import page_data, page_layout
from gyroscope.runs.config import Config


@pytest.fixture(scope="module")
def page(runs, verdicts):
    return page_data.prepare(runs, verdicts, "a title")


def chosen(runs, **settings):
    return [run for run in runs if all(getattr(run.config, key) == value for key, value in settings.items())]


def entry(page, **settings):
    (found,) = (s for s in page["setups"] if all(s[key] == value for key, value in settings.items()))
    return found


LITTLE = {"rule": "krum", "attack": "little", "lr": "0.2", "momentum": "server"}


def table(runs, name, column):
    """A column of every seed side by side, read from the files."""
    frames = [pandas.read_csv(run.path / name).set_index("step")[column] for run in runs]
    assert len(frames) == 2
    return pandas.concat(frames, axis=1)


def test_header_counts(page, runs):
    assert (page["runs"], page["seeds"], page["tasks"]) == (46, [1, 2], ["digits"])
    assert len(page["setups"]) == 23
    assert page["diverged"] == 2
    assert page["verdicts"] == {"holds": 1, "does not hold": 1, "partly measured": 0, "not measured": 1}
    facts = dict(page["environment"])
    session = json.loads((runs[0].path / "environment.json").read_text())[0]
    assert facts["processor"] == session["processor"] and facts["torch"] == session["torch"]
    assert facts["threads"] == "1"


def test_accuracy_over_seeds(page, runs):
    accuracy = 100 * table(chosen(runs, **LITTLE), "evaluations.csv", "accuracy")
    setup = entry(page, **LITTLE)
    assert setup["measured"]["x"] == accuracy.index.tolist()
    assert setup["measured"]["mean"] == pytest.approx(accuracy.mean(axis=1).tolist(), rel=1e-4)
    assert setup["measured"]["deviation"] == pytest.approx(accuracy.std(axis=1).tolist(), rel=1e-4)
    assert setup["best"] == pytest.approx([accuracy.max().mean(), accuracy.max().std()], rel=1e-4)
    assert setup["final"] == pytest.approx([accuracy.iloc[-1].mean(), accuracy.iloc[-1].std()], rel=1e-4)


def test_drop_is_against_the_average_with_the_same_rate_and_placement(page, runs):
    baseline = chosen(runs, rule="average", attack="none", lr="0.2", momentum="server")
    reference = 100 * table(baseline, "evaluations.csv", "accuracy").max().mean()
    setup = entry(page, **LITTLE)
    assert setup["drop"] == pytest.approx(reference - setup["best"][0], abs=1e-3)
    assert entry(page, rule="average", attack="none", lr="0.05", momentum="workers")["drop"] == 0


def test_ratio_and_straightness_over_seeds(page, runs):
    for settings in (LITTLE, {**LITTLE, "momentum": "workers"}):
        members, setup = chosen(runs, **settings), entry(page, **settings)
        ratio = table(members, "metrics.csv", "ratio_sent")
        assert setup["ratio"]["mean"] == pytest.approx(ratio.mean(axis=1).tolist(), rel=1e-4)
        assert setup["ratio"]["low"] == pytest.approx(ratio.min(axis=1).tolist(), rel=1e-4)
        assert setup["ratio"]["high"] == pytest.approx(ratio.max(axis=1).tolist(), rel=1e-4)
        assert setup["bound"] == pytest.approx(members[0].metrics["ratio_bound"].iloc[0], rel=1e-4)
        straightness = table(members, "metrics.csv", "straightness")
        assert setup["straightness"]["mean"] == pytest.approx(straightness.mean(axis=1).tolist(), rel=1e-4)


def test_heat_map_has_the_mean_shares(page, runs):
    members, setup = chosen(runs, **LITTLE), entry(page, **LITTLE)
    shares = pandas.concat([pandas.read_csv(run.path / "workers.csv") for run in members]).groupby("step").mean()
    assert numpy.allclose(numpy.array(setup["heat"]["z"]), shares.to_numpy().T, rtol=1e-2)
    assert len(setup["heat"]["z"]) == setup["workers"] == 23
    byzantine = shares[[f"worker_{worker}" for worker in range(18, 23)]].sum(axis=1).mean()
    assert setup["heat"]["byzantine_share"] == pytest.approx(byzantine, rel=1e-3)


def test_a_rule_without_shares_has_no_heat_map(page):
    assert all((setup["heat"] is None) == (setup["rule"] == "median") for setup in page["setups"])


def test_a_diverged_setup_is_shown_and_marked(page):
    setup = entry(page, attack="nan")
    assert setup["status"] == "diverged" and setup["diverged"] == 2
    assert [(end["seed"], end["x"]) for end in setup["ends"]] == [(1, 0), (2, 0)]
    assert setup["measured"]["x"] == [0]
    block = next(block for block in page["charts"]["measured"] if "nan" in block["title"])
    assert block["labels"] == ["average", "average, no attack"]


def test_blocks_of_four_as_in_the_paper(page):
    titles = [block["title"] for block in page["charts"]["measured"]]
    assert titles == [
        "digits · little · f = 5 of 23 workers", "digits · empire · f = 5 of 23 workers",
        "digits · nan · f = 5 of 23 workers", "digits · no attack",
    ]  # fmt: skip
    block = page["charts"]["measured"][0]
    assert [chart["title"] for chart in block["charts"]] == [
        "lr 0.2 · momentum at the server", "lr 0.2 · momentum at the workers",
        "lr 0.05 · momentum at the server", "lr 0.05 · momentum at the workers",
    ]  # fmt: skip
    for chart in block["charts"]:
        assert [curve["label"] for curve in chart["curves"]] == ["krum", "median", "bulyan", "average, no attack"]
    ratios = page["charts"]["ratio"][0]
    assert [chart["title"] for chart in ratios["charts"]] == [
        "lr 0.2 · little", "lr 0.2 · empire", "lr 0.05 · little", "lr 0.05 · empire",
    ]  # fmt: skip
    assert [curve["label"] for curve in ratios["charts"][0]["curves"]] == ["server", "workers"]
    assert ratios["charts"][3]["curves"] == []


def test_curves_differ_without_colour(page):
    for kind in page["charts"].values():
        for block in kind:
            looks = [(page["styles"][label]["dash"], page["styles"][label]["marker"]) for label in block["labels"]]
            assert len(set(looks)) == len(looks)
    many = page_layout.styles([f"rule {number}" for number in range(30)])
    assert len({tuple(style.values()) for style in many.values()}) == 30


def test_configuration_runs_the_setup_again(page, runs, tmp_path: Path):
    text = entry(page, **LITTLE)["toml"]
    (tmp_path / "config.toml").write_text(text)
    assert Config.load(tmp_path / "config.toml").experiment() == chosen(runs, **LITTLE)[0].config.experiment()
    assert text.startswith("# seeds 1, 2\n")


# -- made-up runs ----------------------------------------------------------------------------------------------------


def copies(runs, **changes):
    """The runs, read from the same files under another configuration."""
    return [dataclasses.replace(run, config=dataclasses.replace(run.config, **changes)) for run in runs]


def test_any_setting_that_varies_becomes_part_of_the_label(runs):
    members = chosen(runs, **LITTLE)
    baselines = chosen(runs, rule="average", attack="none", lr="0.2", momentum="server")
    varied = [*members, *baselines, *copies(members, batch=8, mu=0.5), *copies(members, declared_byzantine=7)]
    page = page_data.prepare(varied, [], "")
    assert page["extras"] == ["batch", "declared_byzantine", "mu"]
    (block,) = (block for block in page["charts"]["measured"] if "little" in block["title"])
    assert set(block["labels"]) == {
        "krum, batch=4, declared_byzantine=5, mu=0.9",
        "krum, batch=8, declared_byzantine=5, mu=0.5",
        "krum, batch=4, declared_byzantine=7, mu=0.9",
        "average, no attack, batch=4, declared_byzantine=0, mu=0.9",
    }
    drops = {tuple(setup["extras"]): setup["drop"] for setup in page["setups"] if setup["rule"] == "krum"}
    assert drops[8, 5, 0.5] is None  # there is no unattacked average with these settings
    assert drops[4, 5, 0.9] is not None


def test_what_only_the_task_sets_is_no_part_of_a_label(runs):
    members = chosen(runs, **LITTLE)
    page = page_data.prepare([*members, *copies(members, task="mnist", workers=51, batch=83)], [], "")
    assert page["extras"] == []
    assert page["tasks"] == ["mnist", "digits"]


def test_a_single_seed_has_no_deviation(runs):
    page = page_data.prepare(chosen(runs, **LITTLE, seed=1), [], "")
    (setup,) = page["setups"]
    assert setup["best"][1] is None and "deviation" not in setup["measured"] and "low" not in setup["ratio"]


def test_seeds_that_stop_early_leave_the_mean_to_the_others():
    long = pandas.DataFrame({"step": [0, 5, 10], "accuracy": [0.1, 0.5, 0.9]})
    curve = page_data.curve([long, long.iloc[:1].assign(accuracy=0.3)], "accuracy", scale=100.0)
    assert curve["x"] == [0, 5, 10]
    assert curve["mean"] == pytest.approx([20, 50, 90])
    assert curve["deviation"] == pytest.approx([math.sqrt(200), 0, 0], rel=1e-4)


def test_long_series_are_thinned_and_rounded():
    steps = numpy.arange(3001)
    frame = pandas.DataFrame({"step": steps, "straightness": steps / 7})
    curve = page_data.curve([frame], "straightness")
    assert len(curve["x"]) <= page_data.MAX_POINTS + 1
    assert curve["x"][:2] == [0, curve["every"]] and curve["x"][-1] == 3000
    assert curve["mean"][-1] == 428.57
    wide = pandas.DataFrame({"step": steps, "worker_0": 0.25, "worker_1": 0.75})
    heat = page_data.heat_map([wide], 1)
    assert heat is not None
    assert len(heat["x"]) <= page_data.MAX_COLUMNS and heat["z"][1][0] == 0.75
    assert heat["byzantine_share"] == 0.75


def test_numbers_that_json_lacks_become_null():
    frame = pandas.DataFrame({"step": [0, 1, 2], "ratio_sent": [math.inf, math.nan, 2.0]})
    assert page_data.curve([frame], "ratio_sent")["mean"] == [None, None, 2.0]
    assert page_data.significant([123456.7, -math.inf, 1e-30]) == [123460.0, None, 1e-30]


def test_a_run_without_evaluations_is_no_accident(runs, tmp_path: Path):
    (run,) = chosen(runs, **LITTLE, seed=1)
    for name in ("metrics.csv", "evaluations.csv", "workers.csv"):
        (tmp_path / name).write_text((run.path / name).read_text().splitlines()[0] + "\n")
    page = page_data.prepare([results.RunResult(tmp_path, run.config, "diverged", 0)], [], "")
    (setup,) = page["setups"]
    assert setup["best"] == [None, None] and setup["measured"]["x"] == [] and setup["ends"] == []
    json.dumps(page, allow_nan=False)


def test_no_runs_at_all():
    page = page_data.prepare([], [], "")
    assert page["setups"] == [] and page["charts"]["measured"] == []
