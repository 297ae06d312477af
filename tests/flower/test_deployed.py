"""Deployed over TLS: a SuperLink, five registered SuperNodes, two of them Byzantine, one killed, and a stranger."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")

from deployment import PATIENCE, Processes, certificates, connection, free_port, make_app, node_key, reasons, table
from memory_grid import accuracy_in_this_process

from gyroscope.integrations.flower.settings import Settings

BYZANTINE = (3, 4)
EXPECTED = (
    {"NaN", "shape"},
    {"announced '(99999999999999,)'", "no .npy"},
    {"Node Unavailable", "unreadable reply"},  # one has been killed and does not reply: Flower notices
)
"""Why the Byzantine nodes' replies are rejected, round by round."""
KILLED_AFTER = 2
ROUNDS, STEPS = len(EXPECTED), 200


@pytest.mark.slow
def test_a_deployed_federation_survives_byzantine_nodes_and_refuses_a_stranger(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "tls")
    (tmp_path / "keys").mkdir()
    port, out = free_port(), tmp_path / "run"
    app = make_app(tmp_path / "app", BYZANTINE)
    with Processes(tmp_path) as processes:
        connection(processes, "link", port, tls / "ca.crt")
        processes.start(
            "superlink", "flower-superlink", "--ssl-ca-certfile", tls / "ca.crt", "--ssl-certfile", tls / "server.pem",
            "--ssl-keyfile", tls / "server.key", "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--port", port,
        )  # fmt: skip
        processes.listens("superlink", port)

        def supernode(name: str, partition: int) -> None:
            processes.start(
                name, "flower-supernode", "--root-certificates", tls / "ca.crt", "--superlink", f"127.0.0.1:{port}",
                "--port", free_port(), "--auth-supernode-private-key", tmp_path / "keys" / name,
                "--node-config", f"partition-id={partition}",
            )  # fmt: skip

        def register(name: str) -> None:
            key = node_key(tmp_path / "keys" / name).with_suffix(".pub")
            processes.run(f"register-{name}", "flwr", "supernode", "register", key, "link")

        names = [f"node{number}" for number in range(5)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(register, names))
        for number, name in enumerate(names):
            supernode(name, number)
        node_key(tmp_path / "keys" / "stranger")
        supernode("stranger", 5)

        running = processes.start(
            "run",
            "flwr",
            "run",
            app,
            "link",
            "--stream",
            "-c",
            f'rounds={ROUNDS} local-steps={STEPS} rule="median" f=2 timeout={PATIENCE} out="{out}"',
        )
        processes.until(
            lambda: len(reasons(out, KILLED_AFTER)) == 2 or running.poll() is not None, "the first rounds are over"
        )
        processes.kill(names[BYZANTINE[0]])
        running.wait(PATIENCE)
        status = json.loads((out / "status.json").read_text())
        assert status["status"] == "complete", processes.tail()
        for number, expected in enumerate(EXPECTED, start=1):
            given = reasons(out, number)
            assert len(given) == 2 and all(any(text in reason for reason in given) for text in expected), given
        events = table(out / "events.csv")
        assert len({row["who"] for row in events if row["event"] == "joined"}) == 5
        assert not [row for row in events if row["event"] == "skipped"]
        assert processes.started["stranger"].poll() not in (None, 0), processes.text("stranger")
    # The same batches and the same three honest nodes without a network: a loss on the way would show.
    settings = Settings(rounds=ROUNDS, local_steps=STEPS, rule="median", f=2)
    expected_accuracy = accuracy_in_this_process(settings, tmp_path / "expected", honest=3)
    assert expected_accuracy > 0.9
    assert status["final_accuracy"] == pytest.approx(expected_accuracy, abs=0.01)
