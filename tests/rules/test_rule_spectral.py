"""SMEA, CAF, DnC, FLAME and SignGuard: the behaviour that is specific to each."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import spectral_oracles
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN, MeanShift, estimate_bandwidth
from strategies import normal, seeds
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg.distances import squared_distances
from gyroscope._linalg.spectrum import centred, scatters
from gyroscope.rules import (
    CAF,
    FLAME,
    SMEA,
    Aggregate,
    DnC,
    RuleContext,
    SignGuard,
    _spectral,
    flame,
    signguard,
)

NAN, INF = math.nan, math.inf


def chosen(aggregate: Aggregate) -> list[int]:
    assert aggregate.weight is not None
    return aggregate.weight.nonzero().flatten().tolist()


# ------------------------------------------------------------------------------------------ the spectrum


@given(seed=seeds, n=st.integers(2, 12), d=st.sampled_from([1, 2, 5, 40]), offset=st.sampled_from([0.0, 1e6]))
def test_the_top_of_the_spectrum_is_that_of_the_covariance(seed: int, n: int, d: int, offset: float) -> None:
    rows = normal(n, d, seed) + offset
    shares = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).numpy() + 0.01
    shares /= shares.sum()
    deviations = rows.numpy() - shares @ rows.numpy()
    values, axes = np.linalg.eigh((deviations * shares[:, None]).T @ deviations)
    found = _spectral.spread(squared_distances(rows).numpy(), shares)
    assert found.variance == pytest.approx(values[-1], rel=1e-7)
    along = (deviations @ axes[:, -1]) ** 2
    if d == 1 or values[-1] > 1.1 * values[-2]:
        assert found.outlyingness == pytest.approx(along / along.max(), rel=1e-6, abs=1e-6)


def test_a_row_at_1e30_takes_no_digit_from_the_others() -> None:
    rows = normal(5, 3, seed=1)
    far = torch.cat([rows, torch.full((1, 3), 1e30)])
    table, left = squared_distances(far).numpy(), np.arange(5)
    own = _spectral.spread(squared_distances(rows).numpy(), np.full(5, 0.2))
    assert _spectral.spread(table[np.ix_(left, left)], np.full(5, 0.2)).variance == own.variance


def test_rows_that_cannot_be_compared_leave_the_worst_first() -> None:
    rows = torch.tensor([[NAN, 0.0], [0.0, 0.0], [1e160, 0.0], [1.0, 1.0], [-1e160, 0.0], [INF, 0.0]]).double()
    rows[2, 0], rows[4, 0] = 1e154, -1e154  # each is at a finite distance from all but the other
    assert _spectral.comparable(squared_distances(rows).numpy()).tolist() == [1, 2, 3]


# -------------------------------------------------------------------------------------------------- SMEA


@given(seed=seeds, f=st.integers(0, 4), extra=st.integers(0, 3), d=st.sampled_from([1, 2, 6, 50]))
def test_smea_chooses_the_subset_that_trying_them_all_finds(seed: int, f: int, extra: int, d: int) -> None:
    rows = normal(2 * f + 1 + extra, d, seed)
    n, size = len(rows), len(rows) - f
    found = {
        subset: spectral_oracles.principal(rows[list(subset)].numpy(), np.ones(size))[0][0]
        for subset in itertools.combinations(range(n), size)
    }
    best = min(found.values())
    assert found[tuple(chosen(SMEA()(rows, f)))] <= best * (1 + 1e-9) + 1e-30


@pytest.mark.parametrize(("n", "f"), [(15, 6), (14, 3)])
@pytest.mark.parametrize("kind", ["noise", "few directions", "colluders", "far"])
def test_the_search_is_exact_where_there_are_thousands_of_subsets(n: int, f: int, kind: str) -> None:
    rows = normal(n, 30, seed=n)
    if kind == "few directions":
        rows *= torch.arange(1, 31) ** -1.0
    elif kind == "colluders":
        rows[-f:] = rows[:-f].mean(dim=0) - 1.5 * rows[:-f].std(dim=0)
    elif kind == "far":
        rows[::2][:f] *= 50
    table = squared_distances(rows).numpy()
    every = np.array(list(itertools.combinations(range(n), n - f)))
    values = np.linalg.eigvalsh(centred(table[every[:, :, None], every[:, None, :]], np.full(n - f, 1 / (n - f))))[
        :, -1
    ]
    assert chosen(SMEA()(rows, f)) == every[values <= values.min() * (1 + 1e-10)][0].tolist()


@pytest.mark.parametrize("seed", [30, 34, 58, 64, 79])
def test_rows_too_far_apart_are_never_both_left_over(seed: int) -> None:
    """Cubes of normal values have outliers on many sides. Of these rows some are neither chosen nor refused by
    decision, but left over when no more can be refused, and too far apart to be chosen together."""
    n, f = 5 + seed % 6, (4 + seed % 6) // 2
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 2 + seed % 3, generator=generator, dtype=torch.float64) ** 3
    variances = {
        subset: spectral_oracles.principal(rows[list(subset)].numpy(), np.ones(n - f))[0][0]
        for subset in itertools.combinations(range(n), n - f)
    }
    assert tuple(chosen(SMEA()(rows, f))) == min(variances, key=lambda subset: variances[subset])


def test_smea_takes_the_lowest_rows_of_equal_subsets() -> None:
    assert chosen(SMEA()(torch.ones(9, 3), 4)) == [0, 1, 2, 3, 4]
    assert chosen(SMEA()(torch.eye(7), 3)) == [0, 1, 2, 3]  # all subsets of the corners of a simplex are alike
    line = torch.tensor([[5.0], [4.0], [3.0], [2.0], [1.0]])
    assert chosen(SMEA()(line, 2)) == [0, 1, 2]
    copies = torch.tensor([[0.0], [9.0], [0.0], [9.0], [0.0], [9.0], [0.1]])
    assert chosen(SMEA()(copies, 3)) == [0, 2, 4, 6]


def test_smea_finds_copies_without_trying_their_subsets() -> None:
    """Thirty equal rows have 155 million subsets of fifteen; they must count as one."""
    assert chosen(SMEA(limit=1000)(torch.ones(31, 2), 15)) == list(range(16))


@given(seed=seeds, f=st.integers(1, 4), extra=st.integers(0, 3), d=st.sampled_from([1, 2, 6, 50]))
def test_smea_at_its_limit_is_as_good_as_it_says(seed: int, f: int, extra: int, d: int) -> None:
    rows = normal(2 * f + 1 + extra, d, seed) ** 3
    size = len(rows) - f
    best, quick = (
        spectral_oracles.principal(rows[chosen(rule(rows, f))].numpy(), np.ones(size))[0][0]
        for rule in (SMEA(), SMEA(limit=1))
    )
    assert best <= quick * (1 + 1e-9) and quick <= 2 * max(1, min(d, size - 1)) * best * (1 + 1e-9)


def test_more_steps_of_smea_never_give_a_worse_subset() -> None:
    rows = normal(25, 100, seed=1)
    table = squared_distances(rows).numpy()
    subsets = [np.array(chosen(SMEA(limit=limit)(rows, 12))) for limit in (1, 3_000, 30_000, 300_000)]
    values = [scatters(table, subset[None])[0] for subset in subsets]
    assert values == sorted(values, reverse=True) and values[-1] < values[0]


def test_with_more_bad_rows_than_f_the_search_ends_all_the_same() -> None:
    rows = normal(7, 3, seed=1)
    rows[:4] = NAN
    for rule in (SMEA(), CAF(), DnC(), FLAME(), SignGuard()):
        assert rule(rows, 3).vector.shape == (3,)
        assert rule(torch.full((7, 3), NAN), 3).vector.isnan().all()


def test_the_scatter_only_grows_as_rows_join() -> None:
    """The bound of the search relies on it."""
    table = squared_distances(normal(9, 4, seed=3)).numpy()
    values = [scatters(table, np.arange(size)[None])[0] for size in range(2, 10)]
    assert values == sorted(values)


# --------------------------------------------------------------------------------------------------- CAF


def test_caf_by_hand() -> None:
    """The mean of 0, 1, 5 is 2, the squares 4, 1, 9: weights 5/9, 8/9, 0. Then 0 and 1 spread less, and 4/3 > n-2f = 1
    goes on: mean 8/13, squares (8/13)^2 and (5/13)^2, weights 0 and 8/9 (1 - 25/64) < 1: the end."""
    vector, weight = CAF()(torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64), 1)
    assert weight is not None
    assert weight.tolist() == pytest.approx([5 / 13, 8 / 13, 0]) and vector.item() == pytest.approx(8 / 13)


@pytest.mark.parametrize("seed", [13, 23])
def test_caf_returns_the_best_mean_not_the_last(seed: int) -> None:
    """With these rows the top eigenvalue falls, then rises again."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    right = spectral_oracles.caf(rows.tolist(), 2, doubt=1e-13)
    assert right is not None
    assert CAF()(rows, 2).vector.tolist() == pytest.approx([values[0] for values in right], abs=1e-12)


