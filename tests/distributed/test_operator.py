"""What an operator sees and does while a server runs: /metrics, /status.json, quarantine; one real run."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from clusters import Cluster
from launching import gyroscope

from gyroscope._core.errors import ConfigError
from gyroscope.distributed.http_pages import Page, serve_pages
from gyroscope.distributed.server import quarantine as module
from gyroscope.distributed.server.monitor import ServerMonitor
from gyroscope.distributed.server.quarantine import Quarantine, number_of, read_numbers, write_numbers
from gyroscope.momentum import RobustAggregator


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as problem:
        return problem.code, problem.read().decode()


def test_a_worker_is_left_out_after_useless_rounds_and_probed_later() -> None:
    quarantine = Quarantine(limit=4, most=1)
    for step in range(3):
        assert quarantine.note(step, {2, 3}, {0, 1, 2, 3}) == []
    quarantine.note(3, {3}, {0, 1, 2, 3})  # 2 was of use once, and begins anew
    assert set(quarantine.out) == {3} and quarantine.out[3] == 4 + 40
    for step in range(4, 44):
        quarantine.note(step, {2}, {0, 1, 2})
    assert set(quarantine.out) == {3}  # no more than one
    changes = quarantine.note(44, {3}, {0, 1, 3})  # one round of probation, which it does not stand
    assert [(each.worker, each.out) for each in changes] == [(3, False), (3, True)]
    assert quarantine.out[3] == 45 + 80  # twice as long as the first time


def test_missing_workers_are_not_left_out() -> None:
    quarantine = Quarantine(limit=2, most=3)
    for step in range(10):
        assert quarantine.note(step, {1}, {0, 2}) == []


def test_the_file_leaves_workers_out_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    path = tmp_path / module.FILE
    quarantine = Quarantine(by_hand=path)
    assert quarantine.note(0, (), ()) == []
    write_numbers(path, {3, 1})
    assert [(each.worker, each.out) for each in quarantine.note(1, (), ())] == [(1, True), (3, True)]
    path.write_text("nonsense\n")
    assert quarantine.note(2, (), ()) == [] and set(quarantine.out) == {1, 3}  # a slip changes nothing
    path.write_text("# nobody but\nworker-3\n")
    assert [(each.worker, each.out) for each in quarantine.note(3, (), ())] == [(1, False)]
    path.unlink()
    assert [(each.worker, each.out) for each in quarantine.note(4, (), ())] == [(3, False)]


def test_numbers_of_workers(tmp_path: Path) -> None:
    assert number_of("3") == number_of("worker-3") == 3
    for text in ("", "x", "-1", "3.0", "worker-", "9999999"):
        with pytest.raises(ValueError, match="no worker"):
            number_of(text)
    write_numbers(tmp_path / "q", {5, 2})
    assert read_numbers(tmp_path / "q") == {2, 5}


def test_a_monitor_tells_who_is_of_no_use() -> None:
    monitor = ServerMonitor()
    monitor.begin("digits krum", 0, 10)
    monitor.begin_with(5, 1, {"handshake": 3})
    rows = torch.randn(5, 10_000, generator=torch.Generator().manual_seed(1))
    rows[3] = 1e6
    rows[4] = torch.nan
    aggregator = RobustAggregator("trimmed-mean", 2)
    links = [('a"b', "ok"), ("", "late"), ("c", "ok"), ("d", "ok"), ("e", "not finite")]
    assert monitor.judged(0, aggregator.step(rows), links) == {3, 4}
    status = monitor.status()
    assert status["step"] == 1 and [each["state"] for each in status["workers"]] == [
        "ok", "late", "ok", "suspect", "not finite",
    ]  # fmt: skip
    assert status["workers"][3]["suspicion"] == 1.0 and status["workers"][0]["suspicion"] == 0.0
    text = monitor.pages()["/metrics"]().text
    assert 'gyroscope_worker_state{worker="3",name="d",state="suspect"} 1' in text
    assert 'gyroscope_worker_suspicion{worker="0",name="a\\"b"} 0' in text
    assert 'gyroscope_refused_total{reason="handshake"} 3' in text
    assert all(re.fullmatch(r"(# TYPE \S+ \w+)|(\w+(\{.*\})? [-+.\w]+)", line) for line in text.splitlines())
    json.dumps(status)


def test_a_server_without_rounds_is_not_healthy_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = ServerMonitor()
    assert monitor.pages()["/healthz"]().status == 200
    now = time.monotonic()
    monkeypatch.setattr("gyroscope.distributed.server.monitor.time.monotonic", lambda: now + 1000)
    page = monitor.pages()["/healthz"]()
    assert page.status == 503 and "no round for" in page.text


def test_pages_answer_their_paths_only() -> None:
    server = serve_pages({"/a": lambda: Page("yes")}, 0)
    try:
        where = f"http://127.0.0.1:{server.server_port}"
        assert get(f"{where}/a") == (200, "yes") and get(f"{where}/a?x=1") == (200, "yes")
        assert get(f"{where}/b")[0] == 404
        with pytest.raises(ConfigError, match="choose another port"):
            serve_pages({}, server.server_port)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_status_and_quarantine_of_a_run(tmp_path: Path) -> None:
    options = ("--workers", 5, "--declared-byzantine", 1, "--rule", "trimmed-mean", "--steps", 60, "--threads", 1,
               "--status-port", 0, "--quarantine", 5, "--log-events")  # fmt: skip
    with Cluster(tmp_path, *options, gates=(30, 40)) as cluster:
        cluster.faults = {4: dict.fromkeys(range(60), "nan")}
        cluster.serve("--grace", 60)
        said = (cluster.server.files / "err").read_text()
        found = re.search(r"gyroscope status (\S+)", said)
        assert found
        cluster.join()
        cluster.at_gate(30)
        status = json.loads(get(f"http://{found[1]}/status.json")[1])
        states = [each["state"] for each in status["workers"]]
        assert states[:4] == ["ok"] * 4 and states[4] in ("not finite", "quarantined")
        assert status["workers"][4]["name"] == "worker-4" and status["workers"][4]["suspicion"] == 1.0
        assert get(f"http://{found[1]}/healthz") == (200, "ok\n")
        shown = gyroscope("status", found[1], "--once")
        assert shown.code == 0 and "worker-4" in shown.out and "step 30/60" in shown.out
        assert cluster.events("quarantined", 4)
        assert gyroscope("quarantine", cluster.out, "--leave-out", "worker-4").code == 0
        cluster.open(30)
        cluster.at_gate(40)
        listed = gyroscope("quarantine", cluster.out, "--release", 4)
        assert "nobody" in listed.out
        cluster.open(40)
        finished = cluster.end()
        assert finished.code == 0
        events = [json.loads(line) for line in finished.err.splitlines() if line[:1] == "{"]
        assert {"joined", "not finite", "quarantined"} <= {event["event"] for event in events}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("status", "127.0.0.1:1", "--once"), "no server answers"),
        (("quarantine", "nowhere", "--release", 3), "holds no run"),
        (("serve", "--quarantine", -1), "quarantine must be"),
    ],
)
def test_mistakes(arguments: tuple[object, ...], message: str) -> None:
    finished = gyroscope(*arguments)
    assert finished.code == 2 and message in finished.err and "Traceback" not in finished.err
