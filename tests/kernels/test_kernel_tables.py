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


def test_more_rows_than_bits_take_the_plain_path() -> None:
    table = distances(subsets.MOST + 6, 1, "any")
    with _kernels.switched_off():
        expected = mda.smallest_diameter(table, 60)
    assert mda.smallest_diameter(table, 60) == expected and len(expected) == 60
