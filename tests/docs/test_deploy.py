"""docs/deploy.md and examples/deploy: commands run, command lines parse, metrics exist."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

sys.path.append(str(Path(__file__).parents[1] / "distributed"))

import torch
import yaml
from exposition import parse

from gyroscope.cli import parser
from gyroscope.distributed.server.monitor import STATES, Link, ServerMonitor
from gyroscope.distributed.server.refusals import Reason
from gyroscope.momentum import RobustAggregator

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "examples" / "deploy"
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
UNITS = [FILES / "gyroscope-server.service", FILES / "gyroscope-worker.service"]
PROGRAM = "/opt/gyroscope/bin/gyroscope"


def exported() -> dict[str, set[str]]:
    """Return every metric that a server exports, as its samples are called, each with its labels."""
    monitor = ServerMonitor()
    monitor.begin("digits krum", 0, 10)
    monitor.begin_with(3, 0, 3, {}, lambda: {0: Link("worker-0", 2e9)})
    monitor.expires = 2e9
    monitor.evaluated({"accuracy": 0.5})
    monitor.judged(0, RobustAggregator("average", 0).step(torch.randn(3, 5)), [("worker-0", "ok")] * 3)
    return {
        name: {key for key, _ in labels}
        for metric in parse(monitor.pages()["/metrics"]().text).values()
        for name, labels in metric.samples
    }


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]
    return group["rules"]  # type: ignore[no-any-return]


def panels() -> list[dict[str, Any]]:
    return json.loads((FILES / "grafana-dashboard.json").read_text())["panels"]  # type: ignore[no-any-return]


def check_expression(expression: str) -> None:
    known = exported()
    names = set(re.findall(r"\bgyroscope_\w+", expression))
    assert names <= set(known), f"{names - set(known)} in {expression}"
    for name, inner in re.findall(r"\b(gyroscope_\w+)\{(.*?)\}", expression):
        for label, value in re.findall(r'(\w+)="(.*?)"', inner):
            assert label in known[name], expression
            assert label != "state" or value in STATES, expression
    for labels in re.findall(r"(?:by|on|group_left) \((.*?)\)", expression):
        for label in labels.split(", "):
            assert any(label in known[name] for name in names), expression


def test_alerts_use_metrics_that_the_server_exports() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 8
    for rule in rules():
        if rule["alert"] != "GyroscopeServerDown":
            assert "gyroscope_" in rule["expr"]
        check_expression(rule["expr"])
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            names = re.findall(r"\bgyroscope_\w+", rule["expr"])
            assert any(label in exported()[name] for name in names), rule["alert"]


def test_a_worker_that_is_gone_is_missing_and_not_suspect() -> None:
    """A round without its row counts as bad, too: both alerts would fire."""
    (suspect,) = (rule["expr"] for rule in rules() if rule["alert"] == "GyroscopeWorkerSuspect")
    missing = 'unless ignoring (state) gyroscope_worker_state{state="missing"} == 1'
    assert suspect == f"gyroscope_worker_suspicion > 0.5 {missing}"
    # PromQL matches samples whose labels are equal but for the ignored one.
    assert exported()["gyroscope_worker_suspicion"] == exported()["gyroscope_worker_state"] - {"state"}
    monitor, linked = ServerMonitor(), {number: Link("", None) for number in range(3)}
    monitor.begin_with(3, 1, 2, {}, lambda: linked)
    monitor.judged(0, RobustAggregator("median", 1).step(torch.tensor([[1.0], [2.0], [torch.nan]])), [("", "ok")] * 3)
    del linked[2]
    page = parse(monitor.pages()["/metrics"]().text)
    assert page["gyroscope_worker_suspicion"].value("gyroscope_worker_suspicion", worker="2") == 1
    assert page["gyroscope_worker_state"].value("gyroscope_worker_state", worker="2", state="missing") == 1


def test_the_page_links_every_file_and_shows_what_the_unit_does() -> None:
    for path in FILES.iterdir():
        assert f"[{path.name}](../examples/deploy/{path.name})" in PAGE, path.name
    (shown,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    assert shown in UNITS[0].read_text() and "ExecStart" in shown


def test_the_dashboard_uses_metrics_that_the_server_exports() -> None:
    found = panels()
    assert len({panel["id"] for panel in found}) == len({panel["title"] for panel in found}) == len(found) > 5
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["targets"]
        for target in panel["targets"]:
            check_expression(target["expr"])
            legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert all(label in str(sorted(exported().items())) for label in legend)


def test_the_page_explains_every_metric_and_reason() -> None:
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    table = PAGE.replace("`_required`", "`gyroscope_workers_required`").replace(
        "`_linked`", "`gyroscope_workers_linked`"
    )
    for name in families:
        assert re.search(rf"`{name}[`{{]", table), name
    for name in re.findall(r"\bgyroscope_\w+", table):
        assert name in families, name
    for reason in get_args(Reason):
        assert f"`{reason}`" in PAGE, reason


def test_prometheus_reads_the_port_of_the_unit() -> None:
    scraped = yaml.safe_load((FILES / "prometheus.yml").read_text())
    (target,) = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    options = parser().parse_args(command_of(UNITS[0]))
    assert target == f"127.0.0.1:{options.status_port}" and all(
        (FILES / name).exists() for name in scraped["rule_files"]
    )


def unit(path: Path) -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[method-assign, assignment]
    parsed.read(path)
    return parsed


def command_of(path: Path) -> list[str]:
    program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])
    assert program == PROGRAM
    return arguments


def test_units_start_commands_that_exist() -> None:
    server, worker = (parser().parse_args(command_of(path)) for path in UNITS)
    assert server.continuing and server.keys and server.config and server.log_events
    assert worker.cert == "%d/worker.crt"
    loaded = re.findall(r"^LoadCredential=(\S+?):", UNITS[1].read_text(), re.MULTILINE)
    assert sorted(loaded) == ["ca.crt", "worker.crt", "worker.key"]
    for path in UNITS:
        service = unit(path)["Service"]
        assert service["Restart"] == "on-failure"
        assert service["RestartPreventExitStatus"] == ("2 4" if path == UNITS[0] else "2")  # a mistake; it diverged
        assert service["ProtectSystem"] == "strict" and service["NoNewPrivileges"] == "yes"
    assert unit(UNITS[0])["Service"]["SuccessExitStatus"] == "130"
    state = Path("/var/lib", unit(UNITS[0])["Service"]["StateDirectory"])
    assert Path(server.out).is_relative_to(state)  # the only place that it may write to


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(PROGRAM, shutil.which("true") or ""))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_the_containerfile_fits_the_project() -> None:
    text = (FILES / "Containerfile").read_text()
    for names in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in names.split()), names
    (install,) = re.findall(r"^RUN pip install (.*)$", text, re.MULTILINE)
    (extra,) = re.findall(r"'\.\[(\w+)\]'", install)
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^{extra} = \[", project, re.MULTILINE) and "-c constraints.txt" in install
    ((entry,), command) = (json.loads(line) for line in re.findall(r"^(?:ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE))
    assert f'{entry} = "gyroscope.cli:main"' in project
    options = parser().parse_args(command)
    assert options.host == "0.0.0.0" and options.continuing
    assert f"`podman exec NAME gyroscope status 127.0.0.1:{options.status_port}`" in PAGE
    for line in re.findall(r"^    podman run .*? gyroscope(?: (work .*))?$", PAGE, re.MULTILINE):
        if line:
            parser().parse_args(shlex.split(line))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bash"), reason="the page is for bash")
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        ports = one.getsockname()[1], two.getsockname()[1]
    program = tmp_path / "bin" / "gyroscope"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gyroscope "$@"\n')
    program.chmod(0o755)
    folder = tmp_path / "empty"
    folder.mkdir()
    # bash -e: a command that fails ends the script; the trap ends what it has started.
    script = "set -e\ntrap 'jobs -p | xargs -r kill 2>/dev/null || true' EXIT\n" + "\n".join(blocks)
    script = script.replace("29517", str(ports[0])).replace("29518", str(ports[1]))
    variables = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=variables, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left out by hand: nobody" in done.stdout and "is revoked" in done.stderr
    assert json.loads((folder / "run" / "status.json").read_text())["status"] == "complete"
