"""docs/how-to, README.md, CITATION.cff: blocks run, tables name what exists, figures are those that were measured."""

from __future__ import annotations

import csv
import datetime
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gyroscope as gy
from benchmarks.pages import update_performance
from gyroscope.simulation.data import shards

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DOCS, HOW_TO = ROOT / "docs", ROOT / "docs" / "how-to"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def page(name: str) -> str:
    return (HOW_TO / f"{name}.md").read_text(encoding="utf-8")


def part(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """Return the cells of all lines of tables but the headings and what is below them."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and not re.match(r"\|[ :|-]+$", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def table(path: str) -> list[dict[str, str]]:
    with (DOCS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


# -- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Return a function that runs a script in an empty folder, where `gyroscope` is this one and pip does nothing."""
    program = tmp_path / "bin" / "gyroscope"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gyroscope "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "folder"
    folder.mkdir()
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    variables = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": paths}

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", "set -e\npip() { :; }\n" + script]
        return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=900)

    return run


needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="the pages are for bash")

SHORTER = {
    # What takes minutes as it stands; the rest of each command stays.
    "which-defence": {
        "--attack searched": "--attack searched --steps 6",
        "--budget 12": "--budget 5 --seeds 1 --steps 8",
    },
    "slurm": {"--executor slurm": "--executor submitit-local"},
    "own-rule-and-attack": {"--workers 15 --byzantine 3": "--workers 15 --byzantine 3 --budget 5 --seeds 1 --steps 8"},
}
FILES = {
    "slurm": ("grid.toml", "toml", "[[grid]]"),
    "read-a-report": ("grid.toml", "toml", "[[grid]]"),
    "own-data": ("mydata.py", "python", "class Patients("),
    "own-rule-and-attack": ("mine.py", "python", "class Trimmed("),
}
"""The file that a page has its reader write: its name, the block's language, and a part of the block."""
NEEDED = {"slurm": ("submitit",), "tracking": ("tensorboard", "wandb", "mlflow")}
LEFT = {
    "which-defence": ["runs/mine/model.pt", "runs/search/redteam.csv"],
    "slurm": ["runs/mine/report/index.html"],
    "resume": ["runs/a/model.pt"],
    "tracking": ["runs/a/tensorboard", "runs/a/wandb", "mlflow.db"],
    "read-a-report": [
        f"runs/mine/report/{name}"
        for name in (
            "index.html",
            "report.md",
            "summary.csv",
            "report.tex",
            "pivot.tex",
            "seeds.csv",
            "comparisons.csv",
            "figures",
        )
    ],
    "own-data": ["runs/patients/model.pt", "runs/hospitals/model.pt"],
    "own-rule-and-attack": ["runs/mine/model.pt", "runs/search/redteam.html"],
    "file-a-bug": ["bug.tar.gz"],
}
"""What the commands of each page leave behind."""


def file_of(name: str) -> str:
    _, language, inside = FILES[name]
    (content,) = (block for block in blocks(page(name), language) if inside in block)
    return content


def script_of(name: str) -> str:
    """Return all commands of a page, in order, with its files written first."""
    script = "\n".join(block for block in blocks(page(name), "sh") if not block.startswith("#!"))
    if name in FILES:
        script = f"cat > {FILES[name][0]} <<'END-OF-FILE'\n{file_of(name)}END-OF-FILE\n{script}"
    for long, short in SHORTER.get(name, {}).items():
        assert long in script, f"{name} has no {long!r} any more"
        script = script.replace(long, short)
    return script


@pytest.mark.slow
@needs_bash
@pytest.mark.parametrize("name", sorted(LEFT))
def test_the_commands_of_a_page_run(
    name: str, shell: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package, reason=f"the optional extra {package} is not installed")
    done = shell(script_of(name))
    assert done.returncode == 0, done.stdout + done.stderr
    for left in LEFT[name]:
        assert (tmp_path / "folder" / left).exists(), left
    if name == "file-a-bug":
        (session,) = json.loads((tmp_path / "folder" / "runs" / "bug" / "environment.json").read_text())
        assert {"gyroscope", "python", "torch", "numpy", "processor", "platform", "threads", "command"} <= {*session}
    if name == "own-data":
        config = tomllib.loads((tmp_path / "folder" / "runs" / "hospitals" / "config.toml").read_text())
        assert (config["task"], config["shards"]) == ("mydata:Patients:classes=4", "mydata:ByHospital")
        assert "5 workers hold 160 to 160 of 800 samples" in done.stdout


