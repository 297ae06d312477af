"""Order statistics per coordinate, on which Median, the trimmed mean, Bulyan and their relatives stand.

NaN sorts above +inf. So with at most f NaN or infinite values among n >= 2f + 1 in a coordinate, the middle is an
honest value or lies between two. Ties are broken by value, never by row: the result does not depend on who sent what.
"""

from __future__ import annotations

from torch import Tensor

from gyroscope._linalg import _kernels


def median(rows: Tensor, even: str = "lower") -> Tensor:
    """The median of each column: for an even number of rows the lower middle, or the mean of both middles."""
    return _kernels.median(rows, even) if _kernels.usable(rows) else plain_median(rows, even)


def mean_around_median(rows: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    """The mean of the `count` values of each column that are nearest to its (lower) median.

    In sorted order these are a window around the middle. Of two values equally near, the smaller belongs to it.
    shares: a (t, n) matrix; the result is then that for the t rows `shares @ rows`, in which rows without a share are
    left out: they may hold NaN.
    """
    if _kernels.usable(rows):
        return _kernels.mean_around_median(rows, count, shares)
    return plain_mean_around_median(rows, count, shares)


def trimmed_mean(rows: Tensor, trim: int) -> Tensor:
    """The mean of what is left of each column without its `trim` smallest and `trim` largest values."""
    return _kernels.trimmed_mean(rows, trim) if _kernels.usable(rows) else plain_trimmed_mean(rows, trim)


def mean_around_trimmed_mean(rows: Tensor, trim: int, count: int) -> Tensor:
    """The mean of the `count` values of each column nearest to its trimmed mean; of two equally near, the smaller."""
    if _kernels.usable(rows):
        return _kernels.mean_around_trimmed_mean(rows, trim, count)
    return plain_mean_around_trimmed_mean(rows, trim, count)


def plain_median(rows: Tensor, even: str = "lower") -> Tensor:
    """The reference, and the path of other devices."""
    n = rows.shape[0]
    low = _kth(rows, (n - 1) // 2)
    if even == "lower" or n % 2 == 1:
        return low
    return low.mul_(0.5).add_(_kth(rows, n // 2), alpha=0.5)  # halves first: the sum of two large values overflows


def plain_mean_around_median(rows: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    """The reference, and the path of other devices."""
    if shares is not None:
        unused = ~shares.any(dim=0)
        rows = shares.to(rows.dtype) @ rows.masked_fill(unused.unsqueeze(1), 0)  # 0 * NaN would be NaN
    ordered = rows.sort(dim=0).values
    return _mean_around(ordered, ordered[(len(ordered) - 1) // 2], count)


def plain_trimmed_mean(rows: Tensor, trim: int) -> Tensor:
    """The reference, and the path of other devices."""
    return _mean(rows.sort(dim=0).values, trim)


def plain_mean_around_trimmed_mean(rows: Tensor, trim: int, count: int) -> Tensor:
    """The reference, and the path of other devices."""
    ordered = rows.sort(dim=0).values
    return _mean_around(ordered, _mean(ordered, trim), count)


def _mean(ordered: Tensor, trim: int) -> Tensor:
    """Added up in order of value, so that it does not matter who sent what."""
    total = ordered[trim].clone()
    for row in ordered[trim + 1 : len(ordered) - trim]:
        total += row
    return total / (len(ordered) - 2 * trim)


def _mean_around(ordered: Tensor, center: Tensor, count: int) -> Tensor:
    """The mean of the `count` values nearest to a place in each column, whose values are in order: a window of them."""
    # The window moves right past each value that is farther from the center than the one it would gain.
    first = (center - ordered[: len(ordered) - count] > ordered[count:] - center).sum(dim=0)
    total = ordered.gather(0, first.unsqueeze(0))[0]
    for offset in range(1, count):
        total += ordered.gather(0, (first + offset).unsqueeze(0))[0]
    return total / count


def _kth(rows: Tensor, index: int) -> Tensor:
    """The value at the index in the sorted order of each column."""
    return rows.t().contiguous().kthvalue(index + 1, dim=1).values
