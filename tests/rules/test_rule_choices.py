"""The rules that average the best rows, or the middle of each coordinate, on examples computed by hand."""

from __future__ import annotations

import pytest
import torch
from strategies import normal

from gyroscope._core.errors import ConfigError
from gyroscope._linalg._kernels import switched_off
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import CGE, Aksel, MeaMed, MoNNA, Phocas, TrimmedMean
from gyroscope.rules.krum import sums_of_nearest

NAN, INF = float("nan"), float("inf")


def chosen(weight: torch.Tensor | None) -> list[int]:
    assert weight is not None
    return weight.nonzero().flatten().tolist()


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("n", [2, 3, 7, 51])
def test_krums_scores_by_numpy_are_those_by_torch_for_one_table_and_for_many(n: int, squared: bool) -> None:
    tables = torch.stack([squared_distances(normal(n, 4, seed)) for seed in range(5)])
    tables[1, 0, 1:] = tables[1, 1:, 0] = INF
    tables[2] = 0.0
    before = tables.clone()
    for count in {1, n // 2, n - 1}:
        with switched_off():
            plain = sums_of_nearest(tables, count, squared)
        scores = sums_of_nearest(tables, count, squared)
        assert torch.allclose(scores, plain, rtol=1e-14, atol=0)
        for table, line, plain_line in zip(tables, scores, plain, strict=True):
            assert torch.equal(sums_of_nearest(table, count, squared), line)
            by_hand = [table[i][torch.arange(n) != i].sort().values[:count] for i in range(n)]
            expected = torch.stack([(near if squared else near.sqrt()).sum() for near in by_hand])
            assert torch.allclose(plain_line, expected, rtol=1e-14, atol=0)
    assert torch.equal(tables, before)


def test_around_which_place_the_values_are_averaged() -> None:
    column = torch.tensor([[0.0], [1.0], [8.0], [20.0], [21.0]])
    assert TrimmedMean()(column, 1).vector.item() == pytest.approx(29 / 3)
    assert MeaMed()(column, 1).vector.item() == pytest.approx(29 / 4)  # without 21, the farthest from 8
    assert Phocas()(column, 1).vector.item() == pytest.approx(29 / 4)  # without 21, the farthest from 9.67
    assert Phocas()(column - 20, 2).vector.item() == pytest.approx(9 / 3 - 20)
    skewed = torch.tensor([[0.0], [6.0], [7.0], [15.0], [15.0]])
    assert MeaMed()(skewed, 1).vector.item() == pytest.approx(28 / 4)  # 15 is farther from 7 than 0 is
    assert Phocas()(skewed, 1).vector.item() == pytest.approx(43 / 4)  # 0 is farther from 9.33 than 15 is


def test_meamed_around_the_lower_middle_or_the_mean_of_both() -> None:
    column = torch.tensor([[0.0], [1.0], [3.0], [3.5]])
    assert MeaMed()(column, 1).vector.item() == pytest.approx(4 / 3)  # around 1: without 3.5
    assert MeaMed(even="mean")(column, 1).vector.item() == pytest.approx(7.5 / 3)  # around 2: without 0
    with pytest.raises(ConfigError, match="'lower' or 'mean'"):
        MeaMed(even="upper")  # type: ignore[arg-type]


def test_of_two_equally_near_values_the_smaller() -> None:
    column = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]])
    assert MeaMed()(column, 1).vector.item() == Phocas()(column, 1).vector.item() == 1.5


def test_the_trimmed_mean_adds_up_what_is_left_and_subtracts_nothing() -> None:
    column = torch.tensor([[1e10], [-INF], [0.25], [0.5], [0.75], [NAN], [INF]])
    assert TrimmedMean()(column, 3).vector.item() == 0.75
    assert TrimmedMean()(column[:6], 2).vector.item() == 0.625


def test_monnas_pivot_decides() -> None:
    rows = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0]])
    assert chosen(MoNNA()(rows, 2).weight) == [0, 1, 2]
    assert chosen(MoNNA(pivot=4)(rows, 2).weight) == [2, 3, 4]
    table = torch.cdist(rows, rows).square().double()
    assert MoNNA(pivot=4).on_columns(rows, 2, table).vector.equal(MoNNA(pivot=4)(rows, 2).vector)
    assert MoNNA(pivot=4).trusts(5) == (4,)
    rows[0] = NAN  # a Byzantine pivot decides the result
    assert MoNNA()(rows, 2).vector.isnan().all() and MoNNA(pivot=1)(rows, 2).vector.item() == pytest.approx(13 / 3)


@pytest.mark.parametrize("pivot", [-1, True, 1.0, "0", None], ids=repr)
def test_a_pivot_is_a_workers_number(pivot: object) -> None:
    with pytest.raises(ConfigError, match="the pivot of 'monna' must be the number of a worker"):
        MoNNA(pivot=pivot)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of the workers 0 to 4, got 5"):
        MoNNA(pivot=5).check_feasible(5, 1)


def test_cge_takes_the_shortest_wherever_they_point() -> None:
    rows = torch.tensor([[1.0, 1.0], [1.0, 1.1], [1.1, 1.0], [-0.1, 0.0], [INF, 0.0]])
    assert chosen(CGE()(rows, 1).weight) == [0, 1, 2, 3]
    assert chosen(CGE()(rows, 2).weight) == [0, 1, 3]


def test_aksel_takes_half_or_all_but_f() -> None:
    rows = normal(9, 4, seed=1)
    assert len(chosen(Aksel()(rows, 2).weight)) == 5
    assert len(chosen(Aksel()(rows[:8], 2).weight)) == 4
    assert len(chosen(Aksel(keep="n-f")(rows, 2).weight)) == 7
    line = torch.tensor([[0.0], [4.0], [5.0], [6.0], [100.0]])
    assert chosen(Aksel()(line, 1).weight) == [1, 2, 3]
    with pytest.raises(ConfigError, match="'half' or 'n-f'"):
        Aksel(keep="all")  # type: ignore[arg-type]
