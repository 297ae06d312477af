"""What an operator sees and does while a server runs: /metrics, /status.json, quarantine; one real run."""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from clusters import PREPARATION, Cluster
from exposition import parse
from launching import gyroscope

from gyroscope._core.errors import ConfigError
from gyroscope.distributed import certificates, tls
from gyroscope.distributed.http_pages import Page, serve_pages
from gyroscope.distributed.prometheus_text import Histogram, number
from gyroscope.distributed.server import quarantine as module
from gyroscope.distributed.server.monitor import Link, ServerMonitor
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
    linked = {number: Link(name, None) for number, name in ((0, 'a"b\\c\nd'), (2, "c"), (3, "d"), (4, "e"))}
    monitor.begin_with(5, 1, 4, {"handshake": 3}, lambda: linked)
    linked[1] = Link("", None)
    rows = torch.randn(5, 10_000, generator=torch.Generator().manual_seed(1))
    rows[3] = 1e6
    rows[4] = torch.nan
    aggregator = RobustAggregator("trimmed-mean", 2)
    assert [each["state"] for each in monitor.status()["workers"]] == ["linked"] * 5
    links = [('a"b', "ok"), ("", "late"), ("c", "ok"), ("d", "ok"), ("e", "not finite")]
    assert monitor.judged(0, aggregator.step(rows), links) == {3, 4}
    status = monitor.status()
    assert status["step"] == 1 and [each["state"] for each in status["workers"]] == [
        "ok", "late", "ok", "suspect", "not finite",
    ]  # fmt: skip
    assert status["workers"][3]["suspicion"] == 1.0 and status["workers"][0]["suspicion"] == 0.0
    metrics = parse(monitor.pages()["/metrics"]().text)
    assert metrics["gyroscope_worker_state"].value("gyroscope_worker_state", worker="3", state="suspect") == 1
    assert metrics["gyroscope_worker_info"].value("gyroscope_worker_info", worker="0", name='a"b\\c\nd') == 1
    refused = metrics["gyroscope_connections_refused_total"]
    assert refused.value("gyroscope_connections_refused_total", reason="handshake") == 3
    assert refused.value("gyroscope_connections_refused_total", reason="revoked") == 0
    assert metrics["gyroscope_workers_linked"].value("gyroscope_workers_linked") == 5
    assert metrics["gyroscope_workers_required"].value("gyroscope_workers_required") == 4
    assert metrics["gyroscope_round_seconds"].value("gyroscope_round_seconds_count") == 1
    del linked[2]
    assert monitor.status()["workers"][2]["state"] == "missing"  # at once, not after the next round
    json.dumps(status)


def test_metrics_before_the_first_round_are_whole() -> None:
    monitor = ServerMonitor()
    metrics = parse(monitor.pages()["/metrics"]().text)  # before the data is loaded
    assert metrics["gyroscope_workers_expected"].value("gyroscope_workers_expected") == 0
    monitor.begin_with(3, 1, 2, {}, dict)
    metrics = parse(monitor.pages()["/metrics"]().text)
    assert metrics["gyroscope_round_seconds"].value("gyroscope_round_seconds_count") == 0
    assert not any(math.isnan(value) for metric in metrics.values() for value in metric.samples.values())
    assert "gyroscope_evaluation" not in metrics
    monitor.evaluated({"step": 0, "accuracy": math.nan, "loss": math.inf, "samples": 10})
    evaluation = parse(monitor.pages()["/metrics"]().text)["gyroscope_evaluation"].samples
    assert sorted(labels for _, labels in evaluation) == [(("measure", "accuracy"),), (("measure", "loss"),)]


def test_the_first_round_does_not_last_from_the_servers_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, now = ServerMonitor(), time.monotonic()
    monitor.begin_with(3, 1, 2, {}, dict)
    for seconds, call in ((500, monitor.assembled), (503, None)):
        monkeypatch.setattr(
            "gyroscope.distributed.server.monitor.time.monotonic", lambda seconds=seconds: now + seconds
        )
        if call:
            call()
    monitor.judged(0, RobustAggregator("median", 1).step(torch.randn(3, 10)), [("", "ok")] * 3)
    assert monitor.latency.sum == pytest.approx(3.0)


