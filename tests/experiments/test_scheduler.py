"""Real pools of real processes: finishing, resuming, crashing, retrying."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from interrupting import heed_interrupts

from gyroscope.cli import main
from gyroscope.experiments import estimate, grid, pool, results, scheduler, slurm
from gyroscope.runs import run_dir
from gyroscope.runs.config import ResolvedConfig

TABLES = (run_dir.METRICS, run_dir.EVALUATIONS, run_dir.WEIGHTS, run_dir.MODEL)
BASE = {"task": "digits", "attack": "little", "byzantine": 5, "steps": 12}


def small(**choices: list[object]) -> list[grid.Setup]:
    return grid.expand(BASE, choices or {"rule": ["krum", "median"], "seed": [1, 2]})


def contents(out: Path) -> dict[str, bytes]:
    return {
        f"{path.parent.name}/{path.name}": path.read_bytes()
        for table in TABLES
        for path in sorted(out.glob(f"*/{table}"))
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    outcomes = scheduler.execute(scheduler.plan(small(), out), out, ["cpu", "cpu"])
    assert [outcome.status for outcome in outcomes] == ["complete"] * 4
    return out


def test_what_is_complete_is_not_run_again(finished: Path) -> None:
    planned = scheduler.plan(small(), finished)
    assert len(planned.complete) == 4 and planned.jobs == ()
    assert scheduler.execute(planned, finished, ["cpu"]) == []


def test_completeness_goes_by_the_configuration_not_by_the_folder(finished: Path) -> None:
    changed = [dataclasses.replace(s, config=dataclasses.replace(s.config, lr="0.1")) for s in small()]
    planned = scheduler.plan(changed, finished)
    assert len(planned.jobs) == 4  # the same names, other runs
    taken = {path.parent for path in finished.glob(f"*/{run_dir.CONFIG}")}
    assert not taken & {job.path for job in planned.jobs}
    renamed = [dataclasses.replace(s, name=f"other-{s.name}") for s in small()]
    assert len(scheduler.plan(renamed, finished).complete) == 4  # other names, the same runs


def test_results_group_the_seeds_of_a_setup(finished: Path) -> None:
    setups = results.group(results.load(finished))
    assert sorted((setup.config.rule, setup.seeds) for setup in setups) == [("krum", [1, 2]), ("median", [1, 2])]
    assert all(0.1 < setup.mean(lambda run: run.max_accuracy) <= 1 for setup in setups)
    (krum,) = (setup for setup in setups if setup.config.rule == "krum")
    assert len(krum.runs[0].metrics) == 12 and "worker_22" in krum.runs[0].weights


@pytest.mark.slow
def test_a_run_that_fails_is_tried_twice_and_reported_while_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shaky.py").write_text(
        "import dataclasses, pathlib\n"
        "from gyroscope import rules\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Shaky(rules.Median):\n"
        "    def aggregate(self, rows, f):\n"
        f"        with open({str(tmp_path / 'tries')!r}, 'a') as tries: tries.write('x')\n"
        "        raise ArithmeticError('bad weather')\n"
    )
    setups = grid.expand({**BASE, "steps": 3}, {"rule": ["median"], "seed": [1, 2]})
    broken = dataclasses.replace(setups[0].config, rule="shaky:Shaky", seed=3)
    jobs = (pool.Job("broken", broken, tmp_path / "out" / "broken"), *scheduler.plan(setups, tmp_path / "out").jobs)
    monkeypatch.syspath_prepend(tmp_path)  # worker processes inherit it
    outcomes = scheduler.execute(scheduler.RunPlan((), jobs), tmp_path / "out", ["cpu"])
    assert {outcome.job.name: outcome.status for outcome in outcomes} == {
        "broken": "failed", **{setup.name: "complete" for setup in setups},
    }  # fmt: skip
    assert (tmp_path / "tries").read_text() == "xx"
    assert "bad weather" in (tmp_path / "out" / "failures" / "broken.log").read_text()


@pytest.mark.slow
def test_a_killed_worker_process_is_replaced_and_its_run_made_again(tmp_path: Path, finished: Path) -> None:
    killed: list[int] = []

    def on_event(event: pool.JobProgress | pool.JobOutcome) -> None:
        if isinstance(event, pool.JobProgress) and not killed and event.step >= 1:
            children = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True).stdout.split()
            workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            if workers:
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

    outcomes = scheduler.execute(scheduler.plan(small(), tmp_path), tmp_path, ["cpu"], on_event)
    assert killed
    assert [outcome.status for outcome in outcomes] == ["complete"] * 4
    assert contents(tmp_path) == contents(finished)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_a_sweep_killed_or_interrupted_and_started_again_ends_with_the_same_bytes(tmp_path: Path, blow: int) -> None:
    (tmp_path / "grid.toml").write_text(
        '[base]\ntask = "digits"\nattack = "little"\nbyzantine = 5\nsteps = 150\ncheckpoint_every = 10\n'
        '[grid]\nrule = ["krum", "median"]\nseed = [1, 2]\n'
    )
    command = [sys.executable, "-m", "gyroscope", "sweep", str(tmp_path / "grid.toml"), "--jobs", "2", "--quiet"]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert subprocess.run([*command, "--out", str(straight)]).returncode == 0

    process = subprocess.Popen(
        [*command, "--out", str(broken)], stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heed_interrupts
    )
    deadline = time.monotonic() + 60
    while not list(broken.glob(f"*/{run_dir.CHECKPOINT}")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, blow)
    _, said = process.communicate(timeout=60)
    if blow == signal.SIGINT:
        assert process.returncode == 130 and b"goes on where it stopped" in said and b"Traceback" not in said
    before = {p: p.stat().st_mtime_ns for p in broken.glob(f"*/{run_dir.MODEL}")}
    assert len(before) < 4, "the blow came too late to mean anything"
    assert subprocess.run([*command, "--out", str(broken)]).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing complete was redone
    assert contents(broken) == contents(straight)


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "grid.toml").write_text("[base]\nsteps = 100000\n[grid]\nseed = [1, 2]\n")
    command = [sys.executable, "-m", "gyroscope", "sweep", str(tmp_path / "grid.toml"), "--jobs", "1", "--quiet"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "out")])
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out").glob(f"*/{run_dir.CONFIG}")) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert children
    process.kill()
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline + 30:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)


@pytest.mark.slow
def test_the_same_runs_go_through_submitit(tmp_path: Path, finished: Path) -> None:
    pytest.importorskip("submitit")
    setups = small(rule=["krum"], seed=[1, 2])
    jobs = scheduler.plan(setups, tmp_path).jobs
    outcomes = slurm.wait(slurm.submit(jobs, tmp_path, "local", {"timeout_min": 5}))
    assert [outcome.status for outcome in outcomes] == ["complete", "complete"], [o.log for o in outcomes]
    expected = contents(finished)
    assert contents(tmp_path) == {name: expected[name] for name in expected if name.startswith("rule_krum")}
    assert scheduler.plan(setups, tmp_path).jobs == ()


def test_devices_are_used_in_turn() -> None:
    assert scheduler.default_devices(None, "cuda:0,cuda:1") == ["cuda:0", "cuda:1"]
    assert scheduler.default_devices(3, "cuda:0,cuda:1") == ["cuda:0", "cuda:1", "cuda:0"]
    assert scheduler.default_devices(2, None) == [None, None]  # as the configuration says
    assert scheduler.default_devices(None, None) == [None] * scheduler.cores()


@pytest.mark.slow
def test_a_directory_that_cannot_be_read_is_left_alone(tmp_path: Path, finished: Path) -> None:
    (setup,) = small(rule=["krum"], seed=[1])
    damaged = tmp_path / setup.name
    damaged.mkdir()
    (damaged / run_dir.CONFIG).write_text("a_key_of_a_later_version = 1\n")
    (job,) = scheduler.plan([setup], tmp_path).jobs
    assert job.path != damaged
    assert scheduler.execute(scheduler.plan([setup], tmp_path), tmp_path, [None])[0].status == "complete"
    assert (damaged / run_dir.CONFIG).read_text() == "a_key_of_a_later_version = 1\n"
    assert len(scheduler.plan([setup], tmp_path).complete) == 1


@pytest.mark.slow
def test_a_run_that_crashed_is_resumed_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "counting.py").write_text(
        "import dataclasses, os, signal\n"
        "from gyroscope import rules\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Counting(rules.Median):\n"
        "    def aggregate(self, rows, f):\n"
        f"        with open({str(tmp_path / 'rounds')!r}, 'a') as rounds: rounds.write('x')\n"
        f"        if os.path.getsize({str(tmp_path / 'rounds')!r}) == 25: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().aggregate(rows, f)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    setups = grid.expand({"steps": 30, "rule": "counting:Counting", "checkpoint_every": 10}, {"seed": [1]})
    (outcome,) = scheduler.execute(scheduler.plan(setups, tmp_path / "out"), tmp_path / "out", [None])
    assert outcome.status == "complete"
    assert len((tmp_path / "rounds").read_text()) == 25 + 10  # rounds 20 to 29 again, not 0 to 29


def test_a_resumed_run_uses_the_device_that_it_is_given(tmp_path: Path) -> None:
    (setup,) = small(rule=["krum"], seed=[1])
    (job,) = scheduler.plan([setup], tmp_path).jobs
    from gyroscope.runs import training

    training.train(job.config, out=job.path, stop=lambda: True)
    config = job.path / run_dir.CONFIG
    config.write_text(config.read_text().replace('device = "cpu"', 'device = "cuda:0"'))
    (job,) = scheduler.plan([setup], tmp_path).jobs
    assert job.resume
    (outcome,) = pool.run([job], ["cpu"])
    assert outcome.status == "complete", outcome.log


def test_a_grids_own_number_of_threads_is_kept(tmp_path: Path) -> None:
    one, two = (scheduler.plan(grid.expand(base, {"seed": [1]}), tmp_path).jobs[0] for base in ({}, {"threads": 2}))
    assert (one.config.threads, two.config.threads) == (1, 2)


def test_a_dry_run_lists_and_estimates_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gyroscope.cli import main

    (tmp_path / "grid.toml").write_text("[base]\nsteps = 40\n[grid]\nseed = [1, 2]\n")
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "seed_1" in said and "0 of 2 runs are complete, 2 are left" in said and "MB of disk" in said
    assert not (tmp_path / "out").exists()


def test_an_estimate_counts_starts_and_never_promises_less_than_the_longest_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = estimate._Cost(start=2.0, round=0.1, evaluation=3.0, parameters=10**6)
    monkeypatch.setattr(estimate, "_measure", lambda config, task: cost)
    monkeypatch.setattr(estimate, "_start_of_a_process", lambda: 5.0)
    jobs = scheduler.plan(grid.expand({"steps": 40, "evaluate_every": 10}, {"seed": [1, 2, 3]}), tmp_path).jobs
    one = 2 + 40 * 0.1 + 5 * 3  # it is evaluated before the first step, too
    expected = {1: 5 + 3 * one, 2: 5 + 2 * one, 8: 5 + one}  # two processes: one of them makes two of the three runs
    assert {n: estimate.estimate(jobs, n).seconds for n in expected} == pytest.approx(expected)


def test_an_estimate_times_each_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"little": 0.1, "searched": 1.0}

    def measure(config: ResolvedConfig, task: object) -> estimate._Cost:
        return estimate._Cost(start=0.0, round=seconds[config.attack], evaluation=0.0, parameters=1)

    monkeypatch.setattr(estimate, "_measure", measure)
    monkeypatch.setattr(estimate, "_start_of_a_process", lambda: 0.0)
    setups = grid.expand({"steps": 10, "byzantine": 3, "rule": "median"}, {"attack": list(seconds)})
    guess = estimate.estimate(scheduler.plan(setups, tmp_path).jobs, 1)
    assert guess.seconds == pytest.approx(11.0) and guess.kinds == 2


def test_the_start_of_a_process_takes_time() -> None:
    assert 0.1 < estimate._start_of_a_process() < 60


def test_a_place_that_cannot_be_written_to_is_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "grid.toml").write_text('[base]\ntask = "digits"\nsteps = 2\n[grid]\nrule = ["krum"]\n')
    assert main(["sweep", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "file" / "runs")]) == 2
    said = capsys.readouterr().err
    assert "cannot write to" in said and "choose another place with --out" in said and "Traceback" not in said


def test_a_log_that_cannot_be_written_does_not_end_the_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setups = grid.expand({"task": "digits", "steps": 2}, {"rule": ["krum"], "seed": [1, 2]})
    planned = scheduler.plan(setups, tmp_path)
    (tmp_path / "failures").write_text("not a folder")  # as good as a full disk
    first, second = planned.jobs

    def run(jobs: object, devices: object, on_event: Any) -> list[pool.JobOutcome]:
        outcomes = [pool.JobOutcome(first, pool.FAILED, log="no room"), pool.JobOutcome(second, "complete")]
        for outcome in outcomes:
            on_event(outcome)
        return outcomes

    monkeypatch.setattr(pool, "run", run)
    assert len(scheduler.execute(planned, tmp_path, [None])) == 2
