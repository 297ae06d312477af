"""A server with worker processes gives the numbers of the simulation, resumes exactly, and explains mistakes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from clusters import Cluster, table, wait_for
from hypothesis import given
from hypothesis import strategies as st
from launching import gyroscope, lines, start

import gyroscope as gy
from gyroscope._core.errors import ConfigError, LinkError
from gyroscope.distributed import certificates
from gyroscope.distributed.protocol import ANSWER, HEAD_SIZE, VERSION, Head, MalformedMessageError, Message, Offer
from gyroscope.distributed.server.parameter_server import Server, ServerOptions

OF_SAMPLED = {"straightness", "omega", "lambda", "decrease_holds", "ratio_sampled"}


def options(config: gy.Config) -> list[object]:
    given: list[object] = []
    for name in ("workers", "byzantine", "declared_byzantine", "rule", "attack", "momentum", "steps", "seed", "threads",
                 "measure_every", "trusted", "shards"):  # fmt: skip
        if getattr(config, name) is not None:
            given += [f"--{name.replace('_', '-')}", getattr(config, name)]
    return [*given, "--nesterov"] if config.nesterov else given


def assert_same_numbers(out: Path, simulated: gy.Result, sampled_known: bool) -> None:
    evaluations = [float(row["accuracy"]) for row in table(out / "evaluations.csv")]
    assert evaluations == simulated.evaluations["accuracy"].tolist()
    served, expected = table(out / "metrics.csv"), simulated.tables["metrics.csv"]
    assert len(served) == len(expected)
    for mine, other in zip(served, expected, strict=True):
        for column, value in other.items():
            if not sampled_known and ("sampled" in column or column in OF_SAMPLED):
                assert mine[column] == ""
            elif value is None or isinstance(value, bool):
                assert mine[column] == ("" if value is None else str(value)), column
            else:
                assert float(mine[column]) == pytest.approx(float(value), rel=1e-5, abs=1e-7), column


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        gy.Config(workers=6, byzantine=1, rule="krum", attack="little", momentum="workers", steps=12, threads=1),
        gy.Config(
            workers=3, declared_byzantine=1, rule="median", momentum="none", steps=12, threads=1, measure_every=3
        ),
        gy.Config(workers=3, rule="average", momentum="server", steps=12, threads=1, shards="dirichlet:alpha=0.1"),
        gy.Config(workers=4, rule="round-robin:fltrust/centered-clipping", trusted=40, steps=12, threads=1),
        gy.Config(workers=3, rule="average", momentum="workers", nesterov=True, steps=12, threads=1),
    ],
    ids=["krum-little-workers", "median-none", "average-server-shards", "trusted", "nesterov-workers"],
)
def test_the_numbers_are_those_of_the_simulation(config: gy.Config, tmp_path: Path) -> None:
    assert config.workers is not None
    with Cluster(tmp_path, *options(config), workers=config.workers - config.byzantine) as cluster:
        cluster.serve("--grace", 60, deadline=30)
        cluster.join()
        finished = cluster.end()
        assert finished.code == 0, finished
        assert [process.end().code for process in cluster.workers.values()] == [0] * cluster.count
        assert_same_numbers(cluster.out, gy.train(config), sampled_known=config.momentum != "workers")


@pytest.mark.slow
def test_an_interrupted_run_continues_exactly(tmp_path: Path) -> None:
    """With Nesterov's momentum at the workers, whose rows do not show it, and a worker that restarts."""
    config = gy.Config(workers=3, rule="average", momentum="workers", nesterov=True, steps=20, threads=1)
    with Cluster(tmp_path, *options(config), workers=3, gates=(8,)) as cluster:
        cluster.serve("--grace", 60, deadline=30)
        cluster.join()
        cluster.at_gate(8)
        cluster.server.signal(signal.SIGINT)
        stopped = cluster.end()
        assert stopped.code == 130 and f"gyroscope serve --resume {cluster.out}" in stopped.out
        assert re.search(r" --port \d+", stopped.out)  # the command has what the run directory does not hold
        assert json.loads((cluster.out / "status.json").read_text())["status"] == "interrupted"
        refused = gyroscope("train", "--resume", cluster.out)
        assert refused.code == 2 and "gyroscope serve --resume" in refused.err
        cluster.workers[1].kill()
        cluster.open(8)
        cluster.serve("--grace", 60, resume=True, deadline=30)
        cluster.join(1)
        assert cluster.end().code == 0
        assert [process.end().code for process in cluster.workers.values()] == [0] * 3
        assert_same_numbers(cluster.out, gy.train(config), sampled_known=False)


