"""Who is asked in a round, what the rule is given of the others, and how many Byzantine rows it is told to expect."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gyroscope as gy
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, UnknownNameError
from gyroscope.momentum import Participation, RobustAggregator
from gyroscope.momentum.participation import tolerated
from gyroscope.research.adaptive import AdaptiveConfig
from gyroscope.research.replicated import ReplicatedConfig

NAN = math.nan


def make(n: int = 6, m: int = 3, absent: str = "momentum", seed: int = 1, f: int = 1) -> Participation:
    return Participation(n, m, seed, absent=absent, f=f, steps=20)


# -- who is asked ------------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 30),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
    absent=st.sampled_from(["momentum", "left-out"]),
)
def test_a_round_asks_so_many_and_depends_on_seed_and_step_alone(n: int, share: float, seed: int, absent: str) -> None:
    m = 1 + int(share * (n - 1))
    forwards, backwards = make(n, m, absent, seed), make(n, m, absent, seed)
    rounds = [forwards.asked(step) for step in range(6)]
    assert [backwards.asked(step) for step in reversed(range(6))] == rounds[::-1]
    assert rounds[0] == tuple(range(n)) if absent == "momentum" else len(rounds[0]) == m
    for asked in rounds[1:]:
        assert len(asked) == m and list(asked) == sorted(set(asked)) and set(asked) <= set(range(n))


def test_everybody_is_asked_equally_often() -> None:
    n, m, rounds = 10, 3, 4000
    counts = [0] * n
    for step in range(1, rounds + 1):
        for worker in make(n, m).asked(step):
            counts[worker] += 1
    expected, deviation = rounds * m / n, math.sqrt(rounds * m / n * (1 - m / n))
    assert max(abs(count - expected) for count in counts) < 5 * deviation
    assert make(n, m, seed=1).asked(7) != make(n, m, seed=2).asked(7) or make(n, m).asked(8) != make(
        n, m, seed=2
    ).asked(8)


# -- what the rule is given --------------------------------------------------------------------------------------------


def naive_given(asked: list[tuple[int, ...]], rounds: list[list[list[float]]]) -> list[list[list[float]]]:
    """Delayed momentum aggregation from its definition: each worker's last finite row, as it came."""
    n, d = len(rounds[0]), len(rounds[0][0])
    last = [[NAN] * d for _ in range(n)]
    shown = []
    for who, rows in zip(asked, rounds, strict=True):
        now = []
        for worker in range(n):
            now.append(list(rows[worker]) if worker in who else list(last[worker]))
            if worker in who and all(math.isfinite(value) for value in rows[worker]):
                last[worker] = list(rows[worker])
        shown.append(now)
    return shown


value = st.sampled_from([0.0, 1.0, -2.5, 3e38, NAN, math.inf])


@given(st.lists(st.lists(st.lists(value, min_size=2, max_size=2), min_size=5, max_size=5), min_size=1, max_size=8))
def test_absent_workers_are_given_with_their_last_finite_rows(rounds: list[list[list[float]]]) -> None:
    taking = make(5, 2)
    asked = [taking.asked(step) for step in range(len(rounds))]
    for step, (rows, right) in enumerate(zip(rounds, naive_given(asked, rounds), strict=True)):
        sent = torch.tensor(rows)
        sent[[worker for worker in range(5) if worker not in asked[step]]] = 777.0  # nobody reads it
        before = sent.clone()
        foreseen = taking.given(step, sent)
        shown = taking.take(step, sent)
        for found, expected in ((sent, before), (foreseen, torch.tensor(right)), (shown, torch.tensor(right))):
            assert torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)


def test_left_out_workers_have_no_row_and_no_share() -> None:
    taking = make(6, 5, "left-out")
    server = RobustAggregator("krum", 1, participation=taking)
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    for step in range(4):
        asked = list(taking.asked(step))
        (absent,) = set(range(6)) - set(asked)
        sent = rows.clone()
        sent[absent] = NAN
        update = server.step(sent)
        right = gy.rules.make("krum")(rows[asked], f=1)
        assert torch.equal(update.vector, right.vector) and update.weight is not None and right.weight is not None
        assert torch.equal(update.weight[asked], right.weight) and update.weight[absent] == 0
        assert bool(update.rows[absent].isnan().all()) and torch.equal(update.rows[asked], rows[asked])


def test_the_state_holds_the_rows_that_are_kept() -> None:
    rows = torch.randn(5, 6, 4, generator=torch.Generator().manual_seed(1))
    whole, part = (RobustAggregator("median", 1, participation=make()) for _ in range(2))
    for sent in rows[:2]:
        whole.step(sent)
        part.step(sent)
    resumed = RobustAggregator("median", 1, participation=make())
    resumed.load_state_dict(part.state_dict())
    for sent in rows[2:]:
        assert torch.equal(whole.step(sent).vector, resumed.step(sent).vector)


