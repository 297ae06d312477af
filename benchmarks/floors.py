"""The least time that each rule needs by its definition: its passes over the rows, at the rate of a plain read.

The read is of a matrix that fits in no cache: rows arrive from workers, they are not in the cache. (The smaller of the
paper's two matrices fits in the last cache of many processors. There a second read is faster than that.)

A rule that reads distances also needs the table of all of them, which costs more than a pass: its time is that of the
table alone. Where the number of passes depends on the data, those made are counted.
"""

from __future__ import annotations

from typing import NamedTuple

READ, TABLE = "a plain read of memory", "the table of distances"

_DRAWN = 10_000
"""Coordinates that `dnc` draws, each time."""


class Floor(NamedTuple):
    """What a computation needs at the least."""

    passes: float
    """Reads or writes of a matrix as large as the rows."""
    tables: float = 0.0
    """Tables of distances between all rows, on all coordinates."""

    def seconds(self, read: float, table: float) -> float:
        return self.passes * read + self.tables * table


def of(name: str, d: int) -> Floor | None:
    """Return the floor of a rule, a pre-aggregation or a composition; None where none is known."""
    drawn = min(1.0, _DRAWN / d)
    lines = 1 - (1 - drawn) ** 16  # the share of cache lines that hold one of the drawn coordinates
    floors = {
        "average": Floor(1),
        "median": Floor(1),
        "trimmed-mean": Floor(1),
        "meamed": Floor(1),
        "phocas": Floor(1),
        "cge": Floor(2),  # norms; mean
        "clip": Floor(3),  # norms; read and write
        "arc": Floor(3),
        "zeno": Floor(2),  # norms and products; mean
        "fltrust": Floor(2),
        "monna": Floor(2),  # distances from the pivot; mean
        "aksel": Floor(3),  # median; distances from it; mean
        "centered-clipping": Floor(3),  # the first centre, a median; distances; mean
        "signguard": Floor(3),  # norms; signs of a tenth, in nearly every cache line; mean
        "krum": Floor(1, 1),
        "bulyan": Floor(1, 1),
        "mda": Floor(1, 1),
        "smea:limit=1": Floor(1, 1),
        "caf": Floor(1, 1),
        "nnm+krum": Floor(1, 1),
        "nnm+bulyan": Floor(1, 1),
        "nnm+mda": Floor(1, 1),
        "nnm+caf": Floor(1, 1),
        "flame": Floor(2, 1),  # norms; mean
        "flame:linkage=ball": Floor(2, 1),
        "geometric-median": Floor(3, 1),  # median; distances from it; mean
        "dnc": Floor(2 + 5 * lines, 5 * drawn),  # finite?; mean; coordinates
        "dnc:robust=true": Floor(4 + 5 * lines, 5 * drawn),  # median and distances from it, besides
        "safeguard": Floor(6, 1),  # finite?; two sums, read and written; mean
    }
    return floors.get(name)


_BY_NAME = {
    2.0: (
        "cge", "clip", "arc", "average", "median", "trimmed-mean", "meamed", "phocas", "fltrust", "zeno",
        "centered-clipping", "signguard", "aksel", "monna",
    ),
    2.5: (
        "flame", "flame:linkage=ball", "dnc", "dnc:robust=true", "caf", "smea:limit=1", "geometric-median", "safeguard",
    ),
}  # fmt: skip


def limit(name: str) -> float | None:
    """Return how many times its floor a rule may take; None for those of `by_table`."""
    return next((times for times, names in _BY_NAME.items() if name in names), None)


def by_table(name: str) -> bool:
    """Return whether the promise is 1.5 times the table of distances, plus the rule's own passes."""
    return name in ("krum", "bulyan", "mda") or name.startswith("nnm+")