def test_caf_takes_all_weight_from_rows_that_are_equally_far_out() -> None:
    """The second and the sixth lose all in the first step; with a rest of 1e-16 one of them would spoil the second."""
    rows = [[-1, 1, -1], [1, 1, -1], [-1, 1, 0], [1, 1, 0], [-1, 1, 0], [-1, -1, 1], [1, -1, 0], [-1, 0, 0]]
    right = spectral_oracles.caf([[float(value) for value in row] for row in rows], 3, doubt=1e-13)
    assert right is not None
    assert CAF()(torch.tensor(rows, dtype=torch.float64), 3).vector.tolist() == pytest.approx(
        [value for (value,) in right], abs=1e-12
    )


def test_caf_treats_copies_alike_to_the_last_bit() -> None:
    rows = normal(9, 5, seed=2)
    rows[[1, 4, 7]] = rows[1] + 2
    weight = CAF()(rows, 4).weight
    assert weight is not None and weight[1] == weight[4] == weight[7]


# --------------------------------------------------------------------------------------------------- DnC


def test_dnc_drops_colluders_and_the_rows_beyond_c_f_stay() -> None:
    rows = normal(11, 20, seed=1)
    rows[7:] = rows[:7].mean(dim=0) + 5
    assert chosen(DnC()(rows, 4)) == list(range(7))
    assert set(chosen(DnC(c=0.5)(rows, 4))) >= set(range(7)) and len(chosen(DnC(c=0.5)(rows, 4))) == 9
    assert len(chosen(DnC(c=1.1)(rows, 4))) == 6  # ceil(4.4) = 5 are dropped


