"""Order statistics of each column: the basis of Median, the trimmed mean, Bulyan and their relatives.

NaN sorts above +inf. So with at most f NaN or infinite values among n >= 2f + 1 in a coordinate, the middle is an
honest value or between two of them. Ties are broken by value, never by row: the order of the rows does not matter.

Each function takes (t, n) `shares`, too, or two factors of them. If given, the result is that for the t rows
`shares @ rows`, which the kernel never stores as a whole. A row without a share is left out: it may hold NaN.
"""

from __future__ import annotations

from torch import Tensor

from gyroscope._linalg._kernels import accelerated_by, selections
from gyroscope._linalg._kernels.selections import Shares


@accelerated_by(selections.median)
def median(rows: Tensor, even: str = "lower", shares: Shares | None = None) -> Tensor:
    """Return the median of each column: for an even number of rows the lower middle, or with "mean" that of both."""
    rows = _mixed(rows, shares)
    n = rows.shape[0]
    low = _kth(rows, (n - 1) // 2)
    if even == "lower" or n % 2 == 1:
        return low
    return low.mul_(0.5).add_(_kth(rows, n // 2), alpha=0.5)  # halves first: the sum of two large values overflows


@accelerated_by(selections.mean_around_median)
def mean_around_median(rows: Tensor, count: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of the `count` values of each column that are nearest to its (lower) median.

    In sorted order these are a window around the middle. Of two values equally near, the smaller belongs to it.
    """
    ordered = _mixed(rows, shares).sort(dim=0).values
    return _mean_around(ordered, ordered[(len(ordered) - 1) // 2], count)


@accelerated_by(selections.trimmed_mean)
def trimmed_mean(rows: Tensor, trim: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of each column without its `trim` smallest and `trim` largest values."""
    return _mean(_mixed(rows, shares).sort(dim=0).values, trim)


@accelerated_by(selections.mean_around_trimmed_mean)
def mean_around_trimmed_mean(rows: Tensor, trim: int, count: int, shares: Shares | None = None) -> Tensor:
    """Return the mean of the `count` values of each column nearest to its trimmed mean; of two as near, the smaller."""
    ordered = _mixed(rows, shares).sort(dim=0).values
    return _mean_around(ordered, _mean(ordered, trim), count)


def _mixed(rows: Tensor, shares: Shares | None) -> Tensor:
    if shares is None:
        return rows
    if not isinstance(shares, Tensor):
        shares = shares[0] @ shares[1]
    unused = ~shares.any(dim=0)
    return shares.to(rows.dtype) @ rows.masked_fill(unused.unsqueeze(1), 0)  # 0 * NaN would be NaN


def _mean(ordered: Tensor, trim: int) -> Tensor:
    """Add up in order of value, so that the order of the rows does not matter."""
    total = ordered[trim].clone()
    for row in ordered[trim + 1 : len(ordered) - trim]:
        total += row
    return total / (len(ordered) - 2 * trim)


def _mean_around(ordered: Tensor, center: Tensor, count: int) -> Tensor:
    """Return the mean of the `count` values of each sorted column that are nearest to its center: a window of them."""
    # The window moves right past each value that is farther from the center than the one it would gain.
    first = (center - ordered[: len(ordered) - count] > ordered[count:] - center).sum(dim=0)
    total = ordered.gather(0, first.unsqueeze(0))[0]
    for offset in range(1, count):
        total += ordered.gather(0, (first + offset).unsqueeze(0))[0]
    return total / count


def _kth(rows: Tensor, index: int) -> Tensor:
    """Return the value at the index in the sorted order of each column."""
    return rows.t().contiguous().kthvalue(index + 1, dim=1).values