def test_calls_of_ddp_have_arguments_that_exist() -> None:
    known = {*inspect.signature(gy.ddp).parameters}
    calls = re.findall(r"gy\.ddp\(model(.*?)\)", "\n".join([README, page("which-defence"), part("overview.md")]))
    assert len(calls) >= 3
    for call in calls:
        assert {*re.findall(r"(\w+)=", call)} <= known, call


def test_every_page_with_commands_is_run() -> None:
    assert {path.stem for path in HOW_TO.glob("*.md") if blocks(path.read_text(encoding="utf-8"), "sh")} == {*LEFT}


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\((.+?)\.md\)", page("index")))
    assert linked == {path.stem for path in HOW_TO.glob("*.md")} - {"index"}


def test_every_page_asks_one_question_and_begins_with_the_answer() -> None:
    for path in HOW_TO.glob("*.md"):
        title, _, answer = path.read_text(encoding="utf-8").partition("\n\n")
        if path.stem != "index":
            assert title.startswith("# ") and title.endswith("?"), path.name
            assert re.match(r"[A-Z`]", answer), f"{path.name} begins with no sentence"


def test_extras_that_are_installed_exist() -> None:
    named = [
        name
        for text in [README, *(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))]
        for extras in re.findall(r"pip install '?gyroscope\[(.+?)\]", text)
        for name in extras.split(",")
    ]
    assert named and {*named} <= {*PROJECT["optional-dependencies"]}


