"""Kernels on (n, n) tables: the largest eigenvalue and its vector, and the search for the smallest diameter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gyroscope._linalg import _kernels
from gyroscope._linalg._kernels import spectra, subsets
from gyroscope._linalg.distances import mixed_distances
from gyroscope._linalg.spectrum import scatters, top_spread
from gyroscope.rules import mda


def symmetric(n: int, seed: int, kind: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    if kind == "zero":
        return np.zeros((n, n))
    if kind == "diagonal":
        return np.diag(random.standard_normal(n))
    if "rank one" in kind:
        vector = random.standard_normal(n)
        vector[: n // 2] = 1.0  # copies
        rest = random.standard_normal((n, n)) * 10.0 ** random.integers(-200, -8) if kind == "nearly rank one" else 0.0
        return np.outer(vector, vector) + rest + np.transpose(rest)
    if kind == "tiny":
        return symmetric(n, seed, "any") * 1e-150
    if kind == "equal":  # the largest eigenvalue has several vectors
        return np.eye(n)
    if kind == "blocks":
        half = n // 2
        matrix = np.zeros((n, n))
        matrix[:half, :half], matrix[half:, half:] = symmetric(half, seed, "any"), symmetric(n - half, seed + 1, "any")
        return matrix
    matrix = random.standard_normal((n, n)) * 10.0 ** (random.integers(-8, 8) if kind == "scaled" else 0)
    return matrix + matrix.T


KINDS = ("any", "scaled", "zero", "diagonal", "rank one", "nearly rank one", "tiny", "equal", "blocks")


@given(st.integers(1, 70), st.integers(0, 10_000), st.sampled_from(KINDS))
def test_the_largest_eigenvalue_and_its_vector(n: int, seed: int, kind: str) -> None:
    matrix = symmetric(n, seed, kind)
    before = matrix.copy()
    value, vector = spectra.top_eigenpair(matrix)
    assert np.array_equal(matrix, before)
    scale = np.abs(matrix).max() or 1.0
    assert value == pytest.approx(np.linalg.eigvalsh(matrix)[-1], abs=1e-13 * n * scale)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-12)
    assert np.linalg.norm(matrix @ vector - value * vector) <= 1e-12 * n * scale


def distances(n: int, seed: int, kind: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    points = random.standard_normal((n, 2 if kind == "plane" else 200))
    if kind == "copies":
        points[n // 2 :] = points[0]
    table = ((points[:, None] - points[None]) ** 2).sum(axis=2)
    if kind == "ties":
        table = np.round(table / 20)
        np.fill_diagonal(table, 0)
    if kind == "lost":
        table[n // 3] = table[:, n // 3] = np.inf
        np.fill_diagonal(table, 0)
    return table


@given(
    st.integers(3, 64),
    st.floats(0, 1),
    st.integers(0, 10_000),
    st.sampled_from(["any", "plane", "ties", "copies", "lost"]),
    st.sampled_from([1, 5, 40, 2_000]),
)
def test_the_smallest_diameter_takes_the_same_steps(n: int, part: float, seed: int, kind: str, limit: int) -> None:
    table, size = distances(n, seed, kind), n - int(part * ((n - 1) // 2))
    result = mda.smallest_diameter(table, size, limit)
    with _kernels.switched_off():
        assert result == mda.smallest_diameter(table, size, limit)


@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 10_000), st.sampled_from(["any", "copies", "lost"]))
def test_distances_between_mixed_rows(n: int, m: int, seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    table = torch.from_numpy(distances(n, seed, kind))
    shares = torch.from_numpy(random.random((m, n)) * (random.random((m, n)) < 0.6))
    shares[:, table.isinf().any(dim=0) & (table == 0).sum(dim=0).eq(1)] *= kind != "lost"
    shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-9)
    with _kernels.switched_off():
        expected = mixed_distances(table, shares)
    assert torch.allclose(mixed_distances(table, shares), expected, rtol=1e-9, atol=1e-9)


@given(st.integers(2, 45), st.integers(1, 20), st.integers(0, 10_000), st.floats(0, 280))
def test_what_is_near_stays_near_whatever_is_far(n: int, changes: int, seed: int, far: float) -> None:
    """Mixed rows that share all but a few rows, one of them extremely far from all others."""
    random = np.random.default_rng(seed)
    table = distances(n + 1, seed, "any")
    table[n, :n] = table[:n, n] = 10.0**far
    shares = np.full((4, n + 1), 1.0)
    for line in shares[1:]:
        line[random.integers(0, n, min(changes, n - 1))] = 0.0
    shares[:, :n] *= (0.9 / shares[:, :n].sum(axis=1))[:, None]
    shares[:, n] = 0.1
    found = mixed_distances(torch.from_numpy(table), torch.from_numpy(shares)).numpy()
    for i, j in np.ndindex(4, 4):
        weights = (shares[i] - shares[j])[:n]
        assert found[i, j] == pytest.approx(-weights @ table[:n, :n] @ weights / 2, rel=1e-9, abs=1e-9)


SCALES = st.sampled_from([-320, -300, -30, 0, 30, 290, 304])


@given(st.integers(1, 60), st.integers(0, 10_000), st.sampled_from(["any", "plane", "ties", "copies", "lost"]), SCALES)
def test_the_spread_of_some_rows(n: int, seed: int, kind: str, scale: int) -> None:
    random = np.random.default_rng(seed)
    table = distances(n, seed, kind) * 10.0**scale
    among = np.flatnonzero(np.isfinite(table).all(axis=1) & (random.random(n) < 0.8))
    if len(among) == 0:
        return
    shares = random.random(len(among)) + 0.01
    shares /= shares.sum()
    variance, outlyingness = top_spread(table, shares, among)
    with _kernels.switched_off():
        expected, _ = top_spread(table, shares, among)
    assert variance == pytest.approx(expected, rel=1e-11, abs=1e-13 * np.abs(table[np.ix_(among, among)]).max())
    assert outlyingness.max() == (1.0 if variance > 0 else 0.0) and outlyingness.min() >= 0
    if kind == "any" and scale > -320 and len(among) > 1:  # otherwise two directions may be as wide
        with _kernels.switched_off():
            values = np.linalg.eigvalsh(_weighted(table, shares, among))
            if values[-1] > 1.02 * values[-2]:
                assert outlyingness == pytest.approx(top_spread(table, shares, among)[1], abs=1e-10)
    equal = table[np.ix_(among, among)] == 0
    for one, other in np.argwhere(equal & equal[(equal.argmax(axis=1))]):
        assert outlyingness[one] == outlyingness[other]


def _weighted(table: np.ndarray, shares: np.ndarray, among: np.ndarray) -> np.ndarray:
    own = table[np.ix_(among, among)] / table[np.ix_(among, among)].max()
    means = own @ shares
    return np.sqrt(np.outer(shares, shares)) * (means + means[:, None] - own - means @ shares) / 2


@given(
    st.integers(1, 60), st.integers(1, 30), st.integers(0, 10_000), st.sampled_from(["any", "ties", "copies"]), SCALES
)
def test_the_scatters_of_subsets(n: int, count: int, seed: int, kind: str, scale: int) -> None:
    random = np.random.default_rng(seed)
    table = distances(n, seed, kind) * 10.0**scale
    size = int(random.integers(1, n + 1))
    subsets = np.stack([np.sort(random.permutation(n)[:size]) for _ in range(count)])
    found = scatters(table, subsets)
    with _kernels.switched_off():
        expected = scatters(table, subsets)
    assert found == pytest.approx(expected, rel=1e-11, abs=1e-13 * table.max())
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert np.array_equal(scatters(table, np.tile(subsets, (20, 1)))[-count:], found)
    finally:
        torch.set_num_threads(before)


def test_more_rows_than_bits_take_the_plain_path() -> None:
    table = distances(subsets.MOST + 6, 1, "any")
    with _kernels.switched_off():
        expected = mda.smallest_diameter(table, 60)
    assert mda.smallest_diameter(table, 60) == expected and len(expected) == 60
