"""Rows in half precision and rows of few values: what is written and read, what strangers write, what a run learns."""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from clusters import table
from hypothesis import given
from hypothesis import strategies as st
from launching import gyroscope
from torch import Tensor

import gyroscope as gy
from benchmarks.pages import update_row_formats
from gyroscope._core.errors import ConfigError, LinkError, RunDirectoryError, UnknownNameError
from gyroscope.distributed import row_formats
from gyroscope.distributed.connection import ServerConnection
from gyroscope.distributed.protocol import ANSWER, HEAD_SIZE, Head, Message, Offer
from gyroscope.distributed.row_formats import MalformedRowError, RowFormat, RowWriter, TopK
from gyroscope.distributed.server.parameter_server import Server, ServerOptions
from gyroscope.distributed.worker import RowComputer, ServerGoneError, Worker

SPECS = ("full", "float16", "bfloat16", "top-k:share=0.3", "top-k:share=0.3,feedback=true")
any_float = st.floats(width=32, allow_nan=True, allow_infinity=True) | st.integers(-2, 2).map(float)
rows = st.lists(any_float, min_size=1, max_size=30).map(torch.tensor)


def encoded(row_format: RowFormat, row: Tensor) -> Tensor:
    """Encode between guards, which must stay as they are."""
    count = row_format.count(row.numel())
    out = torch.full((count + 2,), 77, dtype=row_format.dtype_for(row.dtype))
    row_format.encode(row, out[1:-1])
    assert out[0] == 77 and out[-1] == 77
    return out[1:-1].clone()


def decoded(row_format: RowFormat, values: Tensor, d: int) -> tuple[Tensor, bool]:
    guarded = torch.full((d + 2,), 77.0)
    try:
        return guarded[1:-1], row_format.decode(values, guarded[1:-1])
    except MalformedRowError:
        assert torch.equal(guarded[1:-1], torch.full((d,), 77.0))
        raise
    finally:
        assert guarded[0] == 77 and guarded[-1] == 77


def same(one: list[float], other: list[float]) -> bool:
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))


# -- what is written and read ------------------------------------------------------------------------------------------


def naive_bfloat16(value: float) -> float:
    """Round the upper half of float32's bits to the nearest, ties to even."""
    if math.isnan(value):
        return value
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


@given(rows)
def test_half_precision_against_a_naive_one(row: Tensor) -> None:
    with np.errstate(over="ignore"):
        half = row.numpy().astype(np.float16).astype(np.float32).tolist()
    oracles = {"full": row.tolist(), "float16": half, "bfloat16": [naive_bfloat16(value) for value in row.tolist()]}
    for spec, expected in oracles.items():
        found, finite = decoded(row_formats.parse(spec), encoded(row_formats.parse(spec), row), row.numel())
        assert same(found.tolist(), expected)
        assert finite == all(map(math.isfinite, expected))


@given(rows, st.floats(0.01, 1.0))
def test_top_k_against_a_naive_one(row: Tensor, share: float) -> None:
    """The k values of largest magnitude come through as they are; of equal ones any; NaN is larger than inf."""
    found, finite = decoded(TopK(share), encoded(TopK(share), row), row.numel())
    k = max(1, round(share * row.numel()))

    def size(value: float) -> float:
        return math.nan if math.isnan(value) else abs(value)

    def order(value: float) -> tuple[bool, float]:
        return (math.isnan(value), 0.0 if math.isnan(value) else abs(value))

    expected = [size(value) for value in sorted(row.tolist(), key=order, reverse=True)[:k]]
    kept = [value for value in found.tolist() if value != 0]
    assert same([size(value) for value in sorted(kept, key=order, reverse=True)], [e for e in expected if e != 0])
    assert all(value == 0 or same([value], [sent]) for value, sent in zip(found.tolist(), row.tolist(), strict=True))
    assert finite == bool(row.isfinite().all())