def test_numbers_keep_their_digits() -> None:
    assert [number(value) for value in (12_345_678, 1234567.125, math.nan, math.inf, -math.inf, True)] == [
        "12345678", "1234567.125", "NaN", "+Inf", "-Inf", "1",
    ]  # fmt: skip
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 99.0):
        histogram.observe(value)
    assert histogram.lines("x", "Help.")[2:] == [
        'x_bucket{le="1.0"} 2', 'x_bucket{le="2.0"} 3', 'x_bucket{le="+Inf"} 4', "x_sum 102.0", "x_count 4",
    ]  # fmt: skip


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


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:9090", 200), ("localhost:9090", 200), ("[::1]:9090", 200), ("evil.example:9090", 421)],
)
def test_a_page_in_a_browser_cannot_read_by_having_its_name_resolve_to_loopback(host: str, status: int) -> None:
    server = serve_pages({"/a": lambda: Page("yes")}, 0)
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/a", headers={"Host": host})
        if status == 200:
            assert urllib.request.urlopen(request, timeout=10).read() == b"yes"
        else:
            with pytest.raises(urllib.error.HTTPError, match=str(status)):
                urllib.request.urlopen(request, timeout=10)
    finally:
        server.shutdown()
        server.server_close()


def test_connections_that_are_held_do_not_cost_a_thread_each() -> None:
    server = serve_pages({"/a": lambda: Page("yes")}, 0)
    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(100)]
    try:
        assert get(f"http://127.0.0.1:{server.server_port}/a") == (200, "yes")
        begun = time.monotonic()
        while threading.active_count() - before > 34:
            assert time.monotonic() - begun < 5.0
            time.sleep(0.05)
    finally:
        for peer in held:
            peer.close()
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
        metrics = parse(get(f"http://{found[1]}/metrics")[1])
        assert metrics["gyroscope_workers_linked"].value("gyroscope_workers_linked") == 5
        assert metrics["gyroscope_rounds_total"].value("gyroscope_rounds_total") == 30
        assert metrics["gyroscope_worker_rows_total"].value(
            "gyroscope_worker_rows_total", worker="0", state="ok"
        ) == pytest.approx(30)
        days = 86400.0
        for expiry, valid in (("", 1825), ("worker_", 365)):
            name = f"gyroscope_{expiry}certificate_expiry_timestamp_seconds"
            assert all(abs(at - time.time() - valid * days) < days for at in metrics[name].samples.values())
        assert len(metrics["gyroscope_worker_certificate_expiry_timestamp_seconds"].samples) == 5
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


def test_warnings_about_keys_are_heard(tmp_path: Path) -> None:
    certificates.create_authority(tmp_path)
    certificates.add_worker(tmp_path, "worker-0", days=3)
    (tmp_path / "server.key").chmod(0o644)
    with pytest.warns(UserWarning, match=r"may read .*server.key \(mode 0644\): chmod 600"):
        tls.server_context(tmp_path)
    with pytest.warns(UserWarning, match=r"worker-0.crt expires in 3 days"):
        tls.worker_context(tmp_path / "worker-0.crt")


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


@pytest.mark.slow
def test_workers_that_load_their_data_do_not_end_the_run(tmp_path: Path) -> None:
    options = ("--workers", 3, "--declared-byzantine", 0, "--rule", "average", "--steps", 3, "--threads", 1)
    with Cluster(tmp_path, *options, workers=3) as cluster:
        cluster.faults = {2: {PREPARATION: "waits"}}
        cluster.serve("--grace", 2)
        cluster.join()
        cluster.at_gate(PREPARATION, 2)
        said = cluster.server.files / "err"
        assert cluster.server.until(lambda: "preparing: 2" in said.read_text())
        time.sleep(3.0)  # longer than the grace period
        cluster.open(PREPARATION)
        assert cluster.end().code == 0


def test_the_table_counts_the_rows_that_a_worker_has_sent() -> None:
    from gyroscope.cli import operate

    worker = {"number": 0, "name": "worker-0", "state": "missing", "suspicion": 0.0, "weight": None}
    status = {
        "title": "digits", "step": 9, "steps": 9, "seconds_per_round": 1.0, "seconds_since_round": 0.0, "refused": {},
        "evaluation": {}, "workers": [{**worker, "rows": {"missing": 5, "not asked": 2, "ok": 1, "suspect": 1}}],
    }  # fmt: skip
    table = operate.table(status)
    assert list(table.columns[-1].cells) == ["2"]  # type: ignore[attr-defined]
