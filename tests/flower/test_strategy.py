"""The strategy against malformed replies: whatever one node sends, the others' updates are applied."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flwr", reason="FLOWER IS NOT TESTED: pip install 'gyroscope[flower]'")

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from memory_grid import STUCK, MemoryGrid, Node, arrays_of, reply_with, server_round, silent, stuck, unreadable
from torch import Tensor

from gyroscope import rules
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError
from gyroscope.integrations.flower import FaultTolerantGrid, RobustStrategy, TooFewRepliesError

WEIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
BIAS = np.array([0.5, -0.5], dtype=np.float32)
COUNT = np.array(7, dtype=np.int64)
BAD = 5


class Event(NamedTuple):
    """The arguments of `on_event`."""

    step: int
    event: str
    worker: int | None
    detail: str
    who: str


def beginning() -> ArrayRecord:
    return ArrayRecord({"weight": Array(WEIGHT), "bias": Array(BIAS), "count": Array(COUNT)})


def update(node: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(node).normal(1.0, 0.1, 8).astype(np.float32)


def trained(message: Message, node: int) -> dict[str, Any]:
    arrays = arrays_of(message)
    arrays["weight"] += update(node)[:6].reshape(3, 2)
    arrays["bias"] += update(node)[6:]
    arrays["count"] = arrays["count"] + 1
    return arrays


def honest(node: int) -> Node:
    return lambda message: reply_with(message, trained(message, node), loss=float(node))


def federation(bad: Node | None, honest_ones: int = 4) -> MemoryGrid:
    nodes: dict[int, Node] = {node: honest(node) for node in range(1, honest_ones + 1)}
    return MemoryGrid({**nodes, **({BAD: bad} if bad else {})})


def changed(**arrays: Any) -> Node:
    """A node whose reply is honest except for these arrays; None leaves one out."""

    def node(message: Message) -> Message:
        content = {**trained(message, BAD), **arrays}
        return reply_with(message, {name: array for name, array in content.items() if array is not None})

    return node


def raw(data: bytes, dtype: str = "float32", shape: tuple[int, ...] = (2,), stype: str = "numpy.ndarray") -> Array:
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def npy(header: dict[str, Any], values: bytes = b"") -> bytes:
    text = repr(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values


GOOD_BYTES = Array(BIAS).data
HUGE = npy({"descr": "<f4", "fortran_order": False, "shape": (10**15,)}, b"\0" * 8)
OBJECTS = npy({"descr": "|O", "fortran_order": False, "shape": (2,)}, b"cos\nsystem\n(S'touch /tmp/owned'\ntR.")


def somebody_else(message: Message) -> Message:
    reply = reply_with(message, trained(message, BAD))
    reply.metadata.__dict__["_src_node_id"] = 1
    return reply


BAD_NODES: dict[str, tuple[Node, str]] = {
    "nan": (changed(bias=np.full(2, np.nan, np.float32)), "NaN"),
    "inf": (changed(bias=np.full(2, np.inf, np.float32)), "infinite"),
    "wrong shape": (changed(bias=np.zeros(3, np.float32)), "shape"),
    "transposed": (changed(weight=WEIGHT.T.copy()), "shape"),
    "no dimension": (changed(bias=np.zeros((), np.float32)), "shape"),
    "float64": (changed(bias=np.zeros(2)), "dtype"),
    "big-endian": (changed(bias=np.zeros(2, ">f4")), "dtype"),
    "whole numbers": (changed(bias=np.zeros(2, np.int32)), "dtype"),
    "counter as float": (changed(count=np.array(1.0)), "dtype"),
    "complex": (changed(bias=np.zeros(2, np.complex64)), "dtype"),
    "text": (changed(bias=np.array(["a", "b"])), "dtype"),
    "missing": (changed(bias=None), "'bias' is missing"),
    "extra": (changed(more=np.zeros(2, np.float32)), "too many: 'more'"),
    "renamed": (changed(bias=None, biass=BIAS), "'bias' is missing"),
    "extra with a long name": (changed(**{"x\n" * 9999: BIAS}), "too many"),
    "announced shape": (changed(bias=raw(GOOD_BYTES, shape=(3,))), "announced"),
    "negative shape": (changed(bias=raw(npy({"descr": "<f4", "fortran_order": False, "shape": (-2,)}))), "shape"),
    "other serialisation": (changed(bias=raw(GOOD_BYTES, stype="pickle")), "serialised"),
    "garbage": (changed(bias=raw(b"\x80\x04garbage")), "no .npy"),
    "nothing": (changed(bias=raw(b"")), "no .npy"),
    "garbage header": (changed(bias=raw(b"\x93NUMPY\x01\x00\xff\xff{{{{")), "no .npy"),
    "nested header": (changed(bias=raw(npy({}).replace(b"{}", b"(" * 40))), "no .npy"),
    "unknown version": (changed(bias=raw(b"\x93NUMPY\x09\x00" + GOOD_BYTES[8:])), "no .npy"),
    "huge header": (changed(bias=raw(HUGE, shape=(10**15,))), "shape"),
    "cut short": (changed(bias=raw(GOOD_BYTES[:-1])), "bytes"),
    "too long": (changed(bias=raw(GOOD_BYTES + b"\0" * 100)), "bytes"),
    "objects": (changed(bias=raw(OBJECTS)), "dtype"),
    "an error": (lambda message: Message(Error(2, "boom\n" * 9999), reply_to=message), "error 2: boom"),
    "no arrays": (lambda message: Message(RecordDict(), reply_to=message), "0 array records"),
    "two records": (
        lambda message: Message(RecordDict({"a": beginning(), "b": beginning()}), reply_to=message),
        "2 array records",
    ),
    "only metrics": (
        lambda message: Message(RecordDict({"metrics": MetricRecord({"x": 1})}), reply_to=message),
        "0 array records",
    ),
    "unreadable": (unreadable, "unreadable reply: IndexError"),
    "in another's name": (somebody_else, "names 1 as its sender"),
    "silence": (silent, "no reply within"),
    "an upload without end": (stuck, "no reply within"),
}


def run(
    grid: MemoryGrid, rounds: int = 1, rule: str | rules.Rule = "krum", timeout: float = 60.0, **settings: Any
) -> tuple[dict[str, Any], list[Event], Any]:
    events: list[Event] = []
    settings = {"f": 1, "n": 5, "gathering": 0.0, **settings}
    strategy = RobustStrategy(rule, on_event=lambda *facts: events.append(Event(*facts)), **settings)
    result = strategy.start(grid, beginning(), rounds, timeout)
    return {name: array.numpy() for name, array in result.arrays.items()}, events, result


def expected(rule: str, bad_row: float = float("nan")) -> np.ndarray[Any, Any]:
    rows = torch.stack([torch.from_numpy(update(node)) for node in range(1, 5)] + [torch.full((8,), bad_row)])
    return rules.parse(rule)(rows, f=1).vector.numpy()


def moved(arrays: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.concatenate([(arrays["weight"] - WEIGHT).ravel(), arrays["bias"] - BIAS])


@pytest.mark.parametrize("kind", BAD_NODES)
@pytest.mark.parametrize("rule", ["krum", "median"])
def test_a_bad_reply_is_reported_and_left_out(kind: str, rule: str) -> None:
    node, reason = BAD_NODES[kind]
    begun = time.monotonic()
    arrays, events, _ = run(federation(node), rule=rule, timeout=0.3 if "no reply" in reason else 60.0)
    if node is stuck:
        assert time.monotonic() - begun < STUCK / 2
    np.testing.assert_allclose(moved(arrays), expected(rule), rtol=1e-5)
    assert arrays["count"] == 8 and arrays["count"].dtype == np.int64
    (rejected,) = (event for event in events if event.event == "rejected")
    assert (rejected.step, rejected.who, rejected.worker) == (0, f"node {BAD}", 4)
    assert reason in rejected.detail
    assert len(rejected.detail) < 250 and "\n" not in rejected.detail


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30])
def test_a_huge_value_is_left_to_the_rule(value: float) -> None:
    arrays, events, _ = run(federation(changed(bias=np.full(2, value, np.float32))))
    np.testing.assert_allclose(moved(arrays), expected("krum"), rtol=1e-5)
    assert not [event for event in events if event.event == "rejected"]


def test_flowers_own_average_does_not_survive_what_this_one_does() -> None:
    """The tests above could not fail if a NaN did no harm."""
    record = RecordDict({"arrays": beginning(), "config": ConfigRecord()})
    messages = [Message(content=record, dst_node_id=node, message_type="train") for node in (1, 2)]
    replies = [reply_with(message, {"weight": WEIGHT * value}, **{"num-examples": 1.0})
               for message, value in zip(messages, (1, np.nan), strict=True)]  # fmt: skip
    arrays, _ = FedAvg().aggregate_train(1, replies)
    assert arrays is not None and np.isnan(arrays["weight"].numpy()).all()


def test_arrays_in_columns_are_as_good() -> None:
    def in_columns(message: Message) -> Message:
        arrays = trained(message, 1)
        return reply_with(message, {**arrays, "weight": np.asfortranarray(arrays["weight"])})

    grid = federation(honest(BAD))
    grid.nodes[1] = in_columns
    assert np.asfortranarray(WEIGHT).flags.f_contiguous and not np.asfortranarray(WEIGHT).flags.c_contiguous
    ours, events, _ = run(grid)
    plain, _, _ = run(federation(honest(BAD)))
    np.testing.assert_array_equal(moved(ours), moved(plain))
    assert {event.event for event in events} == {"joined"}


def test_a_dead_node_is_a_row_of_nan_and_holds_up_nobody() -> None:
    begun = time.monotonic()
    arrays, events, result = run(federation(None), rounds=2)
    assert time.monotonic() - begun < 10
    np.testing.assert_allclose(moved(arrays), 2 * expected("krum"), rtol=1e-4)
    assert [event.event for event in events] == ["joined"] * 4
    assert result.train_metrics_clientapp[2]["valid-replies"] == 4


def test_too_few_replies_skip_the_round_and_change_nothing() -> None:
    def sometimes(node: int) -> Node:
        return lambda message: silent(message) if server_round(message) == 2 else honest(node)(message)

    grid = federation(silent)
    grid.nodes[4] = sometimes(4)
    arrays, events, result = run(grid, rounds=3, timeout=0.5)
    np.testing.assert_allclose(moved(arrays), 2 * expected("krum"), rtol=1e-4)
    (skipped,) = (event for event in events if event.event == "skipped")
    assert (skipped.step, skipped.worker, skipped.who) == (1, None, "")
    assert "3 valid replies, but n - f = 4" in skipped.detail
    assert [result.train_metrics_clientapp[number]["skipped"] for number in (1, 2, 3)] == [0, 1, 0]


def test_patience_ends() -> None:
    grid = federation(silent)
    grid.nodes[4] = unreadable
    with pytest.raises(TooFewRepliesError, match=r"2 rounds in a row were skipped, the last \(round 2\).*declare a"):
        run(grid, rounds=9, timeout=0.2, patience=2)


def test_a_good_round_resets_the_patience() -> None:
    def every_other(message: Message) -> Message | None:
        return honest(4)(message) if server_round(message) % 2 == 0 else None

    grid = federation(silent)
    grid.nodes[4] = every_other
    _, events, _ = run(grid, rounds=5, timeout=0.3, patience=2)
    assert [event.step for event in events if event.event == "skipped"] == [0, 2, 4]


def test_too_few_nodes_are_an_error_that_says_so() -> None:
    with pytest.raises(TooFewRepliesError, match="only 3 nodes have connected within 0 s, but n - f = 4"):
        run(federation(None, honest_ones=3))


@dataclasses.dataclass(frozen=True)
class SumFirst(rules.Average):
    """A mean whose sum may overflow."""

    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rules.Aggregate(rows.sum(dim=0) / len(rows), None)


def test_a_rule_without_resilience_skips_instead_of_spreading_what_overflows() -> None:
    # Two finite values that no float32 holds the sum of.
    bad = changed(bias=np.full(2, 3.4e38, np.float32))
    grid = federation(bad)
    grid.nodes[4] = bad
    arrays, events, _ = run(grid, rule=SumFirst())
    assert np.array_equal(moved(arrays), np.zeros(8))
    assert "not finite" in events[-1].detail
    assert np.isfinite(moved(run(grid, rule="average")[0])).all()  # float64 holds the sum


def test_rules_can_be_objects_and_infeasible_ones_are_refused_at_once() -> None:
    arrays, _, _ = run(federation(silent), rule=rules.make("krum", m=1), timeout=0.3)
    np.testing.assert_allclose(moved(arrays), expected("krum:m=1"), rtol=1e-5)
    with pytest.raises(InfeasibleError, match="n >= 2f \\+ 3 = 7"):
        RobustStrategy("krum", f=2, n=5)
    with pytest.raises(ConfigError, match="patience"):
        RobustStrategy("krum", f=1, n=5, patience=0)


def test_metrics_are_medians_that_a_byzantine_node_cannot_shift() -> None:
    def byzantine(message: Message) -> Message:
        return reply_with(message, trained(message, BAD), loss=1e30, invented=1.0, nonsense=float("nan"))

    _, _, result = run(federation(byzantine))
    metrics = result.train_metrics_clientapp[1]
    assert metrics["loss"] == 3.0
    assert "invented" not in metrics and "nonsense" not in metrics


def test_evaluation_by_the_nodes_is_a_median_too() -> None:
    def both(node: int) -> Node:
        def reply(message: Message) -> Message:
            if message.metadata.message_type == "evaluate":
                content = RecordDict({"m": MetricRecord({"accuracy": 1e9 if node == BAD else 0.1 * node})})
                return Message(content, reply_to=message)
            return honest(node)(message)

        return reply

    _, _, result = run(MemoryGrid({node: both(node) for node in range(1, 6)}), evaluate=True)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.3)


def test_momentum_at_the_server_accumulates_what_the_rule_returns() -> None:
    arrays, _, _ = run(federation(honest(BAD)), rounds=3, server_momentum=0.5)
    once, _, _ = run(federation(honest(BAD)))
    np.testing.assert_allclose(moved(arrays), (1 + 1.5 + 1.75) * moved(once), rtol=1e-4)


def test_a_rule_keeps_its_state_from_round_to_round_but_not_from_run_to_run() -> None:
    rule = rules.CenteredClipping(tau=0.1, start="zero")
    strategy = RobustStrategy(rule, f=1, n=5, gathering=0.0)
    for _ in range(2):
        result = strategy.start(federation(honest(BAD)), beginning(), 3, 60.0)
        state: rules.RuleState = {}
        start = np.concatenate([WEIGHT.reshape(-1), BIAS])
        for step in range(3):
            rows = torch.from_numpy(np.stack([update(node) for node in range(1, 6)]))
            (vector, _), state = rule.step(rows, 1, rules.RuleContext(step, 0, state))
            start = start + vector.numpy()
        weight = result.arrays["weight"].numpy()
        np.testing.assert_allclose(weight.reshape(-1), start[:6], rtol=1e-4)


def test_a_rule_that_needs_a_trusted_gradient_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="a Flower strategy has no such thing"):
        RobustStrategy("fltrust", f=1, n=5)


def test_of_more_nodes_than_n_a_choice_is_asked_and_nodes_keep_their_rows() -> None:
    grid = MemoryGrid({node: honest(node) for node in range(1, 9)})
    _, events, _ = run(grid, rounds=6)
    rounds: dict[int, list[int]] = {}
    for message in grid.asked:
        rounds.setdefault(server_round(message), []).append(message.metadata.dst_node_id)
    assert all(len(set(nodes)) == 5 for nodes in rounds.values())
    assert len({tuple(nodes) for nodes in rounds.values()}) > 1
    nodes: dict[int, int] = {}
    for number in range(1, 7):
        for event in events:
            if event.step == number - 1 and event.worker is not None:
                nodes[event.worker] = int(event.who.removeprefix("node "))
        assert set(rounds[number]) == {node for node in nodes.values() if node in rounds[number]}
    assert set(nodes) == set(range(5))


def test_messages_expire_with_their_round() -> None:
    grid = federation(honest(BAD))
    run(grid, timeout=17.0)
    assert {message.metadata.ttl for message in grid.asked} == {17.0}


def test_on_weights_receives_a_share_per_row() -> None:
    received: list[Any] = []
    run(federation(changed(bias=np.full(2, 3e38, np.float32))), on_weights=lambda *given: received.append(given))
    ((number, shares),) = received
    assert number == 1 and shares[4] == 0.0 and sum(shares) == pytest.approx(1.0)


def test_replies_that_nobody_asked_for_are_reported_and_not_used() -> None:
    events: list[Event] = []
    strategy = RobustStrategy("median", f=1, n=5, on_event=lambda *facts: events.append(Event(*facts)))
    grid = federation(honest(BAD))
    messages = list(strategy.configure_train(1, beginning(), ConfigRecord(), grid))
    grid.push_messages(messages)
    replies = [honest(message.metadata.dst_node_id)(message) for message in messages]
    stranger = honest(1)(messages[0])
    assert stranger is not None
    stranger.metadata.__dict__["_src_node_id"] = 99
    arrays, _ = strategy.aggregate_train(1, [reply for reply in (*replies, replies[0], stranger) if reply])
    assert arrays is not None
    assert [(event.who, event.worker) for event in events if event.event == "rejected"] == [
        ("node 1", 0),
        ("node 99", None),
    ]


def test_arrays_without_floating_point_values_cannot_be_trained() -> None:
    strategy = RobustStrategy("median", f=0, n=1)
    with pytest.raises(GyroscopeError, match="nothing to train"):
        strategy.start(MemoryGrid({1: silent}), ArrayRecord({"count": Array(COUNT)}), 1)


def test_half_precision_that_overflows_is_not_sent_on() -> None:
    def node(message: Message) -> Message:
        return reply_with(message, {"w": np.full(2, 6e4, np.float16)})

    events: list[Event] = []
    strategy = RobustStrategy(
        "median", f=0, n=1, server_momentum=0.9, on_event=lambda *facts: events.append(Event(*facts))
    )
    # The first round goes to 6e4, near the largest float16; momentum would carry the second beyond it.
    result = strategy.start(MemoryGrid({1: node}), ArrayRecord({"w": Array(np.zeros(2, np.float16))}), 2)
    assert [(event.step, event.event) for event in events] == [(0, "joined"), (1, "skipped")]
    np.testing.assert_array_equal(result.arrays["w"].numpy(), np.full(2, 6e4, np.float16))


def test_a_strategy_can_be_started_again_with_another_model() -> None:
    strategy = RobustStrategy("median", f=0, n=1, server_momentum=0.9)
    for size in (2, 3):
        start = np.zeros(size, np.float32)
        grid = MemoryGrid({1: lambda message: reply_with(message, {"w": arrays_of(message)["w"] + np.float32(1)})})
        result = strategy.start(grid, ArrayRecord({"w": Array(start)}), 1)
        np.testing.assert_array_equal(result.arrays["w"].numpy(), np.ones(size))


def test_the_fault_tolerant_grid_gives_one_reply_per_message_in_order() -> None:
    grid = FaultTolerantGrid(federation(unreadable))
    record = RecordDict({"arrays": beginning(), "config": ConfigRecord({"server-round": 1})})
    messages = [Message(content=record, dst_node_id=node, message_type="train") for node in (5, 3, 1)]
    replies = grid.send_and_receive(messages, timeout=30)
    assert [reply.metadata.src_node_id for reply in replies] == [5, 3, 1]
    assert [reply.has_error() for reply in replies] == [True, False, False]


def test_a_connection_that_comes_back_loses_nothing() -> None:
    import httpx

    failures = iter([httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])

    def shaky(message: Message) -> Message | None:
        for problem in failures:
            raise problem
        return honest(BAD)(message)

    _, events, _ = run(federation(shaky))
    assert {event.event for event in events} == {"joined"}


def test_json_is_enough_for_an_event() -> None:
    """Events hold plain values: they keep no object of a stranger's reply alive."""
    _, events, _ = run(federation(unreadable))
    assert all(json.dumps(event) for event in events)