@given(st.integers(1, 12).flatmap(
    lambda d: st.tuples(
        st.just(d),
        st.integers(1, d).flatmap(
            lambda k: st.lists(st.integers(-2, d + 1) | st.integers(-(2**31), 2**31 - 1), min_size=k, max_size=k)
            | st.lists(st.integers(0, d - 1), min_size=k, max_size=k, unique=True).map(sorted)
        ),
    )
))  # fmt: skip
def test_whatever_indices_come_they_are_a_row_or_malformed(case: tuple[int, list[int]]) -> None:
    """Nothing else is raised, and nothing is written but the row."""
    d, indices = case
    given_values = torch.arange(1.0, len(indices) + 1)
    values = torch.cat([torch.tensor(indices, dtype=torch.int32), given_values.view(torch.int32)])
    right = all(0 <= index < d for index in indices) and indices == sorted(set(indices))
    if not right:
        with pytest.raises(MalformedRowError, match="ind"):
            decoded(TopK(), values, d)
        return
    expected = [0.0] * d
    for place, index in enumerate(indices):
        expected[index] = place + 1.0
    assert decoded(TopK(), values, d)[0].tolist() == expected


@pytest.mark.parametrize("spec", SPECS)
def test_a_row_takes_the_bytes_that_are_announced(spec: str) -> None:
    config = gy.Config(workers=3, momentum="workers", nesterov=True).resolve()
    offer = Offer(config, 3, 1000, "float32", 1.0, row_formats.parse(spec))
    assert Offer.parse(offer.text()).row_format == offer.row_format and str(offer.row_format) == spec
    # A row and the momentum behind it, except with top-k: a worker that restarts begins with none.
    expected = {"full": 8000, "float16": 4000, "bfloat16": 4000}.get(spec, 2400)
    assert offer.answer_values * offer.answer_dtype.itemsize == expected


def test_formats_that_do_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server writes the format that a worker reads: it must not be able to have a module imported."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for spec in ("trap:Format", "zip", ""):
        with pytest.raises(UnknownNameError, match="row format"):
            ServerOptions(row_format=spec)
    for share in (0, -1, 1.5, "nan", "inf", "true", "x"):
        with pytest.raises(ConfigError, match="above 0 and at most 1"):
            row_formats.parse(f"top-k:share={share}")
    with pytest.raises(ConfigError, match="use bfloat16"):
        TopK().count(2**31)
    offer = Offer(gy.Config(workers=3).resolve(), 3, 10, "float32", 1.0)
    with pytest.raises(LinkError, match="unknown row format"):
        Offer.parse(offer.text().replace('row_format = "full"', 'row_format = "trap:Format"'))


# -- what is not sent --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=7, max_size=7), min_size=1, max_size=12))
def test_nothing_is_lost_with_error_feedback(sent: list[list[int]]) -> None:
    writer, total = RowWriter(TopK(0.3, feedback=True)), torch.zeros(7)
    out = torch.empty(writer.row_format.count(7), dtype=torch.int32)
    for row in sent:
        writer.write(torch.tensor(row, dtype=torch.float32), out)
        total += decoded(writer.row_format, out, 7)[0]
    assert writer.rest is not None
    assert torch.equal(total + writer.rest, torch.tensor(sent, dtype=torch.float32).sum(dim=0))


