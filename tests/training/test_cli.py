"""The command line as a person meets it: help, tables, mistakes, progress, and a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from launching import Finished, gyroscope, lines, start

from gyroscope import attacks, momentum, rules
from gyroscope.cli import main
from gyroscope.experiments.red_team import RedTeam
from gyroscope.rules.base import STEERABLE
from gyroscope.runs.config import Config
from gyroscope.simulation import tasks
from gyroscope.simulation.data.shards import SHARDINGS


def check_mistake(finished: Finished, *says: str) -> None:
    assert "Traceback" not in finished.err
    assert finished.code == 2
    assert finished.out == ""
    message = finished.err.strip()
    assert message.startswith("gyroscope: error: ") and len(message.splitlines()) == 1, message
    for part in says:
        assert part in message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--rule krun", "did you mean 'krum'"),
        ("--rule krum:k=1", "Known: f, m, neighbours, squared"),
        ("--rule nmm+krum", "did you mean 'nnm'"),
        ("--rule nnm", "needs a rule after it"),
        ("--rule random:krum", "at least two rules"),
        ("--rule bucketing:s=5+krum --attack little --byzantine 2", "bucketing:s=5 leaves 5 rows"),
        ("--rule fltrust", "--trusted 100"),
        ("--attack litle --byzantine 2", "did you mean 'little'"),
        ("--attack little:faktor=2 --byzantine 2", "did you mean 'factor'"),
        ("--task minst", "did you mean 'mnist'"),
        ("--momentum serve", "did you mean 'server'"),
        ("--shards sortd", "did you mean 'sorted'"),
        ("--attack little", "set --byzantine to 1 or more"),
        ("--byzantine 2", "choose an attack, or set --declared-byzantine 2 to have"),
        ("--rule bulyan --attack little --byzantine 12", "4f + 3 = 51"),
        ("--lr 0.1,5", "0.01,1500:0.001"),
        ("--lr fast", "'fast'"),
        ("--mu 1", "below 1"),
        ("--steps 0", "--steps must be at least 1, got 0"),
        ("--declared-byzantine -1", "--declared-byzantine must be at least 0"),
        (
            "--byzantine-servers 1",
            "--byzantine-servers is for several servers, and there is one: set --servers to more",
        ),
        ("--servers 6 --byzantine-servers 1", "set both --byzantine-servers and --server-attack"),
        ("--servers 6 --adapt lr", "leave out --adapt or leave out --servers"),
        ("--rule krum --trusted 5", "--trusted 5 would change nothing"),
        ("--l2-form half_squared", "unknown --l2-form"),
        ("--adapt my", "did you mean 'mu'"),
        ("--device abacus", "'abacus'"),
        ("--device meta", "'meta'"),
        ("--device cuda:99", "cuda:99"),
        ("--device cuda:99", "torch sees"),
        ("--device mps", "'mps' cannot be used: it lacks the 64-bit floating-point numbers"),
        ("--device abacus", "use cpu, or cuda, cuda:0"),
        ("--resume nowhere", "nowhere"),
        ("--resume nowhere --lr 0.1 --overwrite", "leave out --lr, --overwrite"),
        ("--config nothing.toml", "nothing.toml"),
        ("--rule gyroscope.attacks:Little", "Little"),
        ("--task custom", "only in Python"),
    ],
)
def test_a_mistake_is_one_message_code_2_and_leaves_nothing_behind(tmp_path: Path, options: str, says: str) -> None:
    check_mistake(gyroscope("train", *options.split(), cwd=tmp_path), says)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ('seed = "1"', "seed must be a whole number"),
        ("steps = 10.5", "steps must be a whole number"),
        ("nesterov = 1", "nesterov must be true or false"),
        ("rule = 3", "rule must be text"),
        ("mu = true", "mu must be a number"),
        ('ruel = "krum"', "did you mean 'rule'"),
        ("[training]\nsteps = 3", "training"),
        ("steps 3", "line 1"),
        ('lr = "0.1,5"', "out of place"),
        ("lr = nan", "positive and finite"),
        ("declared_byzantine = -1", "mine.toml: declared_byzantine must be at least 0"),
    ],
)
def test_a_mistake_in_a_configuration_file_is_one_message(tmp_path: Path, toml: str, says: str) -> None:
    (tmp_path / "mine.toml").write_text(toml)
    check_mistake(gyroscope("train", "--config", "mine.toml", cwd=tmp_path), says)
    assert os.listdir(tmp_path) == ["mine.toml"]


def test_a_configuration_that_is_no_text_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    check_mistake(gyroscope("train", "--config", "mine.toml", cwd=tmp_path), "mine.toml")


@pytest.mark.parametrize(
    "options",
    ["", "trian", "train --steps many", "train --nothing", "train --steps", "list rule", "demo --seeds x"],
)
def test_what_the_grammar_does_not_know_is_code_2_with_usage(tmp_path: Path, options: str) -> None:
    finished = gyroscope(*options.split(), cwd=tmp_path)
    assert finished.code == 2
    assert finished.err.startswith("usage: gyroscope") and "error: " in finished.err
    assert "Traceback" not in finished.err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("train --seed abc", "argument --seed: must be a whole number, got 'abc'"),
        ("train --seed 1.5", "argument --seed: must be a whole number, got '1.5'"),
        ("train --mu much", "argument --mu: must be a number, got 'much'"),
        ("sweep map --jobs two", "argument --jobs: must be a whole number, got 'two'"),
        ("work 127.0.0.1:1 --number first", "argument --number: must be a whole number, got 'first'"),
    ],
)
def test_a_number_that_is_none_is_told_what_it_must_be(tmp_path: Path, options: str, says: str) -> None:
    finished = gyroscope(*options.split(), cwd=tmp_path)
    assert finished.code == 2 and finished.err.splitlines()[-1].endswith(says)


@pytest.mark.parametrize("seed", [-1, 0, 2**64, 10**100])
def test_any_whole_number_is_a_seed(tmp_path: Path, seed: int) -> None:
    options = ("--seed", seed, "--steps", 1, "--workers", 3, "--shards", "iid", "--quiet", "--out", "run")
    assert gyroscope("train", *options, cwd=tmp_path).code == 0
    assert Config.load(tmp_path / "run" / "config.toml").seed == seed
    assert gyroscope("train", "--resume", "run", cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "train --batch 100000000000000 --out run",
            "not enough memory for 800000000000000 bytes: lower --batch",
        ),
        ("train --threads 99999999999999", "--threads must be at most 1,024"),
        ("shards --out /proc/shards.png", "cannot use /proc/shards.png: No such file or directory"),
        ("work 127.0.0.1:1 --number -1", "--number must be at least 0"),
        ("sweep map --devices ,", "names no device"),
        ("async --device mps", "'mps' cannot be used"),
        ("serve --device mps --port 0", "'mps' cannot be used"),
    ],
)
def test_what_cannot_be_had_is_one_message(tmp_path: Path, options: str, says: str) -> None:
    finished = gyroscope(*options.split(), cwd=tmp_path)
    assert finished.code == 2 and "Traceback" not in finished.err
    last = finished.err.splitlines()[-1]
    assert last.startswith("gyroscope: error: ") and says in last


def test_a_demo_without_seeds_is_refused(tmp_path: Path) -> None:
    check_mistake(gyroscope("demo", "--seeds", 0, cwd=tmp_path), "--seeds")


# -- help and tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ([], ["train", "list", "demo", "--version"]),
        (
            ["train"],
            [
                "--config",
                "--out",
                "--resume",
                "--overwrite",
                "--quiet",
                "--tensorboard",
                "--wandb",
                "--mlflow",
                "examples:",
            ],
        ),
        (["train"], ["--" + name.replace("_", "-") for name in vars(Config())]),
        (["list"], ["rules", "preaggregations", "mixtures", "attacks", "tasks", "placements", "shardings"]),
        (["demo"], ["--out", "--seeds"]),
    ],
)
def test_help_exits_0_and_mentions_every_option(command: list[str], mentions: list[str]) -> None:
    finished = gyroscope(*command, "--help")
    assert finished.code == 0 and finished.err == ""
    for option in mentions:
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", finished.out), option
    assert max(map(len, finished.out.splitlines())) <= 120


@pytest.mark.parametrize(
    ("what", "table"),
    [
        ("rules", rules.RULES),
        ("preaggregations", rules.PREAGGREGATIONS),
        ("attacks", attacks.ATTACKS),
        ("tasks", tasks.TASKS),
        ("shardings", SHARDINGS),
    ],
)
def test_list_shows_every_entry_with_its_parameters_and_its_paper(what: str, table: dict[str, type]) -> None:
    finished = gyroscope("list", what)
    assert finished.code == 0 and finished.err == ""
    header, *entries = finished.out.splitlines()
    assert all(title in header for title in ("name", "what", "parameters", "from"))
    assert [entry.split()[0] for entry in entries] == list(table), "one line each, in the table's order"
    for entry, kind in zip(entries, table.values(), strict=True):
        assert kind.summary in entry and kind.paper in entry  # type: ignore[attr-defined]
    if what == "rules":
        bulyan = entries[list(table).index("bulyan")]
        assert "n >= 4f + 3" in bulyan and "rescore=false" in bulyan
        for entry, kind in zip(entries, table.values(), strict=True):
            assert ("an adversary may steer it" in entry) == (kind.guarantee in STEERABLE)  # type: ignore[attr-defined]
    if what == "preaggregations":
        assert "s=2" in entries[1]
    if what == "attacks":
        assert "factor=1.5" in entries[0] and "factor=1.1" in entries[1]


def test_list_shows_the_placements_of_research_after_the_core_s() -> None:
    header, *entries = gyroscope("list", "placements").out.splitlines()
    assert header.split() == ["name", "what", "from"]
    names = [entry.split()[0] for entry in entries]
    assert names[: len(momentum.PLACEMENTS)] == list(momentum.PLACEMENTS) and "adaptive" in names


def test_list_shows_how_a_mixture_is_written() -> None:
    finished = gyroscope("list", "mixtures")
    assert finished.code == 0 and [line.split()[0] for line in finished.out.splitlines()[1:]] == list(rules.MIXTURES)
    assert "random:RULE/RULE/..." in finished.out


def test_the_command_and_the_module_are_the_same() -> None:
    command = shutil.which("gyroscope", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("the command is not installed beside this Python")
    direct, module = (
        subprocess.run([*begin, "list", "rules"], capture_output=True, text=True)
        for begin in ([command], [sys.executable, "-m", "gyroscope"])
    )
    assert (direct.returncode, direct.stdout, direct.stderr) == (module.returncode, module.stdout, module.stderr)
    assert direct.returncode == 0 and "krum" in direct.stdout


def test_version() -> None:
    import gyroscope as gy

    assert gyroscope("--version").out.strip() == f"gyroscope {gy.__version__}"


# -- progress ----------------------------------------------------------------------------------------------------------

SMALL = ("--steps", 30, "--workers", 7, "--threads", 1)


def test_quiet_prints_the_result_and_no_progress(tmp_path: Path) -> None:
    finished = gyroscope("train", *SMALL, "--quiet", "--out", "run", cwd=tmp_path)
    assert finished.err == ""
    assert re.fullmatch(r"maximum accuracy [\d.]+%, final accuracy [\d.]+% -> run\n", finished.out)


def test_without_a_terminal_progress_is_plain_lines_on_standard_error(tmp_path: Path) -> None:
    finished = gyroscope("train", *SMALL, "--out", "run", cwd=tmp_path)
    first, *others = finished.err.splitlines()
    assert first == "digits average, no attack, momentum workers: steps 0 to 30"
    assert re.fullmatch(r"step 30/30  loss \S+  ratio \S+  accuracy [\d.]+%  [\d.]+ steps/s", others[-1])
    assert "\x1b" not in finished.err and "\r" not in finished.err
    assert finished.out.startswith("maximum accuracy")


def test_only_what_means_a_field_becomes_an_option() -> None:
    from gyroscope.runs.command_options import reworded

    assert reworded("use workers or server; lower f to 3 or use at least 5 workers") == (
        "use workers or server; lower f to 3 or use at least 5 workers"
    )
    assert reworded("set declared_byzantine_servers = 2, or lower worker_quorum to 3") == (
        "set --declared-byzantine-servers 2, or lower --worker-quorum to 3"
    )
    for path in ("/mnt/data_dir/run", "mypkg/data_dir.py", "data_dir/run is there"):
        assert reworded(path) == path
    assert reworded("my.module:l2_form in 'data_dir'") == "my.module:l2_form in 'data_dir'"


def test_a_run_of_its_own_name_says_what_is_not_usual_in_it(tmp_path: Path) -> None:
    unusual = ("--rule", "zeno", "--trusted", 10, "--shards", "dirichlet:alpha=0.2", "--adapt", "lr")
    finished = gyroscope("train", *SMALL, *unusual, cwd=tmp_path)
    title = "digits zeno, no attack, momentum workers, shards dirichlet:alpha=0.2, trusted 10, adapt lr: steps 0 to 30"
    assert finished.err.splitlines()[0] == title
    name = "digits-zeno-none-f_0-workers-shards_dirichlet_alpha_0.2-trusted_10-adapt_lr-seed_1"
    assert os.listdir(tmp_path / "runs") == [name]


def on_a_terminal(*arguments: object, cwd: Path, columns: int, interrupt: Path | None = None) -> tuple[int, str]:
    """Run the command on a real pseudo-terminal; everything that it showed, without colours."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = start(*arguments, cwd=cwd, tty=os.ttyname(follower))
    shown = bytearray()
    os.set_blocking(leader, False)

    def read() -> bool:
        try:
            while chunk := os.read(leader, 65536):
                shown.extend(chunk)
        except OSError:
            pass
        if interrupt and lines(interrupt) > 10:
            process.signal(signal.SIGINT)
            return True
        return False

    process.until(read)
    interrupt = None
    process.until(read)
    finished = process.end()
    read()
    os.close(follower)
    os.close(leader)
    return finished.code, re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())


