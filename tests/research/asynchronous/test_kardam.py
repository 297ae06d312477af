"""Kardam's filters against what they promise, with oracles written from the definitions."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope.research.asynchronous import dampening
from gyroscope.research.asynchronous.filters import Arrival, Filter, FilterVerdict, NoFilter
from gyroscope.research.asynchronous.kardam import FILTERS, Frequency, Kardam, Lipschitz, parse

D = 3


def judge_all(filter: Filter[Any], f: int, arrivals: list[Arrival]) -> list[FilterVerdict]:
    state, verdicts = filter.begin(f), []
    for arrival in arrivals:
        verdict, state = filter.judge(arrival, state)
        verdicts.append(verdict)
    return verdicts


def at(worker: int, vector: list[float] | Tensor, version: int, model: Tensor | None = None) -> Arrival:
    parameters = torch.full((D,), float(version)) if model is None else model
    return Arrival(worker, torch.as_tensor(vector, dtype=torch.float32), parameters, version)


def by_workers(order: list[int]) -> list[Arrival]:
    """Gradients of which only the sender matters, as all are alike."""
    return [at(worker, [1.0, 0.0, 0.0], number) for number, worker in enumerate(order)]


# -- the frequency filter --------------------------------------------------------------------------------------------


def any_f_have_more_than_f(window: list[int], f: int) -> bool:
    """The definition, by brute force over all groups of f workers."""
    groups = itertools.combinations(set(window), min(f, len(set(window))))
    return any(sum(worker in group for worker in window) > f for group in groups)


@given(st.integers(1, 3), st.data())
def test_no_f_workers_ever_have_more_than_f_of_2f_plus_1_accepted_in_a_row(f: int, data: st.DataObject) -> None:
    n = 3 * f + 1
    order = data.draw(st.lists(st.integers(0, n - 1), max_size=60))
    verdicts = judge_all(Frequency(), f, by_workers(order))
    accepted = [worker for worker, verdict in zip(order, verdicts, strict=True) if verdict.accepted]
    for start in range(len(accepted) - 2 * f):
        assert not any_f_have_more_than_f(accepted[start : start + 2 * f + 1], f)


@given(st.integers(1, 3), st.data())
def test_the_frequency_filter_refuses_only_what_the_definition_forbids(f: int, data: st.DataObject) -> None:
    order = data.draw(st.lists(st.integers(0, 3 * f), max_size=60))
    last: list[int] = []
    for worker, verdict in zip(order, judge_all(Frequency(), f, by_workers(order)), strict=True):
        if len(last) == 2 * f:  # with fewer, the definition says nothing about 2f + 1
            assert verdict.accepted == (not any_f_have_more_than_f([*last, worker], f))
        if verdict.accepted:
            last = [*last, worker][-2 * f :]
        else:
            assert worker in last and verdict.refused_by == "frequency"


@pytest.mark.parametrize("f", [1, 2, 5])
def test_byzantine_workers_of_any_speed_have_at_most_f_of_2f_plus_1(f: int) -> None:
    honest, liars = list(range(2 * f + 1)), [*range(2 * f + 1, 3 * f + 1)]
    order = [worker for number in range(60) for worker in (*liars * 20, honest[number % len(honest)])]
    verdicts = judge_all(Frequency(), f, by_workers(order))
    accepted = [worker for worker, verdict in zip(order, verdicts, strict=True) if verdict.accepted]
    assert sum(worker < 2 * f + 1 for worker in accepted) == 60  # honest workers in turn are never refused
    for start in range(len(accepted) - 2 * f):
        window = accepted[start : start + 2 * f + 1]
        assert sum(worker in liars for worker in window) <= f
    assert sum(worker in liars for worker in accepted) / len(accepted) > 0.9 * f / (2 * f + 1)  # it is attained, too


@pytest.mark.parametrize("f", [1, 2, 3])
def test_nobody_starves_when_all_are_honest(f: int) -> None:
    n = 3 * f + 1
    in_turn = [number % n for number in range(20 * n)]
    assert all(verdict.accepted for verdict in judge_all(Frequency(), f, by_workers(in_turn)))
    # One worker is ten times as fast: it is refused often, but never unless it was accepted a short while ago.
    hasty = [worker for number in range(200) for worker in (*[0] * 10, 1 + number % (n - 1))]
    verdicts = judge_all(Frequency(), f, by_workers(hasty))
    accepted = [worker for worker, verdict in zip(hasty, verdicts, strict=True) if verdict.accepted]
    assert all(accepted.count(worker) >= 200 // n for worker in range(n))
    assert max(second - first for first, second in itertools.pairwise(_places(accepted, 0))) == 2 * f + 1


def _places(items: list[int], wanted: int) -> list[int]:
    return [place for place, item in enumerate(items) if item == wanted]


def test_the_weaker_reading_lets_two_colluders_have_2f_of_2f_plus_1() -> None:
    f, liars = 2, [5, 6]
    order = [worker for number in range(50) for worker in (*liars * 5, number % 5)]
    verdicts = judge_all(Frequency(joint=False), f, by_workers(order))
    accepted = [worker for worker, verdict in zip(order, verdicts, strict=True) if verdict.accepted]
    assert max(sum(w in liars for w in accepted[start : start + 5]) for start in range(len(accepted) - 4)) == 2 * f


# -- the Lipschitz filter --------------------------------------------------------------------------------------------


def oracle(f: int, arrivals: list[Arrival], then: Callable[[int], bool] = lambda worker: True) -> list[bool]:
    """The filter by its definition, in plain numbers: all that was accepted of every worker is kept and searched."""
    history: dict[int, list[Arrival]] = {}
    growth: dict[int, float] = {}
    norms: dict[int, float] = {}
    accepted = []
    for arrival in arrivals:
        vector = arrival.vector.double()
        if not bool(vector.isfinite().all()):
            accepted.append(False)
            continue
        others = [old for old in history.get(arrival.worker, []) if old.version != arrival.version]
        moved = float((arrival.parameters - others[-1].parameters).double().norm()) if others else 0.0
        coefficient = float((vector - others[-1].vector.double()).norm()) / moved if moved > 0 else None
        norms[arrival.worker] = float(vector.norm())
        if coefficient is not None:
            growth[arrival.worker] = coefficient
        table, value = norms, norms[arrival.worker]
        if coefficient is not None and len(growth) >= 2 * f + 1:
            table, value = growth, coefficient
        smaller = sum(entry <= value for entry in table.values())
        below = sum(entry < value for entry in table.values())
        # Among all but the f largest: at least one order in which it is not one of these f.
        passes = len(table) >= 2 * f + 1 and below < len(table) - f and smaller >= 1
        accepted.append(passes and then(arrival.worker))
        if accepted[-1]:
            history.setdefault(arrival.worker, []).append(arrival)
    return accepted


numbers = st.one_of(st.floats(-10, 10, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 0.0]))


@given(st.integers(0, 2), st.data())
def test_the_lipschitz_filter_is_the_definition(f: int, data: st.DataObject) -> None:
    sends = data.draw(
        st.lists(
            st.tuples(st.integers(0, 2 * f + 2), st.lists(numbers, min_size=D, max_size=D), st.integers(0, 2)),
            max_size=40,
        )
    )
    version, arrivals = 0, []
    seen: dict[int, int] = {}
    for worker, vector, ahead in sends:
        version += ahead
        seen[worker] = max(seen.get(worker, 0), version)
        arrivals.append(at(worker, vector, seen[worker], torch.tensor([0.5 * seen[worker], 1.0, -1.0])))
    assert [verdict.accepted for verdict in judge_all(Lipschitz(), f, arrivals)] == oracle(f, arrivals)


@given(st.integers(1, 2), st.integers(0, 10**6), st.data())
def test_whatever_f_liars_send_nothing_larger_than_honest_passes_and_n_minus_2f_honest_ones_do(
    f: int, seed: int, data: st.DataObject
) -> None:
    """In any order, with any numbers, and on models that may stand still."""
    n = 3 * f + 1
    h = n - f
    stream = torch.Generator().manual_seed(seed)
    filter, version = Lipschitz(), 0
    state = filter.begin(f)
    growth: dict[int, float] = {}
    norms: dict[int, float] = {}
    longest, largest = 0.0, 0.0  # of what honest workers ever sent: norm, coefficient
    for _ in range(5):
        for worker in data.draw(st.permutations(range(n))):
            version += data.draw(st.integers(0, 1))
            vector = torch.randn(D, generator=stream)
            if worker >= h:
                vector = torch.tensor(data.draw(st.lists(numbers, min_size=D, max_size=D)))
            verdict, state = filter.judge(at(worker, vector, version), state)
            if worker < h:
                norms[worker] = float(vector.double().norm())
                longest = max(longest, norms[worker])
                if verdict.coefficient is not None:
                    growth[worker] = verdict.coefficient
                    largest = max(largest, verdict.coefficient)
            if verdict.bound is not None:
                assert verdict.bound <= max(growth.values())
                assert verdict.accepted == (verdict.coefficient is not None and verdict.coefficient <= verdict.bound)
                if len(growth) == h:
                    assert sum(value <= verdict.bound for value in growth.values()) >= n - 2 * f
            elif verdict.accepted:
                assert float(vector.double().norm()) <= max(norms.values())
            if verdict.accepted:  # models are at (version, version, version), and go one way
                assert float(vector.double().norm()) <= (longest + largest * version * D**0.5) * (1 + 1e-9)


@pytest.mark.parametrize("lie", [3e38, math.nan, math.inf], ids=["huge", "nan", "inf"])
def test_huge_lies_are_always_refused(lie: float) -> None:
    f, stream = 2, torch.Generator().manual_seed(3)
    arrivals = [
        at(number % 7, torch.randn(D, generator=stream) if number % 7 < 5 else [lie, 0.0, -lie], number // 2)
        for number in range(70)
    ]
    for number, verdict in enumerate(judge_all(Lipschitz(), f, arrivals)):
        assert number % 7 < 5 or not verdict.accepted


def test_without_anybody_to_fear_every_finite_gradient_passes() -> None:
    stream = torch.Generator().manual_seed(1)
    arrivals = [at(number % 4, torch.randn(D, generator=stream), number // 3) for number in range(60)]
    assert all(verdict.accepted for verdict in judge_all(Lipschitz(), 0, arrivals))
    (verdict,) = judge_all(Lipschitz(), 0, [at(0, [1.0, math.nan, 0.0], 0)])
    assert not verdict.accepted and verdict.refused_by == "lipschitz"


def test_the_coefficient_is_growth_over_distance_between_a_workers_last_two_models() -> None:
    first, second = torch.zeros(D), torch.tensor([0.0, 3.0, 4.0])
    verdicts = judge_all(
        Lipschitz(),
        0,
        [at(0, [1.0, 0.0, 0.0], 0, first), at(0, [1.0, 2.0, 0.0], 1, second), at(0, [1.0, 1.0, 0.0], 1, second)],
    )
    assert [verdict.coefficient for verdict in verdicts] == [None, 2 / 5, 1 / 5]  # the last two share their model


def test_nothing_passes_before_2f_plus_1_workers_have_spoken_and_then_norms_decide() -> None:
    arrivals = [
        at(worker, [size, 0.0, 0.0], 0) for worker, size in ((0, 1.0), (1, 2.0), (2, 3.0), (3, 2.5), (4, 100.0))
    ]
    assert [verdict.accepted for verdict in judge_all(Lipschitz(), 1, arrivals)] == [False, False, False, True, False]


@pytest.mark.parametrize("name", FILTERS)
def test_state_and_arrivals_are_never_changed(name: str) -> None:
    stream, filter = torch.Generator().manual_seed(1), parse(name)
    state = filter.begin(1)
    for number in range(12):
        arrival = at(number % 4, torch.randn(D, generator=stream), number)
        before = copy.deepcopy((state, arrival))
        verdict, after = filter.judge(arrival, state)
        assert repr((state, arrival)) == repr(before)
        assert filter.judge(arrival, state)[0] == verdict
        state = after


# -- both ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 2), st.integers(0, 10**6))
def test_kardam_is_the_one_filter_then_the_other_and_compares_with_what_both_accepted(f: int, seed: int) -> None:
    stream = torch.Generator().manual_seed(seed)
    order = torch.randint(3 * f + 1, (60,), generator=stream).tolist()
    arrivals = [at(worker, torch.randn(D, generator=stream), number // 2) for number, worker in enumerate(order)]
    last: list[int] = []

    def frequency(worker: int) -> bool:
        if worker in last:
            return False
        last.append(worker)
        del last[: -2 * f]
        return True

    verdicts = judge_all(Kardam(), f, arrivals)
    assert [verdict.accepted for verdict in verdicts] == oracle(f, arrivals, frequency)
    assert {"lipschitz", "frequency", ""} >= {verdict.refused_by for verdict in verdicts}
    assert all(verdict.accepted == (verdict.refused_by == "") for verdict in verdicts)


def test_infeasible_numbers_are_refused_with_a_remedy() -> None:
    Kardam().check_feasible(16, 5)
    with pytest.raises(InfeasibleError, match=r"n >= 3f \+ 1 = 16 workers for f = 5, got n = 15"):
        Kardam().check_feasible(15, 5)
    with pytest.raises(InfeasibleError, match=r"2f \+ 1 = 11"):
        Lipschitz().check_feasible(10, 5)
    NoFilter().check_feasible(1, 5)


def test_filters_and_dampenings_have_names_and_specs() -> None:
    for name in FILTERS:
        assert str(parse(name)) == name
    assert parse("kardam:joint=false") == Kardam(joint=False) and str(Kardam(joint=False)) == "kardam:joint=false"
    with pytest.raises(ConfigError, match="joint"):
        parse("kardam:joint=3")
    with pytest.raises(UnknownNameError, match="did you mean 'kardam'"):
        parse("kadram")
    for name in dampening.DAMPENINGS:
        assert str(dampening.parse(name)) == name


def test_dampening_formulas() -> None:
    inverse, exponential = dampening.parse("inverse"), dampening.parse("exponential:alpha=0.5")
    assert [inverse(tau) for tau in (0, 1, 3)] == [1.0, 0.5, 0.25]
    assert [exponential(tau) for tau in (0, 2)] == [1.0, math.exp(-1)]
    assert dampening.parse("exponential")(5) == math.exp(-1)
    assert [dampening.parse("none")(tau) for tau in (0, 99)] == [1.0, 1.0]
    with pytest.raises(ConfigError, match="alpha"):
        dampening.parse("exponential:alpha=-1")
