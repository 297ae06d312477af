"""The clock: the order of events, how long things take, and that nothing of it depends on luck."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope.research.asynchronous.timing import (
    ARRIVE,
    FETCH,
    EventQueue,
    TimedEvent,
    WorkerTiming,
    first_events,
    speeds,
)


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from([ARRIVE, FETCH]), st.integers(0, 4)), max_size=30))
def test_events_come_by_time_then_arrivals_first_then_by_number(wanted: list[tuple[float, int, int]]) -> None:
    queue = EventQueue()
    for time, kind, worker in wanted:
        queue.push(TimedEvent(time, kind, worker))
    out = [queue.pop() for _ in range(len(queue))]
    assert [(event.time, event.kind, event.worker) for event in out] == sorted(wanted)
    assert len(queue) == 0
    assert ARRIVE < FETCH  # whoever fetches at the same moment gets the newer model


def test_speeds_are_equal_drawn_or_given() -> None:
    assert speeds("equal", 3, 1) == (1.0, 1.0, 1.0)
    assert speeds("1,2,0.5", 3, 1) == (1.0, 2.0, 0.5)
    assert speeds("lognormal:sigma=0.5", 5, 1) == speeds("lognormal", 5, 1) != speeds("lognormal", 5, 2)
    assert speeds("lognormal:sigma=0", 2, 1) == (1.0, 1.0)
    drawn = [math.log(speed) for speed in speeds("lognormal:sigma=0.3", 2000, 1)]
    assert abs(statistics.fmean(drawn)) < 0.03 and abs(statistics.stdev(drawn) - 0.3) < 0.03


@pytest.mark.parametrize("spec", ["1,2", "1,x,2", "1,0,2", "lognormal:sigma=-1", "lognormal:sigma=fast", "1,inf,1"])
def test_speeds_that_make_no_sense_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"speed|sigma"):
        speeds(spec, 3, 1)


@pytest.mark.parametrize("spec", ["lognromal", "lognormal:sgima=1", "equal:sigma=1"])
def test_unknown_speeds_are_named(spec: str) -> None:
    with pytest.raises(UnknownNameError):
        speeds(spec, 3, 1)


def test_durations_are_those_of_the_speeds_and_stragglers_take_longer() -> None:
    plain = WorkerTiming((1.0, 4.0), honest=1, seed=1)
    assert [plain.duration(worker, 7) for worker in (0, 1)] == [1.0, 0.25]
    some = WorkerTiming((1.0,), honest=1, seed=1, stragglers=0.25, straggler_factor=8.0)
    drawn = [some.duration(0, count) for count in range(2000)]
    assert set(drawn) == {1.0, 8.0} and abs(drawn.count(8.0) / 2000 - 0.25) < 0.03
    assert some.duration(0, 5) == drawn[5]  # whatever was asked for before
    varied = WorkerTiming((2.0,), honest=1, seed=1, jitter=0.4)
    logs = [math.log(varied.duration(0, count)) for count in range(2000)]
    assert abs(statistics.fmean(logs) - math.log(0.5)) < 0.03 and abs(statistics.stdev(logs) - 0.4) < 0.03


def test_workers_of_one_speed_begin_spread_over_their_cycle_and_only_honest_ones_rest() -> None:
    timing = WorkerTiming((1.0, 1.0, 1.0, 1.0, 10.0, 10.0), honest=4, seed=1, idle=3.0)
    queue = first_events(timing)
    starts = {event.worker: event.time for event in (queue.pop() for _ in range(6))}
    assert [starts[worker] for worker in range(4)] == [0.0, 1.0, 2.0, 3.0]
    assert [starts[worker] for worker in (4, 5)] == [0.0, 0.05]
    assert timing.rest(0, 2.0) == 6.0 and timing.rest(4, 2.0) == 0.0