@pytest.mark.parametrize("columns", [150, 80])
def test_on_a_terminal_a_bar_shows_step_loss_accuracy_ratio_and_speed(tmp_path: Path, columns: int) -> None:
    code, shown = on_a_terminal(
        "train", "--steps", 60, "--workers", 11, "--rule", "krum", "--attack", "little", "--byzantine", 3,
        "--threads", 1, "--out", "run", cwd=tmp_path, columns=columns,
    )  # fmt: skip
    assert code == 0
    bar, result = shown.split("maximum accuracy")
    for fact in (r"60/60", r"loss [\d.]+", r"accuracy [\d.]+%", r"ratio [\d.]+", r"[\d.]+ steps/s"):
        assert re.search(fact, bar), f"{fact} not in {bar!r}"
    if columns > 100:
        final = re.findall(r"final accuracy ([\d.]+%)", result)
        assert re.findall(r"accuracy ([\d.]+%)", bar)[-1:] == final, "what stays on the screen is the end of the run"


@pytest.mark.parametrize("what", ["rules", "attacks"])
def test_a_list_fits_the_terminal_and_is_complete(tmp_path: Path, what: str) -> None:
    code, shown = on_a_terminal("list", what, cwd=tmp_path, columns=80)
    assert code == 0 and max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    words = " ".join(shown.split())
    table: dict[str, type] = {"rules": rules.RULES, "attacks": attacks.ATTACKS}[what]  # type: ignore[assignment]
    for name, kind in table.items():
        assert name in words and kind.summary in words and kind.paper in words  # type: ignore[attr-defined]
    if what == "rules":
        assert "needs n >= 4f + 3; parameters m=none, rescore=false" in words


