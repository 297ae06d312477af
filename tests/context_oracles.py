"""Slow, obvious answers for the rules with state or a trusted gradient, in plain Python: see `oracles`."""

from __future__ import annotations

import math
from typing import Any

from oracles import DOUBT, Row, Rows, distance, dot, median
from spectral_oracles import caf

from gyroscope.rules import RuleContext


def _finite(row: Row) -> bool:
    """Return whether float64 can hold the row's length."""
    return all(map(math.isfinite, row)) and math.isfinite(sum(value * value for value in row))


def centered_clipping(
    rows: Rows, tau: float | str = "median", iterations: int = 1, start: str = "median", centre: Row | None = None
) -> list[float]:
    """ "v <- v + 1/n sum (x_i - v) min(1, tau / ||x_i - v||)"; a row that is infinitely far adds nothing."""
    n = len(rows)
    v = list(centre) if centre is not None else median(rows) if start == "median" else [0.0] * len(rows[0])
    for _ in range(iterations):
        lengths = [distance(row, v) if _finite(row) else math.inf for row in rows]
        radius = sorted(lengths)[(n - 1) // 2] if tau == "median" else float(tau)
        step = [0.0] * len(v)
        for row, length in zip(rows, lengths, strict=True):
            if math.isfinite(length):
                factor = min(1.0, radius / length) if length > 0 else 1.0
                step = [s + factor * (x - c) for s, x, c in zip(step, row, v, strict=True)]
        v = [c + s / n for c, s in zip(v, step, strict=True)]
    return v


class Guard:
    """SafeGuard round by round, with a record of all rows."""

    def __init__(self, short: int = 20, long: int = 100, factor: float = 1.5) -> None:
        self.windows = (short, long)
        self.factor = factor
        self.rounds: list[list[list[float]]] = []
        """What counts as sent in each round."""
        self.good: set[int] = set()

    def play(self, rows: Rows) -> tuple[list[float], set[int]]:
        """Return the aggregate, and the workers whose rows it is the mean of."""
        n, age = len(rows), len(self.rounds)
        if age % self.windows[1] == 0:
            self.good = set(range(n))
        present = {i for i in range(n) if _finite(rows[i])}
        near = set(present)
        for window in self.windows:
            past = self.rounds[age - age % window :]
            sums = {i: [math.fsum(c) for c in zip(rows[i], *(r[i] for r in past), strict=True)] for i in present}
            near &= self._near(sums, n)
        kept = self.good & near or near
        vector = [math.fsum(column) / len(kept) for column in zip(*(rows[i] for i in sorted(kept)), strict=True)]
        self.good = kept | (self.good - present)
        self.rounds.append([list(rows[i]) if i in present else vector for i in range(n)])
        return vector, kept

    def _near(self, sums: dict[int, list[float]], n: int) -> set[int]:
        """Return the workers within factor times the smallest radius around one that holds a majority."""
        radii = {}
        for i in sums:
            lengths = sorted(distance(sums[i], sums[j]) for j in sums)
            radii[i] = lengths[n // 2] if len(lengths) > n // 2 else math.inf
        central = min(radii, key=lambda i: (radii[i], i))
        return {i for i in sums if distance(sums[central], sums[i]) <= self.factor * radii[central] < math.inf}

    def in_doubt(self, rows: Rows) -> bool:
        """Return whether, in a first round, rounding or a row number decides which workers are near the central one."""
        present = [row for row in rows if _finite(row)]
        lengths = [[distance(row, other) for other in present] for row in present]
        radii = [sorted(each)[len(rows) // 2] for each in lengths]
        edge = self.factor * min(radii)
        verdicts = set()
        for each, radius in zip(lengths, radii, strict=True):
            if radius - min(radii) <= DOUBT * radius:
                verdicts.add(tuple(length <= edge for length in each))
                if edge > 0 and any(abs(length - edge) <= DOUBT * edge for length in each):
                    return True
        return len(verdicts) > 1


def zeno(rows: Rows, f: int, trusted: Row, rho: float = 0.005) -> tuple[list[float], list[int], list[float]]:
    """Return the mean of the n-f rows of highest <g, x> - rho |x|^2, their numbers, and all scores."""
    scores = [dot(row, trusted) - rho * dot(row, row) if _finite(row) else -math.inf for row in rows]
    chosen = sorted(range(len(rows)), key=lambda i: (-scores[i], i))[: len(rows) - f]
    columns = zip(*(rows[i] for i in chosen), strict=True)
    return [math.fsum(column) / len(chosen) for column in columns], chosen, scores


def fltrust(rows: Rows, trusted: Row) -> tuple[list[float], list[float]]:
    """ "g = 1 / sum TS_j  sum TS_i ||g_0|| / ||g_i|| g_i, TS_i = ReLU(cos(g_i, g_0))", and the trust scores."""
    size = math.hypot(*trusted)
    scores = []
    total = [0.0] * len(trusted)
    for row in rows:
        length = math.hypot(*row) if _finite(row) else 0.0
        score = max(0.0, dot(row, trusted) / (length * size)) if length > 0 and size > 0 else 0.0
        scores.append(score)
        if score > 0:
            total = [t + score * size / length * x for t, x in zip(total, row, strict=True)]
    return ([t / sum(scores) for t in total] if sum(scores) > 0 else list(trusted)), scores


# ------------------------------------------------------------------------------------------- for the table


def _centered_clipping(
    rows: Rows, f: int, doubt: float, strict: bool = False, context: RuleContext | None = None, **parameters: Any
) -> list[list[float]]:
    return [[value] for value in centered_clipping(rows, **parameters)]


def _safeguard(
    rows: Rows, f: int, doubt: float, strict: bool = False, context: RuleContext | None = None, **parameters: Any
) -> list[list[float]] | None:
    guard = Guard(**parameters)
    return None if guard.in_doubt(rows) else [[value] for value in guard.play(rows)[0]]


def _zeno(
    rows: Rows, f: int, doubt: float, strict: bool = False, *, context: RuleContext, rho: float
) -> list[list[float]] | None:
    assert context.trusted is not None
    vector, chosen, scores = zeno(rows, f, context.trusted.tolist(), rho)
    if f > 0:
        last = min(scores[i] for i in chosen)
        next_ = max(score for i, score in enumerate(scores) if i not in chosen)
        usual = max(abs(score) for score in scores if math.isfinite(score))
        # Both terms may be large and nearly cancel: then a score's last digits are rounding errors.
        terms = max(abs(dot(row, context.trusted.tolist())) + rho * dot(row, row) for row in rows if _finite(row))
        same = [row for row, score in zip(rows, scores, strict=True) if score == last]
        exact = not strict and last == next_ and all(row == same[0] for row in same)
        if math.isfinite(next_) and last - next_ <= max(1e-5 * usual, 1e-12 * terms, 1e-300) and not exact:
            return None
    return [[value] for value in vector]


def _fltrust(
    rows: Rows, f: int, doubt: float, strict: bool = False, *, context: RuleContext
) -> list[list[float]] | None:
    assert context.trusted is not None
    vector, scores = fltrust(rows, context.trusted.tolist())
    size = math.hypot(*context.trusted.tolist())
    sizes = [math.hypot(*row) for row in rows if _finite(row)]
    # A sum of scores near zero, and a trusted gradient that is the rest of a cancellation, are rounding errors.
    if 0 < sum(scores) < 1e-2 or 0 < size < 1e-2 * max(sizes):
        return None
    return [[value] for value in vector]


def _caf_history(
    rows: Rows, f: int, doubt: float, strict: bool = False, context: RuleContext | None = None, **parameters: Any
) -> list[list[float]] | None:
    """Without a past it is CAF."""
    return caf(rows, f, doubt, strict)


CONTEXT_ORACLES = {
    "caf-history": _caf_history,
    "centered-clipping": _centered_clipping,
    "safeguard": _safeguard,
    "zeno": _zeno,
    "fltrust": _fltrust,
}