def test_dncs_rows_hide_behind_one_another_as_documented() -> None:
    rows = normal(9, 3, seed=1)
    rows[7], rows[8] = torch.tensor([1e6, 0.0, 0.0]), torch.tensor([0.0, 1e3, 0.0])
    members = chosen(DnC()(rows, 2))
    assert 8 not in members or 7 not in members
    assert DnC()(rows, 2).vector.norm() > 50, "say no longer that DnC promises so little"


def test_dnc_takes_the_rows_that_survived_most_if_none_survived_all() -> None:
    """One coordinate at a time, each of which has another row far out."""
    rows = 100 * torch.eye(5, dtype=torch.float64)
    rule, context = DnC(iterations=40, coordinates=1, c=1.0), RuleContext(seed=3)
    dropped = [int(drawn) for drawn in context.draw("dnc", 1, 5, 40)]
    counts = [dropped.count(row) for row in range(5)]
    assert min(counts) > 0
    assert chosen(rule(rows, 1, context)) == [row for row in range(5) if counts[row] == min(counts)]


def test_dnc_sees_a_nan_outside_the_coordinates_drawn() -> None:
    rows = normal(5, 1000, seed=1)
    rows[2, 17] = NAN
    for step in range(5):
        vector, weight = DnC(coordinates=3, iterations=1)(rows, 1, RuleContext(step=step))
        assert vector.isfinite().all() and weight is not None and weight[2] == 0


def test_dncs_mean_of_huge_rows_is_finite() -> None:
    for rows in (torch.full((5, 2), 3e38), torch.full((5, 2), 1.7e308, dtype=torch.float64)):
        vector = DnC()(rows, 1).vector
        assert vector.isfinite().all() and torch.allclose(vector, rows[0])