@pytest.mark.parametrize("spec", SPECS)
def test_only_top_k_with_feedback_keeps_a_rest(spec: str) -> None:
    """Without, the second row is what it is alone."""
    writer = RowWriter(row_formats.parse(spec))
    out = torch.empty(writer.row_format.count(4), dtype=writer.row_format.dtype_for(torch.float32))
    for row in ([9.0, 8.0, 0.0, 0.0], [0.0, 1.0, 2.0, 0.0]):
        writer.write(torch.tensor(row), out)
    assert (writer.rest is not None) == ("feedback" in spec)
    largest = decoded(writer.row_format, out, 4)[0].argmax()
    assert largest == (1 if "feedback" in spec else 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_sent_and_not_kept(bad: float) -> None:
    writer = RowWriter(TopK(0.3, feedback=True))
    out = torch.empty(writer.row_format.count(5), dtype=torch.int32)
    writer.write(torch.tensor([3.0, 1.0, -5.0, 4.0, 2.0]), out)
    kept = writer.rest.clone()  # type: ignore[union-attr]
    assert kept.tolist() == [3.0, 1.0, 0.0, 0.0, 2.0]
    writer.write(torch.tensor([1.0, bad, 1.0, 1.0, 1.0]), out)
    assert not decoded(writer.row_format, out, 5)[1] and torch.equal(writer.rest, kept)


def test_a_rest_that_would_overflow_is_not_kept() -> None:
    """The row is sent without it, and is finite."""
    writer = RowWriter(TopK(0.3, feedback=True))
    out = torch.empty(writer.row_format.count(4), dtype=torch.int32)
    writer.write(torch.tensor([3e38, 2e38, 0.0, 0.0]), out)
    writer.write(torch.tensor([1.0, 2e38, 0.0, 0.0]), out)
    assert writer.rest.tolist() == pytest.approx([0.0, 2e38, 0.0, 0.0])  # type: ignore[union-attr]
    row, finite = decoded(writer.row_format, out, 4)
    assert finite and row.tolist() == pytest.approx([0.0, 2e38, 0.0, 0.0])
    large = torch.tensor([1e300, 1.0, 0.0, 0.0], dtype=torch.float64)  # float32, which is sent, cannot hold it
    RowWriter(TopK(0.3, feedback=True)).write(large, out)
    assert not decoded(TopK(0.3), out, 4)[1]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_bad_batch_costs_a_worker_one_round(spec: str, nesterov: bool) -> None:
    config = gy.Config(workers=3, momentum="workers", nesterov=nesterov, threads=1).resolve()
    offer = Offer(config, 3, 7510, "float32", 1.0, row_formats.parse(spec))
    undisturbed, disturbed = RowComputer(offer, 0, {}), RowComputer(offer, 0, {})
    parameters = undisturbed.worker.parameters.clone()
    out = torch.empty(offer.answer_values, dtype=offer.answer_dtype)
    row = torch.empty(offer.dimension)
    disturbed.answer(0, parameters, out)
    undisturbed.answer(0, parameters, out)
    disturbed.answer(1, parameters * math.nan, out)
    assert not offer.row_format.decode(out[: offer.row_values], row)
    disturbed.answer(2, parameters, out)
    assert offer.row_format.decode(out[: offer.row_values], row)
    expected = torch.empty_like(out)
    undisturbed.answer(2, parameters, expected)
    assert torch.equal(out, expected)
    disturbed.load_momentum(None)  # as after joining again: neither momentum nor rest
    disturbed.answer(0, parameters, out)
    RowComputer(offer, 0, {}).answer(0, parameters, expected)
    assert torch.equal(out, expected)


# -- over connections --------------------------------------------------------------------------------------------------

CONFIG = gy.Config(workers=4, declared_byzantine=1, rule="median", momentum="workers", steps=8, threads=1)


class ScriptedComputer(RowComputer):
    """Answers with what it is told to, and keeps the momenta that it is handed."""

    def __init__(self, offer: Offer, answer_of: Callable[[int, int], Tensor]) -> None:
        self.offer, self.d, self.dtype = offer, offer.dimension, torch.float32
        self.answer_of, self.handed = answer_of, list[Tensor | None]()

    def load_momentum(self, momentum: Tensor | None) -> None:
        self.handed.append(None if momentum is None else momentum.clone())

    def answer(self, step: int, parameters: Tensor, values: Tensor) -> float:
        values.copy_(self.answer_of(step, self.d))
        return 0.5


class ScriptedWorker(Worker):
    """A worker over a real connection, with such rows, that may do something else than reply at a step."""

    def __init__(
        self,
        port: int,
        number: int,
        answer_of: Callable[[int, int], Tensor],
        instead: dict[int, Callable[[ServerConnection, Message], None]] | None = None,
    ) -> None:
        super().__init__("127.0.0.1", port, number, patience=2.0)
        self.answer_of, self.instead = answer_of, instead or {}
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        with contextlib.suppress(ServerGoneError):
            self.work()

    def make_computer(self, offer: Offer) -> RowComputer:
        return ScriptedComputer(offer, self.answer_of)

    def reply(self, connection: ServerConnection, answer: Message, step: int) -> None:
        self.instead.pop(step, lambda to, message: super(ScriptedWorker, self).reply(to, message, step))(
            connection, answer
        )


def top_k_values(indices: list[int], d: int) -> Tensor:
    """Return k indices, which increase behind those given, and k ones."""
    k = TopK(0.01).count(d) // 2
    chosen = torch.arange(k, dtype=torch.int64)
    chosen[: len(indices)] = torch.tensor(indices)
    return torch.cat([chosen.to(torch.int32), torch.ones(k).view(torch.int32)])


def test_hostile_indices_over_a_connection(tmp_path: Path) -> None:
    """Each is an event and a missing row; the link goes on, and so do the others' rounds."""
    wrong = {1: [-1], 2: [2**31 - 1], 3: [5, 5], 4: [9, 3], 5: [-(2**31)]}

    def hostile(step: int, d: int) -> Tensor:
        values = top_k_values(wrong.get(step, []), d)
        if step == 6:  # the last index, just behind the row
            values[values.numel() // 2 - 1] = d
        return values

    def full_row(connection: ServerConnection, answer: Message) -> None:
        session = Head.parse(answer.bytes[:HEAD_SIZE]).session
        connection.send(Head(ANSWER, 7, session, 4 * 7510).pack() + bytes(4 * 7510), 20)

    def honest(step: int, d: int) -> Tensor:
        return top_k_values([], d)

    options = ServerOptions(port=0, row_format="top-k:share=0.01", grace=20.0)
    with Server(options) as server:
        workers = [ScriptedWorker(server.port, number, honest) for number in range(3)]
        workers.append(ScriptedWorker(server.port, 3, hostile, {7: full_row}))
        result = server.train(CONFIG, tmp_path / "run")
    assert result.status == "complete"
    for worker in workers:
        worker.thread.join(30.0)
        assert not worker.thread.is_alive()
    events = table(tmp_path / "run" / "events.csv")
    rejected = {int(row["step"]): row["detail"] for row in events if row["event"] == "rejected"}
    assert {row["worker"] for row in events if row["event"] == "rejected"} == {"3"} and list(rejected) == [*range(1, 8)]
    assert "has the index -1, only 0 to 7,509 exist" in rejected[1] and "has the index -2,147,483,648" in rejected[5]
    assert all("do not increase" in rejected[step] for step in (2, 3, 4))
    assert "has the index 7,510, only 0 to 7,509 exist" in rejected[6]
    assert "announces 30,040 bytes of values instead of 600" in rejected[7]
    assert {row["step"] for row in events if row["event"] == "lost"} == {"7"}


@pytest.mark.parametrize("spec", ["float16", "top-k:share=0.01"])
def test_what_a_worker_that_joins_again_continues_with(spec: str, tmp_path: Path) -> None:
    """In half precision with the row that it sent, rounded; with top-k with nothing."""
    again = threading.Event()

    def row(step: int, d: int) -> Tensor:
        if step > 3:
            assert again.wait(20.0)
        return torch.full((d,), 1 / 3) if spec == "float16" else top_k_values([], d)

    def own_row(step: int, d: int) -> Tensor:
        computer = workers[3].computer
        if isinstance(computer, ScriptedComputer) and len(computer.handed) == 2:
            again.set()
        return row(0, d)

    def break_off(connection: ServerConnection, answer: Message) -> None:
        raise OSError("it breaks off")

    with Server(ServerOptions(port=0, row_format=spec, grace=20.0)) as server:
        workers: list[ScriptedWorker] = []
        for number in range(4):
            last = number == 3
            workers.append(
                ScriptedWorker(server.port, number, own_row if last else row, {3: break_off} if last else {})
            )
        assert server.train(CONFIG, tmp_path / "run").status == "complete"
    computer = workers[3].computer
    assert isinstance(computer, ScriptedComputer) and len(computer.handed) == 2 and computer.handed[0] is None
    handed = computer.handed[1]
    joined = [row for row in table(tmp_path / "run" / "events.csv") if (row["event"], row["worker"]) == ("joined", "3")]
    if spec == "float16":
        assert handed is not None and handed.unique().tolist() == [float(torch.tensor(1 / 3).half())]
        assert "momentum of step 2" in joined[1]["detail"]
    else:
        assert handed is None and joined[1]["detail"] == ""


def test_a_run_is_not_resumed_in_another_format(tmp_path: Path) -> None:
    stop = threading.Event()

    def row(step: int, d: int) -> Tensor:
        if step == 3:
            stop.set()
        return top_k_values([], d)

    with Server(ServerOptions(port=0, row_format="top-k:share=0.01", grace=20.0), stop=stop.is_set) as server:
        workers = [ScriptedWorker(server.port, number, row) for number in range(4)]
        assert server.train(CONFIG, tmp_path / "run").status == "interrupted"
    with (
        Server(ServerOptions(port=0)) as other,
        pytest.raises(RunDirectoryError, match=r"continue it with --row-format top-k:share=0.01"),
    ):
        other.resume(tmp_path / "run")
    for worker in workers:
        worker.thread.join(30.0)
    stop.clear()
    with Server(ServerOptions(port=0, row_format="top-k:share=1e-2", grace=20.0)) as server:  # the same share
        for number in range(4):
            ScriptedWorker(server.port, number, lambda step, d: top_k_values([], d))
        assert server.resume(tmp_path / "run").status == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["float16", "bfloat16", "top-k:share=0.1"])
def test_launch_learns_with_the_numbers_of_the_simulation(spec: str, tmp_path: Path) -> None:
    config = gy.Config(workers=5, byzantine=1, rule="krum", attack="little", steps=60, threads=1, momentum="workers")
    given = ("--workers", 5, "--byzantine", 1, "--rule", "krum", "--attack", "little", "--steps", 60, "--threads", 1)
    limits = ("--deadline", 60, "--grace", 120)
    finished = gyroscope("launch", *given, *limits, "--row-format", spec, "--quiet", "--out", tmp_path / "run")
    assert finished.code == 0, finished
    simulated = update_row_formats.run(config, spec)
    served_accuracies = [float(row["accuracy"]) for row in table(tmp_path / "run" / "evaluations.csv")]
    assert served_accuracies == simulated.evaluations["accuracy"].tolist()
    assert max(served_accuracies) > 0.75  # with four honest workers and 60 steps; 0.1 is chance
    norms = [float(row["sent_norm"]) for row in table(tmp_path / "run" / "metrics.csv")]
    assert norms == pytest.approx(simulated.metrics["sent_norm"].tolist(), rel=1e-5)


def test_full_rows_have_the_numbers_of_a_run_without_formats() -> None:
    config = gy.Config(workers=5, byzantine=1, rule="krum", attack="little", steps=20, threads=1, momentum="workers")
    with_format, without = update_row_formats.run(config, "full"), gy.train(config)
    assert with_format.evaluations["accuracy"].tolist() == without.evaluations["accuracy"].tolist()
    assert with_format.metrics["aggregate_norm"].tolist() == without.metrics["aggregate_norm"].tolist()
