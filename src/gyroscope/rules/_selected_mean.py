"""Means of selected rows with the workers' weights, for the rules that select rows. The other rows are never read."""

from __future__ import annotations

from torch import Tensor

from gyroscope._linalg import matrix
from gyroscope.rules.base import Aggregate, equal_weights


def mean_of_best(rows: Tensor, scores: Tensor, count: int) -> Aggregate:
    """Average the `count` rows of smallest score; of equal scores, the lowest row number comes first."""
    return mean_of(rows, scores.argsort(stable=True)[:count])


def mean_of(rows: Tensor, chosen: Tensor) -> Aggregate:
    """Average the chosen rows, each with the same weight."""
    return Aggregate(matrix.mean_of(rows, chosen), equal_weights(rows, chosen))