def test_dnc_draws_other_coordinates_in_each_round_and_the_same_in_a_repeated_one() -> None:
    rows = normal(9, 50, seed=1)
    rule = DnC(iterations=1, coordinates=2)
    rounds = [chosen(rule(rows, 4, RuleContext(seed=1, step=step))) for step in range(8)]
    assert rounds == [chosen(rule(rows, 4, RuleContext(seed=1, step=step))) for step in range(8)]
    assert len({tuple(members) for members in rounds}) > 1


def test_dncs_wrong_parameters_are_refused() -> None:
    for parameters in ({"iterations": 0}, {"iterations": True}, {"coordinates": 1.5}, {"c": 0}, {"c": NAN}, {"c": "1"}):
        with pytest.raises(ConfigError, match="of 'dnc' must be"):
            DnC(**parameters)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=re.escape("drop all n = 5 workers: ceil(c f) = 5 for c = 2.5 and f = 2")):
        DnC(c=2.5).check_feasible(5, 2)


# ------------------------------------------------------------------------------------------------- FLAME


@pytest.mark.parametrize("seed", range(25))
def test_flames_majority_is_what_hdbscan_finds(seed: int) -> None:
    n = 5 + seed % 12
    rows = normal(n, 6, seed) + (seed % 3)
    units = rows / rows.norm(dim=1, keepdim=True)
    distances = (1 - units @ units.T).clamp(min=0).fill_diagonal_(0).numpy()
    paper = HDBSCAN(
        min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    )
    labels = paper.fit(distances).labels_
    assert chosen(FLAME()(rows, (n - 1) // 2)) == (labels == 0).nonzero()[0].tolist()


def test_flame_by_hand() -> None:
    """Three rows point right, at lengths 1, 2, 6; the median of 1, 2, 3, 4, 6 is 3."""
    rows = torch.tensor([[1.0, 0.0], [0.0, 4.0], [2.0, 0.0], [0.0, -3.0], [6.0, 0.0]])
    vector, weight = FLAME()(rows, 2)
    assert weight is not None and weight.tolist() == [1 / 3, 0, 1 / 3, 0, 1 / 3]
    assert vector.tolist() == pytest.approx([(1 + 2 + 3) / 3, 0])


def test_flame_takes_links_of_equal_length_together() -> None:
    assert flame.majority(np.array([[0, 1, 3.0], [1, 0, 1], [3, 1, 0]]), 2).tolist() == [0, 1, 2]
    assert flame.majority(np.array([[0, 1, 3.0], [1, 0, 2], [3, 2, 0]]), 2).tolist() == [0, 1]
    assert flame.majority(np.zeros((1, 1)), 1).tolist() == [0]


def test_a_row_of_zeros_has_no_direction_but_other_zeros_have_the_same() -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [1.0, -0.1], [0.0, 0.0]])
    assert chosen(FLAME()(rows, 2)) == [1, 2, 3]
    rows[1] = 0
    assert chosen(FLAME()(rows, 2)) == [0, 1, 4] and not FLAME()(rows, 2).vector.any()
    wide = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.3, 0.95]])  # at the cosine distance 0.7, nearer than any to zero
    assert chosen(FLAME()(wide, 1)) == [1, 2]


@pytest.mark.parametrize("d", [1, 2, 5, 7, 1000])
def test_flame_of_the_largest_floats_is_finite(d: int) -> None:
    rows = torch.full((5, d), torch.finfo(torch.float32).max)
    rows[4] = math.nan
    assert torch.allclose(FLAME()(rows, 1).vector, rows[0], rtol=1e-5)


def test_flame_shortens_a_row_whose_length_overflows() -> None:
    rows = torch.tensor([[1.0, 0.0], [2.0, 0.1], [1.7e308, 1e307]], dtype=torch.float64)
    vector = FLAME()(rows, 1).vector
    assert vector.isfinite().all() and vector.norm() <= 2.1