def test_a_worker_that_is_forgotten_has_no_row_until_it_sends_one() -> None:
    taking = make(4, 1)
    taking.take(0, torch.ones(4, 2))
    absent = next(worker for worker in range(4) if worker not in taking.asked(1))
    taking.forget(absent)
    assert bool(taking.take(1, torch.ones(4, 2))[absent].isnan().all())
    again = next(step for step in itertools.count(2) if absent in taking.asked(step))
    assert bool((taking.take(again, torch.ones(4, 2))[absent] == 1).all())


# -- how many rows a round needs ---------------------------------------------------------------------------------------


def test_missing_rows_of_those_asked_count_as_byzantine() -> None:
    taking = make(10, 6, f=3)  # nobody is simulated: all ten may send a row
    assert taking.required(0, 10, always=7) == 7
    rows = torch.ones(10, 2)
    rows[0] = NAN
    taking.take(0, rows)
    for step in range(1, 9):
        spare = 3 if 0 in taking.asked(step) else 2  # worker 0 has no row: it is one of the three
        assert taking.required(step, 10, always=7) == 6 - spare
    assert make(10, 2, f=3).required(1, 10, always=7) == 1, "a round needs one new row"
    left_out = make(10, 6, "left-out", f=3)
    assert left_out.f == 3 and left_out.required(1, 10, always=7) == 3
    simulated = sum(worker >= 7 for worker in left_out.asked(1))
    assert left_out.required(1, 7, always=7) == 6 - simulated, "three simulated ones leave none to be missing"


# -- how many Byzantine rows are expected ------------------------------------------------------------------------------


@given(n=st.integers(1, 9), f=st.integers(0, 9), m=st.integers(1, 9), steps=st.integers(1, 40))
def test_the_number_tolerated_is_the_least_with_so_small_a_risk(n: int, f: int, m: int, steps: int) -> None:
    """Against all samples there are, one by one."""
    f, m = min(f, n), min(m, n)
    counts = [sum(worker < f for worker in sample) for sample in itertools.combinations(range(n), m)]

    def risk(most: int) -> Fraction:
        return steps * Fraction(sum(count > most for count in counts), len(counts))

    found = tolerated(n, f, m, steps)
    assert risk(found) <= Fraction(1, 100)
    assert found == 0 or risk(found - 1) > Fraction(1, 100)


def test_numbers_of_the_documentation() -> None:
    assert tolerated(25, 5, 15, 150) == tolerated(25, 5, 8, 150) == 5
    assert tolerated(1000, 100, 50, 1000) == 15


# -- what is refused ---------------------------------------------------------------------------------------------------

BASE = {"workers": 25, "declared_byzantine": 5, "rule": "median", "steps": 150}


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        ({"sample": 0}, ConfigError, "sample must be at least 1"),
        ({"sample": 26}, ConfigError, "cannot ask 26 of 25 workers.*from 1 to 25"),
        ({"sample": 9, "absent": "gone"}, UnknownNameError, "gone"),
        ({"absent": "left-out"}, ConfigError, "set sample"),
        ({"sample": 9, "momentum": "server-kept"}, ConfigError, "momentum = workers"),
        ({"sample": 8, "absent": "left-out"}, InfeasibleError,
         "given 8 rows.*5 of them.*at most 1 %.*needs 11.*sample to 11"),
        ({"sample": 20, "absent": "left-out", "rule": "caf-history"}, ConfigError, "caf-history.*absent = momentum"),
        ({"sample": 4, "absent": "left-out", "declared_byzantine": 1, "byzantine": 5, "attack": "little"}, ConfigError,
         "none but the 5 Byzantine.*sample to 6"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(settings: dict[str, object], kind: type[GyroscopeError], words: str) -> None:
    with pytest.raises(kind, match=words):
        gy.Config(**{**BASE, **settings}).resolve()  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [{"sample": 9}, {"worker_weights": "sizes"}])
@pytest.mark.parametrize(("kind", "own"), [(ReplicatedConfig, {"servers": 6}), (AdaptiveConfig, {"adapt": "mu"})])
def test_other_kinds_of_runs_ask_everybody_alike(
    kind: type[gy.Config], own: dict[str, object], other: dict[str, object]
) -> None:
    ((name, value),) = other.items()
    with pytest.raises(ConfigError, match=f"leave out sample and worker_weights, got .*{name} = {value}"):
        kind(**{**BASE, **own, **other}).resolve()  # type: ignore[arg-type]