def test_an_interruption_on_a_terminal_says_how_to_resume(tmp_path: Path) -> None:
    code, shown = on_a_terminal(
        "train", "--steps", 5000, "--workers", 7, "--threads", 1, "--out", "run",
        cwd=tmp_path, columns=120, interrupt=tmp_path / "run" / "metrics.csv",
    )  # fmt: skip
    assert code == 130
    assert "gyroscope train --resume run" in shown
    assert "Traceback" not in shown


def test_a_second_interruption_stops_at_once_without_a_traceback(tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Rounds so long that the second Ctrl-C comes while the first one still waits for the end of the round.
    process = start("train", "--steps", 50, "--batch", 8000, "--threads", 1, "--out", out, "--evaluate-every", 1)
    assert process.until(lambda: lines(out / "metrics.csv") > 1)
    process.signal(signal.SIGINT)
    assert process.until(lambda: "stopping" in (process.files / "err").read_text())
    process.signal(signal.SIGINT)
    finished = process.end()
    assert "Traceback" not in finished.err
    assert finished.code == 130


def test_interrupting_the_demo_gives_no_traceback(tmp_path: Path) -> None:
    process = start("demo", cwd=tmp_path)
    assert process.until(lambda: lines(tmp_path / "demo-runs" / "no-attack-server-seed_1" / "metrics.csv") > 5)
    process.signal(signal.SIGINT)
    finished = process.end()
    assert "Traceback" not in finished.err
    assert finished.code == 130


# -- the demo and MNIST ------------------------------------------------------------------------------------------------


def test_mnist_learns_within_ten_steps(tmp_path: Path) -> None:
    folder = os.environ.get("GYROSCOPE_DATA")
    if folder is None:
        pytest.skip("MNIST is not here: set GYROSCOPE_DATA to the folder that holds it")
    import pandas

    out = tmp_path / "run"
    finished = gyroscope(
        "train", "--task", "mnist", "--rule", "krum", "--attack", "little", "--byzantine", 12, "--lr", 0.5,
        "--steps", 10, "--data-dir", folder, "--out", out, "--quiet",
    )  # fmt: skip
    if finished.code == 2 and "mnist" in finished.err.lower():
        pytest.skip(f"MNIST is not in GYROSCOPE_DATA: {finished.err.splitlines()[0]}")
    assert finished.code == 0, finished.err
    evaluations = pandas.read_csv(out / "evaluations.csv")
    assert list(evaluations["samples"]) == [10_000] * 3
    assert evaluations["accuracy"].iloc[-1] > 0.5 > evaluations["accuracy"].iloc[0]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("trian", "did you mean 'train'?"),
        ("train --ruel krum", "unknown option --ruel: did you mean --rule?"),
        ("report runs --fromat latex", "unknown option --fromat: did you mean --format?"),
        ("list attack", "did you mean 'attacks'?"),
        ("train --xyzzy", "unknown option --xyzzy: see --help"),
    ],
)
def test_an_unknown_command_or_option_is_answered_with_the_nearest(
    line: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2 and hint in capsys.readouterr().err


def test_an_unknown_format_of_a_report_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs", "--format", "html,latx"]) == 2
    assert "unknown format 'latx': did you mean 'latex'?" in capsys.readouterr().err


def test_names_of_the_literature_go_in_everywhere_and_the_usual_ones_come_out(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('rule = "NNM+CWTM"\nattack = "ALIE"\nbyzantine = 3\nworkers = 11\nsteps = 2\n')
    (tmp_path / "grid.toml").write_text(
        '[base]\nsteps = 2\nworkers = 11\nbyzantine = 3\n[grid]\nrule = ["rfa", "comed"]\nattack = ["ipm", "SF"]\n'
    )
    for line in (
        "train --config run.toml --out a --quiet",
        "train --config run.toml --rule multi-krum --attack stranger:attacks=foe/labelflip --out b --quiet",
        "sweep grid.toml --out c --quiet --jobs 1",
        "sweep grid.toml --out c --quiet --jobs 1 --only comed",
    ):
        finished = gyroscope(*line.split(), cwd=tmp_path)
        assert finished.code == 0, finished.err
    found: dict[str, set[tuple[str, str]]] = {}
    for path in (*tmp_path.glob("[ab]/config.toml"), *tmp_path.glob("c/*/config.toml")):
        config = Config.load(path)
        found.setdefault(path.relative_to(tmp_path).parts[0], set()).add((config.rule, config.attack))
    assert found["a"] == {("nnm+trimmed-mean", "little")}
    assert found["b"] == {("krum", "stranger:attacks=(empire/label-flip)")}
    assert found["c"] == {(r, a) for r in ("geometric-median", "median") for a in ("empire", "sign-flip")}
    searched = Config(rule="cc", byzantine=1)
    assert RedTeam(searched, tmp_path / "d", searched, extra=("LIE:factor=3",)).candidates()[0] == "little:factor=3"