def test_flames_noise_has_the_given_deviation_and_is_reproducible() -> None:
    rows, context = normal(5, 4000, seed=1), RuleContext(seed=2, step=3)
    quiet, loud = FLAME()(rows, 2, context).vector, FLAME(noise=0.01)(rows, 2, context).vector
    limit = rows.norm(dim=1).sort().values[2]
    assert float((loud - quiet).std() / limit) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(FLAME(noise=0.01)(rows, 2, context).vector, loud)
    right = spectral_oracles.flame(rows.tolist(), 2, doubt=0, noise=0.01, context=context)
    assert right is not None and loud.tolist() == pytest.approx([values[0] for values in right])
    for noise in (-1, INF, True, "1"):
        with pytest.raises(ConfigError, match="the noise of 'flame' must be a number of at least 0"):
            FLAME(noise=noise)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- SignGuard


def test_the_mean_shift_is_scikit_learns() -> None:
    compared = 0
    for seed in range(20):
        points = normal(6 + seed, 3, seed).numpy()
        points[: 2 + seed // 3] += 4
        width = estimate_bandwidth(points, quantile=0.5)
        assert signguard.bandwidth(np.linalg.norm(points[:, None] - points, axis=2)) == pytest.approx(width)
        try:
            spectral_oracles.mean_shift(points.tolist(), strict=True)
        except spectral_oracles.DoubtfulError:
            continue  # of ends that are equally crowded they take the first by place, not by number
        compared += 1
        labels = MeanShift(bandwidth=width * (1 + 1e-9)).fit(points).labels_
        theirs = {tuple((labels == label).nonzero()[0].tolist()) for label in set(labels)}
        assert {tuple(cluster.tolist()) for cluster in signguard.clusters(points)} == theirs
    assert compared >= 10


def test_clusters_of_copies_are_exact() -> None:
    points = np.array([[1.0, 2, 3], [3, 2, 1], [1, 2, 3], [3, 2, 1], [3, 2, 1]])
    assert [cluster.tolist() for cluster in signguard.clusters(points)] == [[1, 3, 4], [0, 2]]
    points = points[:4]
    assert [cluster.tolist() for cluster in signguard.clusters(points)] == [[0, 2], [1, 3]]


def opposed(count: int, others: int, d: int = 200) -> Tensor:
    """Rows most of whose values are positive, then some with the opposite signs, all about as long."""
    rows = normal(count + others, d, seed=1).abs() + 0.5
    rows[:, ::10] *= -1
    rows[count:] *= -1
    return rows


def test_signguard_leaves_out_flipped_signs_and_unusual_lengths() -> None:
    rows = opposed(6, 3)
    rows[0] *= 50
    rows[1] *= 0.01
    vector, weight = SignGuard()(rows, 4)
    assert weight is not None and chosen(Aggregate(vector, weight)) == [2, 3, 4, 5]
    limit = rows.norm(dim=1).sort().values[4]
    clipped = torch.stack([row * min(1.0, float(limit / row.norm())) for row in rows[2:6]])
    assert torch.allclose(vector, clipped.mean(dim=0))
    assert 0 in chosen(SignGuard(upper=100.0)(rows, 4)) and 1 in chosen(SignGuard(lower=0.0)(rows, 4))


def test_signguard_takes_the_next_cluster_if_no_row_passes_both() -> None:
    """Most rows have the same signs, but none of them the usual length."""
    rows = opposed(5, 4)
    rows[:3] *= 1000
    rows[3:5] *= 0.001
    assert chosen(SignGuard()(rows, 4)) == [5, 6, 7, 8]


def test_signguards_wrong_parameters_are_refused() -> None:
    for parameters in (
        {"lower": 2.0},
        {"upper": 0.5},
        {"lower": -1},
        {"fraction": 0},
        {"fraction": 1.5},
        {"upper": NAN},
    ):
        with pytest.raises(ConfigError, match="signguard"):
            SignGuard(**parameters)  # type: ignore[arg-type]


def test_smeas_limit_is_a_positive_whole_number() -> None:
    for limit in (0, True, 1.5, "many"):
        with pytest.raises(ConfigError, match="the limit of 'smea' must be a whole number of at least 1"):
            SMEA(limit=limit)  # type: ignore[arg-type]