@pytest.mark.slow
@needs_bash
def test_the_batch_job_runs_and_goes_on(
    shell: Callable[[str], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (job,) = (block for block in blocks(page("slurm"), "sh") if block.startswith("#!"))
    short = job.replace("--threads 1", "--threads 1 --steps 6")
    assert short != job
    options = re.findall(r"^#SBATCH --([a-z-]+)=\S+$", job, re.MULTILINE)
    assert options == ["job-name", "time", "cpus-per-task", "array", "signal"]
    first, again = shell(short), shell("SLURM_ARRAY_TASK_ID=1\n" + short)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    sessions = json.loads((tmp_path / "folder" / "runs" / "seed-1" / "environment.json").read_text())
    assert len(sessions) == 1, "the second job found the run complete and did nothing"


# -- a data set of one's own -----------------------------------------------------------------------------------------


def test_a_task_of_an_installed_package_is_listed_and_found(tmp_path: Path) -> None:
    """An installation leaves this: the module, and a folder with the entry points of the page's pyproject.toml."""
    (tmp_path / "mydata.py").write_text(file_of("own-data"))
    (points,) = blocks(page("own-data"), "toml")
    groups = tomllib.loads(points)["project"]["entry-points"]
    info = tmp_path / "mydata-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mydata\nVersion: 0.1\n")
    lines = [
        line for group, found in groups.items() for line in (f"[{group}]", *(f"{k} = {v}" for k, v in found.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gyroscope", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert re.search(r"^patients .*Two hundred patients.*package mydata 0\.1$", command("list", "tasks"), re.MULTILINE)
    assert re.search(r"^by-hospital .*package mydata 0\.1$", command("list", "shardings"), re.MULTILINE)
    assert "5 workers hold 160 to 160" in command("shards", "--task", "patients", "--shards", "by-hospital")


# -- figures ---------------------------------------------------------------------------------------------------------


def heterogeneity(data: str, defence: str, placement: str = "workers") -> dict[str, float]:
    """Return the maximum accuracy by attack."""
    return {
        row["attack"]: float(row["max_accuracy_percent"])
        for row in table("heterogeneity/heterogeneity.csv")
        if (row["shards"], row["defence"], row["placement"]) == (data, defence, placement)
    }


def worst(data: str, defence: str, placement: str = "workers") -> float:
    six = ("little", "empire", "mimic", "label-flip", "searched", "searched, against")
    found = heterogeneity(data, defence, placement)
    return min(found[attack] for attack in six)


def leaderboard(setting: str, f: int, defence: str, column: str = "points_lost") -> float:
    (row,) = (
        row
        for row in table("leaderboard/leaderboard.csv")
        if (row["setting"], row["byzantine"], row["defence"]) == (setting, str(f), defence)
    )
    return float(row[column])


def test_the_decision_for_20_workers_has_the_measured_figures() -> None:
    section = page("which-defence").partition("## For example: n = 20, f = 4, non-iid")[2].partition("\n## ")[0]
    found = [[float(cell.partition(" ")[0]) for cell in cells[1:]] for cells in rows(section)[1:]]
    measured = [
        [
            heterogeneity(data, "average")["none"],
            worst(data, "fltrust"),
            worst(data, "nnm+trimmed-mean"),
            worst(data, "caf", "server"),
        ]
        for data in ("dirichlet-0.5", "dirichlet-0.1", "sorted")
    ]
    assert found == [pytest.approx(values, abs=0.051) for values in zip(*measured, strict=True)]
    final = [[cell.partition("(")[2].rstrip(")") for cell in cells[1:]] for cells in rows(section)[2:]]
    names = (r"`fltrust` \(trusts\)", r"`nnm\+trimmed-mean`", "`caf`")
    for name, where, values in zip(names, ("workers", "workers", "server"), final, strict=True):
        for data, value in zip(("dirichlet-0.5", "dirichlet-0.1", "sorted"), values, strict=True):
            marker = {"workers": f"<!-- {data} begin -->", "server": f"<summary>{data}, momentum at the server"}[where]
            table = part("heterogeneity.md").partition(marker)[2].partition("<!--")[0].partition("</details>")[0]
            assert re.search(rf"^\| {name} .* {re.escape(value)} \|$", table, re.M), (name, data, value)
    searched = re.findall(
        r"^\| `([\w.-]+)` \| `fltrust` .*? \| ([\d.]+) \| [\d.]+ \| `", part("heterogeneity.md"), re.M
    )
    assert {f"{value} %" for _, value in searched} == {"93.8 %", "95.4 %"}
    assert all(f"{value} %" in " ".join(section.split()) for _, value in searched)


def test_the_reasons_have_the_measured_figures() -> None:
    text = " ".join(page("which-defence").split())
    best = "caf-history, horizon 2"
    for line in (
        f"`caf-history` without its horizon loses {leaderboard('digits', 3, 'caf-history'):.1f} with f = 3 and "
        f"{leaderboard('digits', 6, 'caf-history'):.1f} with f = 6, `--defence best` "
        f"{leaderboard('digits', 3, best):.1f} and {leaderboard('digits', 6, best):.1f}",
        f"`caf` with horizon 2 loses {leaderboard('mnist', 12, 'caf, horizon 2'):.1f} points with f = 12, "
        f"`dnc:robust=true` {leaderboard('mnist', 24, 'dnc:robust=true'):.1f} with f = 24, where it ends at "
        f"{leaderboard('mnist', 24, 'dnc:robust=true', 'final_accuracy_percent'):.0f} %",
        f"took it to {leaderboard('dirichlet-0.1', 3, best, 'max_accuracy_percent'):.0f} % on digits",
        "`--defence best` loses {} points with f = 12 and {} with f = 24".format(
            *re.findall(r"--defence best --task mnist .*? \| ([\d.]+) \|", part("red-team.md"))
        ),
        "test loss 1.740 with `meamed`, 1.735 without a fault",
    ):
        assert line in text, line
    assert "| `gy.ddp`, `meamed`, f = 1 | 1.735 | 1.740 | 1.740 | 1.740 | 1.740 |" in part("ddp.md")


def test_what_each_costs_is_what_the_performance_page_measured() -> None:
    stated = page("which-defence").partition("<!-- costs begin -->\n")[2].partition("\n<!-- costs end -->")[0]
    assert stated == update_performance.costs(table("performance/bench.csv"))
    assert stated.count("\n| `") == 8


def test_the_label_skew_that_tells_unequal_data_apart() -> None:
    targets = torch.as_tensor(gy.tasks.parse("digits").load().train.targets)
    text = " ".join(page("which-defence").split())
    for spec in ("dirichlet:alpha=0.5", "dirichlet:alpha=0.1", "sorted"):
        dealt = shards.parse(spec).deal(targets, 20, 1)
        assert dealt is not None
        _, counts = shards.counts(dealt, targets)
        short = spec if spec == "dirichlet:alpha=0.5" else spec.removeprefix("dirichlet:")
        assert f"{shards.skew(counts):.2f} for `{short}`" in text, (spec, shards.skew(counts))


# -- names side by side ----------------------------------------------------------------------------------------------


def specs(text: str, title: str) -> dict[str, str]:
    """Return what ByzFL calls it, and the spec that the page gives."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return {cells[0]: cells[1] for cells in rows(section)[1:]}


def first_spec(cell: str) -> str:
    found = re.match(r"`(.+?)`", cell)
    assert found, cell
    return found[1]


def test_the_specs_of_the_byzfl_page_can_be_built() -> None:
    text = page("from-byzfl")
    for cell in specs(text, "Rules").values():
        assert gy.rules.parse(first_spec(cell)).min_workers(1)
    for cell in specs(text, "Before a rule").values():
        assert gy.rules.parse(first_spec(cell) + "krum").min_workers(1)
    for cell in specs(text, "Attacks").values():
        assert gy.attacks.parse(first_spec(cell).replace("1+tau", "4"))
    for theirs in ("iid", "dirichlet_niid", "gamma_similarity_niid", "extreme_niid"):
        assert f"`{theirs}`" in text and shards.parse(theirs)


def test_the_overview_has_all_names_of_the_literature() -> None:
    section = part("overview.md").partition("### Names of the literature")[2].partition("\n## ")[0]
    shown = {tuple(re.findall(r"`(.+?)`", " ".join(cells))) for cells in rows(section)[1:]}
    tables = (gy.rules.RULES, gy.rules.PREAGGREGATIONS, gy.attacks.ATTACKS, gy.tasks.TASKS, shards.SHARDINGS)
    assert shown == {(name, *kind.aliases) for each in tables for name, kind in each.items() if kind.aliases}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("Average", "average"), ("Median", "median"), ("TrMean", "trimmed-mean"), ("GeometricMedian", "geometric-median"),
     ("MultiKrum", "krum"), ("CenteredClipping", "centered-clipping"), ("MDA", "mda"), ("MoNNA", "monna"),
     ("Meamed", "meamed"), ("SMEA", "smea"), ("CAF", "caf"),
     ("NNM+Clipping+ARC+Bucketing+Krum", "nnm+clip+arc+bucketing+krum")],
)  # fmt: skip
def test_class_names_of_byzfl_are_understood(theirs: str, ours: str) -> None:
    assert str(gy.rules.parse(theirs)) == ours


def byzfl(module: str) -> Any:
    """Import a module of ByzFL: the package as a whole imports torchvision."""
    spec = importlib.util.find_spec("byzfl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs pip install --no-deps byzfl")
    empty = types.ModuleType("byzfl")
    empty.__path__ = list(spec.submodule_search_locations)
    sys.modules["byzfl"] = empty
    try:
        return importlib.import_module(f"byzfl.{module}")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "byzfl"]:
            del sys.modules[name]


@pytest.mark.parametrize("n", [11, 12])
def test_specs_give_the_numbers_of_byzfl(n: int) -> None:
    theirs, before = byzfl("aggregators.aggregators"), byzfl("aggregators.preaggregators")
    attacks = byzfl("attacks.attacks")
    text, f = page("from-byzfl"), 3
    given = torch.randn(n, 50)
    made = {
        "Average()": theirs.Average(), "Median()": theirs.Median(), "TrMean(f)": theirs.TrMean(f),
        "Krum(f)": theirs.Krum(f), "MultiKrum(f)": theirs.MultiKrum(f), "MDA(f)": theirs.MDA(f),
        "MoNNA(f, idx)": theirs.MoNNA(f, 0), "Meamed(f)": theirs.Meamed(f),
        "CenteredClipping(m, L, tau)": theirs.CenteredClipping(),
    }  # fmt: skip
    listed = specs(text, "Rules")
    for name, rule in made.items():
        ours = gy.rules.parse(first_spec(listed[f"`{name}`"]))(given, f).vector
        assert torch.allclose(ours, rule(given.clone()), atol=1e-5), name
    stages = {"NNM(f)": before.NNM(f), "Clipping(c)": before.Clipping(2.0), "ARC(f)": before.ARC(f)}
    listed = specs(text, "Before a rule")
    for name, stage in stages.items():
        ours = gy.rules.parse(first_spec(listed[f"`{name}`"]) + "average")(given, f).vector
        assert torch.allclose(ours, stage(given.clone()).mean(dim=0), atol=1e-5), name
    sent = {
        "SignFlipping()": attacks.SignFlipping(),
        "InnerProductManipulation(tau)": attacks.InnerProductManipulation(3.0),
        "ALittleIsEnough(tau)": attacks.ALittleIsEnough(1.5), "Mimic(epsilon)": attacks.Mimic(0),
        "Inf()": attacks.Inf(),
    }  # fmt: skip
    listed = specs(text, "Attacks")
    for name, attack in sent.items():
        ours = gy.attacks.parse(first_spec(listed[f"`{name}`"]).replace("1+tau", "4"))(given, 2)
        assert ours.shape == (2, 50) and torch.allclose(ours[0], attack(given.clone()).to(ours), atol=1e-5), name


def test_rules_of_the_flower_page_give_the_arrays_of_flower() -> None:
    pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")
    sys.path.append(str(ROOT / "tests" / "flower"))
    import numpy
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.serverapp import strategy as strategies
    from memory_grid import MemoryGrid, reply_with

    from gyroscope.integrations.flower import RobustStrategy

    generator = numpy.random.default_rng(1)
    start = {"weight": generator.normal(size=(3, 2)), "bias": generator.normal(size=4)}
    trained = [{name: value + generator.normal(size=value.shape) for name, value in start.items()} for _ in range(11)]

    def aggregate(strategy: Any) -> dict[str, Any]:
        grid = MemoryGrid({node + 1: lambda message: None for node in range(11)})
        arrays = ArrayRecord({name: Array(value) for name, value in start.items()})
        messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
        replies = [
            reply_with(message, trained[message.metadata.dst_node_id - 1], **{"num-examples": 7})
            for message in messages
        ]
        moved, _ = strategy.aggregate_train(1, replies)
        return {name: array.numpy() for name, array in moved.items()}

    listed = [
        cells for cells in rows(page("from-flower-strategies")) if cells[0].startswith("`Fed") or "(num_" in cells[0]
    ]
    assert len(listed) == 6
    for theirs, rule, f in listed:
        one = aggregate(eval(first_spec(theirs), {**vars(strategies)}))
        two = aggregate(RobustStrategy(first_spec(rule), f=int(f), n=11))
        assert all(numpy.allclose(one[name], two[name]) for name in start), theirs


# -- citing ----------------------------------------------------------------------------------------------------------

PAPER = "Distributed Momentum for Byzantine-resilient Learning"


def test_the_citation_file_has_what_its_format_asks_for() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= {*cff} and cff["cff-version"] == "1.2.0"
    assert str(cff["version"]) == gy.__version__ and cff["license"] == PROJECT["license"]
    assert isinstance(cff["date-released"], datetime.date)
    assert f"## [{gy.__version__}] - {cff['date-released']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert cff["authors"] == [{"name": "The Gyroscope developers"}]
    (paper,) = cff["references"]
    assert paper["title"] == PAPER and paper["type"] == "article" and paper["year"] == 2020
    assert [author["family-names"] for author in paper["authors"]] == ["El-Mhamdi", "Guerraoui", "Rouault"]
    assert all({*author} == {"family-names", "given-names"} for author in paper["authors"])


def test_the_bibtex_agrees_with_the_citation_file() -> None:
    (text,) = blocks(page("cite"), "bibtex")
    entries = {}
    for kind, key, body in re.findall(r"^@(\w+)\{([\w-]+),\n(.*?)^\}$", text, re.MULTILINE | re.DOTALL):
        fields = re.findall(r"^  (\w+) += \{(.*)\},?$", body, re.MULTILINE)
        assert len(fields) == len(body.splitlines()), f"{key} has a line that is no field"
        assert all(value.count("{") == value.count("}") for _, value in fields)
        entries[kind] = {name: value.replace("{", "").replace("}", "") for name, value in fields}
    assert {*entries} == {"article", "software"}
    assert entries["article"]["title"] == PAPER and entries["article"]["year"] == "2020"
    assert entries["article"]["author"].count(" and ") == 2
    software, cff = entries["software"], yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (software["title"], software["version"]) == (cff["title"], gy.__version__)
    assert software["author"] == "The Gyroscope developers" and software["year"] == str(cff["date-released"].year)


# -- the README ------------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_narrow() -> None:
    lines = README.splitlines()
    assert len(lines) < 150
    for line in lines:
        assert len(line) <= (200 if line.startswith(("![", "| ")) else 120), line
    for cells in rows(README):
        shown = [re.sub(r"\]\(.*?\)|[\[\]`*]", "", cell) for cell in cells]
        assert sum(map(len, shown)) <= 56 and len(cells) <= 4, cells


def test_the_readme_counts_claims_once_and_as_the_page_does() -> None:
    ((claims, hold, fail),) = re.findall(
        r"^Of (\d+) claims: (\d+) hold, (\d+) do not hold;", part("reproduction.md"), re.M
    )
    text = " ".join(README.split())
    assert int(claims) == int(hold) + int(fail)  # all of them are judged
    assert (
        text.count(f"checks {claims} claims of the paper, each by a criterion from the paper's words: {hold} hold") == 1
    )
    assert text.count(f"{hold} hold and {fail} do not") == text.count(" hold and ") == 1


def test_the_readme_s_table_has_the_measured_figures() -> None:
    def accuracy(rule: str, attack: str, f: int, place: str) -> float:
        (row,) = (
            row
            for row in table("reproduction/summary.csv")
            if (row["task"], row["rule"], row["attack"], row["byzantine"], row["momentum"], row["lr"])
            == ("mnist", rule, attack, str(f), place, "0.5")
        )
        return 100 * float(row["max_accuracy_mean"])

    def found(pattern: str, name: str = "red-team.md") -> float:
        match = re.search(pattern, part(name))
        assert match, pattern
        return float(match[1])

    honest = accuracy("average", "none", 0, "workers")
    mnist = r"--defence best --task mnist --workers 51 --byzantine {} .*? \| [\d.]+ \| ([\d.]+) /"
    unequal = r"\| `dirichlet-0\.1` \| `{}`[^|]* \| {} \| [\d.]+ \| [\d.]+ \| ([\d.]+) \|"
    best = "caf-history, horizon 2"
    average = heterogeneity("dirichlet-0.1", "average")["none"]
    measured = [
        (heterogeneity("common", "average")["none"], worst("common", "average")),
        (honest, accuracy("krum", "little", 12, "server")),
        (honest, accuracy("krum", "little", 12, "workers")),
        (honest, accuracy("krum", "empire", 24, "workers")),
        (honest, found(r"--rule dnc --task mnist --workers 51 --byzantine 2` \| `decoy` \| [\d.]+ \| ([\d.]+) /")),
        (honest, found(mnist.format(12))),
        (honest, found(mnist.format(24))),
        (found(r"\(46\.6 % instead of ([\d.]+) %"), found(r"\(([\d.]+) % instead of 51\.5 %")),
        (
            leaderboard("dirichlet-0.1", 3, best, "unattacked_percent"),
            leaderboard("dirichlet-0.1", 3, best, "max_accuracy_percent"),
        ),
        (average, worst("dirichlet-0.1", "caf", "server")),
        (average, found(unequal.format("fltrust", "workers"), "heterogeneity.md")),
    ]
    stated = re.findall(r"\[([\d.]+) → ([\d.]+)\]\(docs/", README)
    assert len(stated) == len(measured)
    for (before, after), wanted in zip(stated, measured, strict=True):
        assert (float(before), float(after)) == pytest.approx(wanted, abs=0.051)
