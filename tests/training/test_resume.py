"""Kill real processes at all kinds of moments; whatever happens, the files end up as those of an undisturbed run."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
import torch
from launching import Finished, Started, gyroscope, lines, start, train_custom

import gyroscope as gy
from gyroscope.cli import main

FILES = ("config.toml", "metrics.csv", "evaluations.csv", "workers.csv", "model.pt")
KRUM = ("--rule", "krum", "--attack", "little", "--byzantine", 3, "--workers", 11, "--threads", 1)
STEPS = 120


def arguments(out: Path, *more: object, steps: int = STEPS, every: int = 7) -> tuple[object, ...]:
    return ("train", "--task", "digits", *KRUM, "--steps", steps, "--checkpoint-every", every, *more, "--out", out)


def contents(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES}


def undisturbed(out: Path, *more: object, steps: int = STEPS, every: int = 7) -> dict[str, bytes]:
    finished = gyroscope(*arguments(out, *more, steps=steps, every=every))
    assert finished.code == 0, finished.err
    return contents(out)


def checkpoint_step(out: Path) -> int:
    path = out / "checkpoint.pt"
    return int(torch.load(path, weights_only=True)["step"]) if path.exists() else 0


def status(out: Path) -> str:
    return str(json.loads((out / "status.json").read_text())["status"])


def kill_and_resume(out: Path, launch: Callable[[], Started], kills: int, seed: int) -> tuple[int, Finished]:
    """Kill a run again and again, each time a random number of rounds after its start, then let it end."""
    chance = random.Random(seed)
    done = 0
    while done < kills:
        rounds = checkpoint_step(out) + chance.randint(1, 30)
        process = launch()
        # Header and `rounds` rows: those that the killed process left and those that it computes again count alike.
        process.until(lambda rounds=rounds: (out / "config.toml").exists() and lines(out / "metrics.csv") > rounds)
        finished = process.kill()
        if finished.code == 0:  # it was faster than the kill
            return done, finished
        assert finished.code == -signal.SIGKILL
        assert status(out) == "running"
        done += 1
    return done, launch().end()


@pytest.mark.slow
@pytest.mark.parametrize("momentum", ["workers", "server"])
def test_killed_several_times_and_resumed_gives_the_bytes_of_an_uninterrupted_run(
    tmp_path: Path, momentum: str
) -> None:
    wanted = undisturbed(tmp_path / "whole", "--momentum", momentum, "--nesterov")
    out = tmp_path / "killed"

    def launch() -> Started:
        if (out / "config.toml").exists():
            return start("train", "--resume", out, "--quiet")
        return start(*arguments(out, "--momentum", momentum, "--nesterov"))

    done, finished = kill_and_resume(out, launch, kills=4, seed=len(momentum))
    assert finished.code == 0, finished.err
    assert done >= 2, "the kills came too late to mean anything"
    assert contents(out) == wanted
    assert status(out) == "complete"
    assert not (out / "checkpoint.pt").exists()
    assert len(json.loads((out / "environment.json").read_text())) >= 2, "each session is on record"


@pytest.mark.slow
def test_a_model_with_batch_norm_dropout_and_augmentation_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole, out, steps = tmp_path / "whole", tmp_path / "killed", 60
    assert Started(train_custom, str(whole), steps).end().code == 0
    done, finished = kill_and_resume(out, lambda: Started(train_custom, str(out), steps), kills=3, seed=5)
    assert finished.code == 0, finished.err
    assert done >= 2
    assert contents(out) == contents(whole)
    buffers = torch.load(out / "model.pt", weights_only=True)
    assert int(buffers["1.num_batches_tracked"]) == steps * 5


def test_killed_before_the_first_checkpoint_starts_from_the_beginning(tmp_path: Path) -> None:
    wanted = undisturbed(tmp_path / "whole", steps=40, every=1000)
    out = tmp_path / "killed"
    process = start(*arguments(out, steps=40, every=1000))
    process.until(lambda: lines(out / "metrics.csv") > 5)
    assert process.kill().code == -signal.SIGKILL
    assert not (out / "checkpoint.pt").exists()
    finished = gyroscope("train", "--resume", out)
    assert finished.code == 0 and f"{out} has no checkpoint: the run begins at step 0" in finished.err
    assert contents(out) == wanted
    assert "begins at step 0" not in gyroscope("train", "--resume", out).err  # it has ended


def test_killed_while_the_directory_is_made_can_be_resumed_or_started_again(tmp_path: Path) -> None:
    wanted = undisturbed(tmp_path / "whole", steps=8)
    begun_again = 0
    for number in range(4):
        out = tmp_path / f"killed{number}"
        process = start(*arguments(out, steps=8))
        process.until(lambda out=out, number=number: len(os.listdir(out) if out.exists() else ()) > number)
        process.kill()
        if (out / "config.toml").exists():
            finished = gyroscope("train", "--resume", out)
        else:
            begun_again += 1
            finished = gyroscope(*arguments(out, steps=8))
        assert finished.code == 0, finished.err
        assert contents(out) == wanted
    assert begun_again, "no kill landed before the configuration was written"


@pytest.mark.slow
def test_the_real_command_killed_and_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    """No helper in between: `python -m gyroscope` as its user starts it."""
    wanted = undisturbed(tmp_path / "whole")
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "gyroscope", *map(str, arguments(out))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and lines(out / "metrics.csv") <= 30:
            time.sleep(0.002)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    again = subprocess.run([sys.executable, "-m", "gyroscope", "train", "--resume", out], capture_output=True)
    assert again.returncode == 0, again.stderr
    assert contents(out) == wanted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_cleanly_says_how_to_resume_and_resuming_gives_the_same_bytes(
    tmp_path: Path, number: int
) -> None:
    wanted = undisturbed(tmp_path / "whole", every=1000)
    out = tmp_path / "stopped"
    process = start(*arguments(out, every=1000))
    assert process.until(lambda: lines(out / "metrics.csv") > 10)
    process.signal(number)
    finished = process.end()
    assert finished.code == 130
    assert f"gyroscope train --resume {out}" in finished.out
    assert "Traceback" not in finished.err
    assert status(out) == "interrupted"
    step = checkpoint_step(out)
    assert 10 <= step < STEPS
    assert json.loads((out / "status.json").read_text())["step"] == step
    assert len(pandas.read_csv(out / "metrics.csv")) == step
    assert gyroscope("train", "--resume", out).code == 0
    assert contents(out) == wanted


def test_the_status_of_a_resumed_run_is_running(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(*arguments(out))
    assert process.until(lambda: lines(out / "metrics.csv") > 10)
    process.signal(signal.SIGINT)
    assert process.end().code == 130
    before = lines(out / "metrics.csv")
    process = start("train", "--resume", out)
    assert process.until(lambda: lines(out / "metrics.csv") > before + 5)
    seen = status(out)
    process.kill()
    assert seen == "running"


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A killed run with a checkpoint and rows beyond it, and what it should become."""
    folder = tmp_path_factory.mktemp("interrupted")
    wanted = undisturbed(folder / "whole", steps=40)
    process = start(*arguments(folder / "run", steps=40))
    assert process.until(lambda: lines(folder / "run" / "metrics.csv") > 20)
    process.kill()
    assert checkpoint_step(folder / "run") > 0
    return folder / "run", wanted