def processes_of(folder: Path) -> list[str]:
    """Command lines of all processes that mention the folder, or whose environment does."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                facts = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in facts:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("word", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
def test_launch_leaves_no_process_behind(word: signal.Signals, tmp_path: Path) -> None:
    """Neither when it is killed without warning, nor after Ctrl-C, which reaches all processes of a terminal."""
    command = [sys.executable, "-m", "gyroscope", "launch"]
    environment = {**os.environ, "GYROSCOPE_TEST": str(tmp_path)}  # which all descendants inherit
    out = tmp_path / "run"
    begin = ["--workers", "3", "--rule", "median", "--declared-byzantine", "1", "--steps", "5000", "--out", str(out),
             "--threads", "1", "--evaluate-every", "1000"]  # fmt: skip
    with subprocess.Popen([*command, *begin], env=environment, start_new_session=True) as process:
        try:
            wait_for(lambda: lines(out / "events.csv") >= 5)  # heading, start, three workers
            assert len(processes_of(tmp_path)) >= 4  # itself, three workers
            if word == signal.SIGINT:
                os.killpg(process.pid, word)
                assert process.wait(60) == 130
        finally:
            process.kill()
    wait_for(lambda: not processes_of(tmp_path))
    status = json.loads((out / "status.json").read_text())["status"]
    assert status == ("interrupted" if word == signal.SIGINT else "running")


@pytest.mark.slow
def test_the_processes_of_launch_end_without_output(tmp_path: Path) -> None:
    """Its workers wait for their standard input to be closed, which must do no harm when they end first."""
    options = ["--workers", "4", "--rule", "median", "--steps", "2", "--quiet"]
    command = [sys.executable, "-m", "gyroscope", "launch", *options]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("serve", "--host", "0.0.0.0"), "stands for every network"),
        (("serve", "--host", "0x0"), "stands for every network"),
        (("serve", "--host", "::ffff:0.0.0.0"), "stands for every network"),
        (("serve", "--port", 70000), "port must be from 0"),
        (("serve", "--host", "192.0.2.1"), "What to do: name an address of this machine with --host"),
        (("serve", "--port", 0, "--keys", "nowhere"), "nowhere/ca.crt is missing"),
        (("serve", "--deadline", 0), "deadline must be a positive number"),
        (("serve", "--workers", 3, "--rule", "krum", "--declared-byzantine", 1), "Krum needs n >= 2f + 3"),
        (("serve", "--resume", "nowhere"), "holds no run"),
        (("serve", "--resume", "nowhere", "--rule", "krum"), "leave out --rule"),
        (("work", "nonsense", "--number", 0), "HOST:PORT"),
        (("work", "127.0.0.1:1"), "--cert"),
        (("work", "https://127.0.0.1:1", "--number", 0), "with TLS: give this worker's certificate"),
        (("work", "http://127.0.0.1:1", "--cert", "a.crt"), "without TLS: write https://"),
        (("work", "127.0.0.1:1", "--cert", "nowhere/worker-0.crt"), "is missing"),
        (("work", "127.0.0.1:1", "--number", 0, "--patience", -1), "patience must be"),
    ],
)
def test_mistakes_on_the_command_line(arguments: tuple[object, ...], message: str) -> None:
    finished = gyroscope(*arguments)
    assert finished.code == 2
    assert message in finished.err and "Traceback" not in finished.err


def test_a_worker_without_a_server_says_so_and_ends_with_code_3() -> None:
    finished = gyroscope("work", "127.0.0.1:1", "--number", 0, "--patience", 0.5)
    assert finished.code == 3 and "no server at 127.0.0.1:1" in finished.err and "gyroscope serve" in finished.err


def test_a_port_that_is_taken_and_a_number_that_does_not_exist(tmp_path: Path) -> None:
    with Cluster(tmp_path, "--workers", 3, workers=3) as cluster:
        cluster.serve()
        taken = gyroscope(
            "serve", "--workers", 3, "--port", cluster.address.rpartition(":")[2], "--out", tmp_path / "b"
        )
        assert taken.code == 2 and "cannot listen on" in taken.err and "--port" in taken.err
        assert not (tmp_path / "b").exists()
        certificates.add_worker(cluster.keys, "worker-7")
        stranger = start("work", cluster.address, "--cert", cluster.keys / "worker-7.crt").end()
        assert stranger.code == 2 and "numbers go from 0 to 2" in stranger.err


def test_a_run_that_was_served_with_keys_is_not_continued_without(tmp_path: Path) -> None:
    """Its workers would not come, and anybody who reaches the port could be one of them."""
    options = ("--workers", 3, "--rule", "median")
    with Cluster(tmp_path, *options, workers=3) as cluster:
        cluster.serve()
        wait_for(lambda: bool(cluster.events("started")), cluster.server)
        cluster.server.kill()
        for again in (("--resume", cluster.out), ("--out", cluster.out, "--continue", *options)):
            refused = gyroscope("serve", "--port", 0, *again)
            assert refused.code == 2 and "was served with keys" in refused.err and "add --keys DIR" in refused.err
        cluster.serve(resume=True)
        assert cluster.server.running


def test_the_server_listens_on_the_named_address_only() -> None:
    with Server(ServerOptions(port=0)) as server:
        listening = [
            entry.split()[1]
            for kind in ("tcp", "tcp6")
            for entry in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]
            if entry.split()[3] == "0A" and entry.split()[1].endswith(f":{server.port:04X}")
        ]
        assert listening == [f"0100007F:{server.port:04X}"]
    for host in ("", "0", "0.0", "0.0.0.0", "::", "::ffff:0.0.0.0"):
        with pytest.raises(ConfigError, match="every network"):
            Server(ServerOptions(host=host, port=0))


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_head_is_read_only_if_it_is_complete_and_of_this_version() -> None:
    import torch

    message = Message(5, torch.float32)
    message.seal(ANSWER, 2**40, 7, 0.25)
    assert len(message.bytes) == HEAD_SIZE + 20
    content = bytes(message.bytes[:HEAD_SIZE])
    assert Head.parse(content) == Head(ANSWER, 2**40, 7, 20, 0.25)
    for wrong, why in (
        (content[:-1], "has 40 bytes"),
        (b"gryo" + content[4:], "does not begin"),
        (content[:4] + b"\xff\xff" + content[6:], "version 65535 of the protocol"),
        (content[:6] + b"\x00\x00" + content[8:], "no messages of kind 0"),
        (content[:6] + b"\x0a\x00" + content[8:], "no messages of kind 10"),
    ):
        with pytest.raises(MalformedMessageError, match=why):
            Head.parse(wrong)


@given(st.binary(max_size=80) | st.binary(min_size=HEAD_SIZE, max_size=HEAD_SIZE))
def test_any_bytes_are_a_head_or_malformed(content: bytes) -> None:
    """A head that is read is one that we would write: nothing is misread, and nothing else is raised."""
    for tried in (content, b"gyro" + VERSION.to_bytes(2, "little") + content[6:]):
        try:
            head = Head.parse(tried)
        except MalformedMessageError:
            continue
        assert head.pack()[:-8] == tried[:-8] and 1 <= head.kind <= 9


def test_an_offer_chooses_neither_the_workers_folder_nor_its_device() -> None:
    offer = Offer(gy.Config(workers=3).resolve(), 3, 10, "float32", 1.0)
    text = offer.text() + 'data_dir = "/secret"\n'
    text = text.replace('device = "cpu"', 'device = "meta"')
    again = Offer.parse(text).config
    assert "/secret" in text and (again.data_dir, again.device) == (None, "cpu")


def test_an_offer_is_text_that_cannot_do_harm() -> None:
    config = gy.Config(task="digits", data_dir="/secret").resolve()
    offer = Offer(config, 5, 7510, "float32", 10.0)
    again = Offer.parse(offer.text())
    assert again.config.experiment() == config.experiment() and again.config.data_dir is None
    wrong = (
        ("[config]", "[config]\nevil = 1"),
        ("count = 5", 'count = "x"'),
    )
    for text in ("", "nonsense", "[link]\n[config]\n", *(offer.text().replace(*change) for change in wrong)):
        with pytest.raises(LinkError):
            Offer.parse(text)
