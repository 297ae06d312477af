"""`chain` against rules that link rows by direction, and `decoy` against rules that look along one direction."""

from __future__ import annotations

import itertools

import pytest
import torch
from attack_oracles import cosine_distance, linked
from attack_rounds import send
from strategies import DTYPES, normal
from torch import Tensor

from gyroscope.attacks import Chain, Decoy, Gaussian, Little, SignFlip
from gyroscope.rules import FLAME, DnC

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


def honest_rows(h: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw rows that agree about as much as momentum of a noisy task does."""
    return (normal(h, d, seed) + 3 * normal(1, d, seed=99)).to(dtype)


def first_majority(rows: list[list[float]]) -> tuple[float, list[int]]:
    """Return the shortest link with which more than half of the rows are joined, and these rows."""
    n = len(rows)
    for link in sorted(cosine_distance(rows[i], rows[j]) for i in range(n) for j in range(i)):
        group = max(linked(rows, link * (1 + 2e-6)), key=len)
        if len(group) > n / 2:
            return link, group
    raise AssertionError


# ------------------------------------------------------------------------------------------------ chain


@pytest.mark.slow
@by_dtype
@pytest.mark.parametrize(("h", "f", "d"), [(9, 6, 20), (11, 10, 60), (8, 7, 3), (3, 2, 5)])
def test_single_linkage_takes_the_whole_chain_and_too_few_honest_rows_for_the_majority(
    h: int, f: int, d: int, dtype: torch.dtype
) -> None:
    for seed in range(4):
        honest = honest_rows(h, d, seed, dtype)
        rows = torch.cat([honest, send(Chain(), honest, f)])
        link, group = first_majority(rows.double().tolist())
        assert set(range(h, h + f)) <= set(group)
        assert sum(i < h for i in group) <= (h + f) // 2
        byzantine = rows[h:].double().tolist()
        for one, next_one in itertools.pairwise(byzantine):
            assert cosine_distance(one, next_one) <= link * (1 + 1e-4)
        assert min(cosine_distance(byzantine[0], row) for row in honest.double().tolist()) <= link * (1 + 1e-4)
        admitted = FLAME()(rows, f).weight
        assert admitted is not None and bool((admitted[h:] > 0).all())


def test_all_rows_of_the_chain_are_four_times_as_long_as_the_longest_honest_row() -> None:
    honest = honest_rows(9, 20, seed=1)
    assert torch.allclose(send(Chain(), honest, 6).norm(dim=1), 4 * honest.norm(dim=1).max())


def test_each_row_of_the_chain_points_further_against_the_mean_than_the_one_before() -> None:
    honest = honest_rows(27, 200, seed=1)
    cosines = torch.nn.functional.cosine_similarity(send(Chain(), honest, 24), honest.mean(dim=0), dim=1)
    assert bool((cosines.diff() <= 1e-12).all()) and float(cosines[-1]) == pytest.approx(-1)


def test_24_of_51_turn_flame_round_and_12_of_51_shorten_it() -> None:
    for seed in range(3):
        for f, most in ((24, -0.1), (12, 0.9)):
            honest = normal(51 - f, 500, seed) + 3 * normal(1, 500, seed=99) / 4
            mean = honest.mean(dim=0)
            vector = FLAME()(torch.cat([honest, send(Chain(), honest, f)]), f).vector
            assert float(vector @ mean / mean.square().sum()) < most


@by_dtype
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e38])
def test_the_chains_directions_do_not_depend_on_the_rows_scale(dtype: torch.dtype, scale: float) -> None:
    honest = honest_rows(9, 20, seed=2)
    honest /= honest.abs().max()
    right = torch.nn.functional.normalize(send(Chain(), honest, 6))
    rows = send(Chain(), (honest * scale).to(dtype), 6).double()
    assert bool(rows.isfinite().all())
    precision = 2e-3 if scale < 1e-35 and dtype == torch.float32 else 1e-5  # float32 has few digits there
    assert torch.allclose(torch.nn.functional.normalize(rows / rows.abs().max()), right, atol=precision)


def test_where_the_mean_vanishes_the_chain_goes_against_the_first_row() -> None:
    honest = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 0.0]], dtype=torch.float64)
    rows = send(Chain(), honest, 2)
    assert bool(rows.isfinite().all()) and torch.allclose(rows.norm(dim=1), 4 * honest.norm(dim=1).max())
    assert torch.equal(send(Chain(), torch.zeros(4, 3), 2), torch.zeros(2, 3))


# ------------------------------------------------------------------------------------------------ decoy


@by_dtype
@pytest.mark.parametrize(("h", "f"), [(49, 2), (39, 12), (9, 6), (4, 3)])
@pytest.mark.parametrize("noise", [0.0, 1e-3, 1.0, 10.0])
def test_along_the_decoy_the_mean_of_all_rows_is_where_the_others_are(
    h: int, f: int, noise: float, dtype: torch.dtype
) -> None:
    honest = (noise * normal(h, 200, seed=1) + normal(1, 200, seed=99)).to(dtype)
    rows = torch.cat([honest, send(Decoy(), honest, f)])
    towards = (rows[h] - honest.mean(dim=0)).double()
    w = towards / towards.norm()
    assert torch.allclose(w.abs(), torch.full_like(w, 200**-0.5), rtol=1e-3)
    places = rows.double() @ w / towards.norm()
    assert float(towards.norm()) == pytest.approx(1e6 * float(honest.norm(dim=1).max()), rel=1e-3)
    assert torch.allclose(places[h + 1 :], torch.full((f - 1,), 1 / (h + 1), dtype=torch.float64), atol=1e-3)
    assert float(places.mean()) == pytest.approx(1 / (h + 1), abs=1e-3)
    weights = DnC()(rows, f).weight
    assert weights is not None and bool((weights[h + 1 :] > 0).all()) and float(weights[h]) == 0
    assert int((weights == 0).sum()) == f


@pytest.mark.parametrize("coordinates", [10_000, 50])
def test_two_of_51_turn_dnc_round(coordinates: int) -> None:
    """Also if each iteration looks at a part of the coordinates."""
    for seed in range(3):
        honest = normal(49, 500, seed) + normal(1, 500, seed=99)
        mean = honest.mean(dim=0)
        vector = DnC(coordinates=coordinates)(torch.cat([honest, send(Decoy(), honest, 2, seed=seed)]), 2).vector
        sent = send(Decoy(distance=1e-9), honest, 2, seed=seed)  # the inner attack's row and the mean, no decoy
        assert float(DnC(coordinates=coordinates)(torch.cat([honest, sent]), 2).vector @ mean) > 0
        w = send(Decoy(), honest, 2, seed=seed)[0] - mean
        across = vector - (vector @ w) / (w @ w) * w  # what w adds has nothing to do with the mean
        assert float(across @ mean) < 0


def test_the_others_send_the_inner_attacks_rows_and_a_single_worker_the_decoy_only() -> None:
    honest = normal(9, 20, seed=1)
    for inner in (Little(), Gaussian(), SignFlip(scale=3.0)):
        decoy, *others = send(Decoy(attack=inner, distance=1e-6), honest, 4)
        assert torch.allclose(decoy, honest.mean(dim=0), atol=1e-4)
        if not isinstance(inner, Gaussian):
            assert all(torch.allclose(row, send(inner, honest, 1)[0], atol=1e-4) for row in others)
    assert send(Decoy(), honest, 1).shape == (1, 20)
    assert torch.allclose(send(Decoy(), honest, 1)[0], send(Decoy(), honest, 2)[0])


@by_dtype
def test_decoys_of_huge_and_tiny_rows_are_finite(dtype: torch.dtype) -> None:
    for scale in (1e-40, 1e-20, 1e35, 3e38, torch.finfo(dtype).max):
        honest = normal(5, 7, seed=3)
        rows = send(Decoy(), (honest / honest.abs().max() * scale).to(dtype), 3)
        assert bool(rows.isfinite().all()) and bool((rows[0] != 0).all())
