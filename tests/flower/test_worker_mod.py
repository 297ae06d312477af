"""Momentum at the worker, as the server sees it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from memory_grid import arrays_of, context, reply_with

from gyroscope._core.errors import ConfigError
from gyroscope.integrations.flower import worker_momentum

START = np.array([1.0, 2.0, 3.0], dtype=np.float32)


def ask(number: int, arrays: dict[str, Any] | None = None, kind: str = "train") -> Message:
    record = ArrayRecord({name: Array(array) for name, array in (arrays or {"w": START}).items()})
    content = RecordDict({"arrays": record, "config": ConfigRecord({"server-round": number})})
    return Message(content=content, dst_node_id=1, message_type=kind)


def client(updates: dict[str, Any], mu: float = 0.5) -> ClientApp:
    app = ClientApp(mods=[worker_momentum(mu=mu)])

    def answer(message: Message, _: Context) -> Message:
        return reply_with(message, {k: v + updates.get(k, 0) for k, v in arrays_of(message).items()}, loss=1.0)

    app.train()(answer)
    app.evaluate()(answer)
    return app


def row(reply: Message, name: str = "w", start: Any = START) -> Any:
    return arrays_of(reply)[name] - start


def test_the_reply_is_the_momentum_of_the_updates() -> None:
    app, here = client({"w": np.float32(1.0)}), context()
    rows = [row(app(ask(number), here)) for number in (1, 2, 3)]
    for got, factor in zip(rows, (1, 1.5, 1.75), strict=True):
        np.testing.assert_allclose(got, np.full(3, factor), rtol=1e-6)


def test_momentum_is_of_the_differences_whatever_the_servers_arrays_are() -> None:
    app, here = client({"w": np.float32(1.0)}), context()
    app(ask(1), here)
    elsewhere = START * 10
    np.testing.assert_allclose(row(app(ask(2, {"w": elsewhere}), here), start=elsewhere), np.full(3, 1.5), rtol=1e-6)


def test_each_node_has_its_own() -> None:
    app = client({"w": np.float32(1.0)})
    for partition in (0, 1):
        np.testing.assert_allclose(row(app(ask(1), context(partition))), np.ones(3))


def test_a_missed_round_is_noticed_and_momentum_kept(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        app, here = client({"w": np.float32(1.0)}), context()
        app(ask(1), here)
        assert "momentum is kept" not in caplog.text
        np.testing.assert_allclose(row(app(ask(4), here)), np.full(3, 1.5))
        assert "last update in round 1, this is 4" in caplog.text
        assert here.state["gyroscope.momentum.round"]["round"] == 4
    finally:
        logger.removeHandler(caplog.handler)


def test_evaluation_and_metrics_pass_through() -> None:
    app, here = client({"w": np.float32(1.0)}), context()
    app(ask(1), here)
    reply = app(ask(1, kind="evaluate"), here)
    np.testing.assert_allclose(row(reply), np.ones(3))
    assert reply.content["metrics"]["loss"] == 1.0


def test_counters_and_running_statistics_are_left_alone() -> None:
    start = {"bn.running_mean": START, "bn.num_batches_tracked": np.array(3), "w": START}
    app, here = client({name: array.dtype.type(1) for name, array in start.items()}), context()
    app(ask(1, start), here)
    got = arrays_of(app(ask(2, start), here))
    assert got["bn.num_batches_tracked"] == 4
    np.testing.assert_allclose(got["bn.running_mean"] - START, np.ones(3))
    np.testing.assert_allclose(got["w"] - START, np.full(3, 1.5))


def test_momentum_starts_at_zero_for_another_model() -> None:
    app, here = client({"w": np.float32(1.0)}), context()
    app(ask(1), here)
    other = np.zeros(5, np.float32)
    np.testing.assert_allclose(row(app(ask(2, {"w": other}), here), start=other), np.ones(5))


def test_a_client_that_replies_with_other_arrays_gets_an_error() -> None:
    app = ClientApp(mods=[worker_momentum()])
    app.train()(lambda message, _: reply_with(message, {"w": np.zeros(9, np.float32)}))
    with pytest.raises(ConfigError, match="do not fit those it was sent"):
        app(ask(1), context())


def test_mu_out_of_range() -> None:
    with pytest.raises(ConfigError, match="mu must be"):
        worker_momentum(mu=1.0)