@pytest.fixture
def copy(interrupted: tuple[Path, dict[str, bytes]], tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    return Path(shutil.copytree(interrupted[0], tmp_path / "run")), interrupted[1]


@pytest.mark.parametrize("torn", [b"38", b"38,0.2,1.23", b"39,0.2,0.5,1e-", b"\x00\x00\x00"])
def test_torn_last_lines_are_cut(copy: tuple[Path, dict[str, bytes]], torn: bytes) -> None:
    out, wanted = copy
    for name in ("metrics.csv", "evaluations.csv", "workers.csv"):
        with open(out / name, "ab") as file:
            file.write(torn)
    finished = gyroscope("train", "--resume", out)
    assert finished.code == 0, finished.err
    assert contents(out) == wanted


def test_unfinished_files_of_a_killed_process_do_no_harm(copy: tuple[Path, dict[str, bytes]]) -> None:
    out, wanted = copy
    for name in (".checkpoint.pt.0a1b2c.part", ".metrics.csv.new", ".model.pt.0a1b2c.part"):
        (out / name).write_bytes(b"half a fi")
    assert gyroscope("train", "--resume", out).code == 0
    assert contents(out) == wanted and not [path for path in out.iterdir() if path.suffix in (".part", ".new")]


@pytest.mark.parametrize("damage", ["truncated", "empty", "noise", "text"])
def test_a_damaged_checkpoint_is_named_and_deleting_it_helps(copy: tuple[Path, dict[str, bytes]], damage: str) -> None:
    out, wanted = copy
    path = out / "checkpoint.pt"
    whole = path.read_bytes()
    path.write_bytes(
        {"truncated": whole[: len(whole) // 2], "empty": b"", "noise": random.Random(1).randbytes(5000), "text": b"x"}[
            damage
        ]
    )
    finished = gyroscope("train", "--resume", out, "--quiet")
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert str(path) in finished.err and "damaged" in finished.err
    assert len(finished.err.strip().splitlines()) == 1, "one readable message"
    path.unlink()
    assert gyroscope("train", "--resume", out).code == 0
    assert contents(out) == wanted


@pytest.mark.parametrize(
    ("old", "new"), [("seed = 1", "seed = 2"), ('lr = "0.2"', 'lr = "0.1"'), ("steps = 40", "steps = 41")]
)
def test_a_configuration_that_was_edited_is_refused(copy: tuple[Path, dict[str, bytes]], old: str, new: str) -> None:
    out, wanted = copy
    text = (out / "config.toml").read_text()
    assert old in text, text
    (out / "config.toml").write_text(text.replace(old, new))
    finished = gyroscope("train", "--resume", out)
    name, _, value = old.partition(" = ")
    assert finished.code == 2 and "was changed since this run began" in finished.err
    assert f"{name} = {value}, not {new.partition(' = ')[2]}".replace('"', "'") in finished.err
    (out / "config.toml").write_text(text)
    assert gyroscope("train", "--resume", out).code == 0
    assert contents(out) == wanted


@pytest.mark.parametrize("name", ["metrics.csv", "workers.csv", "status.json", "environment.json"])
def test_a_missing_file_is_named_without_a_traceback(copy: tuple[Path, dict[str, bytes]], name: str) -> None:
    out, _ = copy
    (out / name).unlink()
    finished = gyroscope("train", "--resume", out, "--quiet")
    assert "Traceback" not in finished.err
    assert finished.code == 2
    assert name in finished.err


def test_resuming_a_complete_run_only_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = gyroscope(*arguments(out, steps=20))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir() if path.name != ".lock"}
    again = gyroscope("train", "--resume", out)
    assert again.code == 0
    assert again.out == first.out, "it prints the same result again"
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir() if path.name != ".lock"}
    assert after == before


