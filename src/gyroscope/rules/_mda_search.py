"""Find the subset of a given size with the smallest diameter, exactly, for MDA.

Whether rows can be left out so that no two of the others are farther apart than r is a question about a graph: join
the pairs that are too far apart, and look for at most f rows that touch every edge, a vertex cover. While some row has
three or more edges, either it is left out or all its partners are; f allows few such choices, and simple bounds end
most of them early. So the search takes about 1.47^f steps at worst, where trying all subsets takes n over f.

A set of rows is an integer with one bit per row.
"""

from __future__ import annotations

from collections.abc import Sequence

Distances = Sequence[Sequence[float]]


def smallest_diameter(table: Distances, size: int) -> list[int]:
    """Return the rows of the subset; of several with the same diameter, the lexicographically smallest."""
    n = len(table)
    diameter = _diameter(table, size)
    far = _far(table, diameter)
    chosen: list[int] = []
    left = (1 << n) - 1  # the rows not yet decided on
    spare = n - size
    for row in range(n):
        if len(chosen) == size:
            break
        if not left >> row & 1:
            continue
        left &= ~(1 << row)
        partners = far[row] & left
        # Take the row if all rows too far from it can be left out, with enough others to choose from.
        if _coverable(far, left & ~partners, spare - partners.bit_count()):
            chosen.append(row)
            left &= ~partners
            spare -= partners.bit_count()
        else:
            spare -= 1
    return chosen


def _diameter(table: Distances, size: int) -> float:
    """Return the smallest r for which some `size` rows are within r of each other, by a binary search."""
    n = len(table)
    everyone, spare = (1 << n) - 1, n - size
    nearest = [sorted(range(n), key=table[row].__getitem__)[:size] for row in range(n)]
    # Each row of the subset has size - 1 others within the diameter. Any row with its nearest ones is an upper bound.
    low = sorted(table[row][members[-1]] for row, members in enumerate(nearest))[size - 1]
    high = min(max(table[i][j] for i in members for j in members) for members in nearest)
    candidates = sorted({value for line in table for value in line if low <= value <= high})
    first, last = 0, len(candidates) - 1
    while first < last:
        middle = (first + last) // 2
        if _coverable(_far(table, candidates[middle]), everyone, spare):
            last = middle
        else:
            first = middle + 1
    return candidates[first]


def _far(table: Distances, limit: float) -> list[int]:
    """Return, for each row, the rows that are farther from it than the limit."""
    return [sum(1 << j for j, value in enumerate(line) if value > limit) for line in table]


def _coverable(far: list[int], rows: int, spare: int) -> bool:
    """Return whether leaving out at most `spare` of these rows leaves no two that are too far apart."""
    while spare >= 0:
        degrees = {row: (far[row] & rows).bit_count() for row in _members(rows)}
        rows = sum(1 << row for row, degree in degrees.items() if degree)  # a row without edges may stay
        if not rows:
            return True
        row, degree = max(degrees.items(), key=lambda item: item[1])
        edges = sum(degrees.values()) // 2
        if edges > sum(sorted(degrees.values(), reverse=True)[:spare]):
            return False  # more edges than any `spare` rows touch
        if degree <= 2:
            return _cost_of_paths(far, rows) <= spare
        leaf = next((one for one, count in degrees.items() if count == 1), None)
        if leaf is not None:  # leaving out its partner is at least as good
            rows &= ~(far[leaf] & rows)
            spare -= 1
            continue
        if degree <= spare:  # otherwise the row must go: its partners are too many to leave out
            partners = far[row] & rows
            if _coverable(far, rows & ~partners & ~(1 << row), spare - degree):
                return True
        rows &= ~(1 << row)
        spare -= 1
    return False


def _cost_of_paths(far: list[int], rows: int) -> int:
    """Return how many rows must go if no row has more than two edges: half of each path or cycle."""
    cost = 0
    while rows:
        piece, grown = 0, rows & -rows
        while grown != piece:
            piece = grown
            for row in _members(piece):
                grown |= far[row] & rows
        edges = sum((far[row] & piece).bit_count() for row in _members(piece)) // 2
        length = piece.bit_count()
        cost += (length + 1) // 2 if edges == length else length // 2
        rows &= ~piece
    return cost


def _members(rows: int) -> list[int]:
    found = []
    while rows:
        bit = rows & -rows
        found.append(bit.bit_length() - 1)
        rows ^= bit
    return found