@dataclasses.dataclass(frozen=True)
class InFolder(gy.tasks.NamedTask):
    """A task whose data are a file in the folder that is named."""

    name = "in-folder"
    defaults = gy.tasks.Defaults(workers=3, batch=4, steps=6)

    def load(self, folder: str | Path | None = None, progress: bool = True) -> gy.Task:
        assert folder is not None
        data = (torch.load(Path(folder) / "inputs.pt", weights_only=True), torch.arange(40) % 2)
        return gy.Task(lambda: torch.nn.Linear(3, 2), data, data, torch.nn.functional.cross_entropy, self.defaults)


def test_a_run_whose_data_have_moved_is_resumed_with_their_new_folder(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    torch.save(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), tmp_path / "old" / "inputs.pt")
    config = gy.Config(task=f"{__name__}:InFolder", data_dir=str(tmp_path / "old"))
    whole = gy.train(config)
    rounds = iter(range(6))
    gy.train(config, out=tmp_path / "run", stop=lambda: next(rounds) == 2)
    (tmp_path / "old").rename(tmp_path / "new")
    assert main(["train", "--resume", f"{tmp_path}/run", "--data-dir", f"{tmp_path}/new", "--quiet"]) == 0
    assert pandas.read_csv(tmp_path / "run" / "evaluations.csv").equals(whole.evaluations)


def test_two_processes_on_one_directory_do_not_mix(tmp_path: Path) -> None:
    wanted = undisturbed(tmp_path / "whole", steps=200)
    out = tmp_path / "run"
    process = start(*arguments(out, steps=200))
    assert process.until(lambda: lines(out / "metrics.csv") > 5)
    process.signal(signal.SIGSTOP)  # so that it is certainly still there
    try:
        for second in (("train", "--resume", out), arguments(out, "--overwrite", steps=200)):
            refused = gyroscope(*second, "--quiet")
            assert refused.code == 2
            assert "in use" in refused.err
            assert len(refused.err.strip().splitlines()) == 1
    finally:
        process.signal(signal.SIGCONT)
    assert process.end().code == 0
    assert contents(out) == wanted


def test_resuming_what_is_no_run_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    finished = gyroscope("train", "--resume", tmp_path / "nowhere")
    assert finished.code == 2 and "no run to resume" in finished.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_service_begins_its_run_and_continues_it(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "expected")
    out = tmp_path / "run"
    running = start(*arguments(out, "--continue"))
    assert running.until(lambda: (out / "checkpoint.pt").exists())
    running.kill()
    assert not (out / "model.pt").exists()
    assert gyroscope(*arguments(out, "--continue")).code == 0
    assert contents(out) == expected
    again = gyroscope(*arguments(out, "--continue"))  # the run is over: nothing happens
    assert again.code == 0 and "maximum accuracy" in again.out and contents(out) == expected
    other = gyroscope(*arguments(out, "--continue", steps=STEPS + 1))
    assert other.code == 2 and f"steps {STEPS}, not {STEPS + 1}" in other.err and "another --out" in other.err
    other = gyroscope(*arguments(out, "--continue", every=5))
    assert other.code == 2 and "--checkpoint-every 7, not 5" in other.err


@pytest.mark.parametrize("more", [(), ("--out", "a", "--overwrite"), ("--out", "a", "--resume", "a")])
def test_a_service_must_name_its_run(more: tuple[str, ...]) -> None:
    finished = gyroscope("train", "--continue", *more)
    assert finished.code == 2 and "--continue needs --out" in finished.err
