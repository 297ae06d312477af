"""The lines of a benchmark's table: printed, and written as CSV."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.timing import Ratio


@dataclasses.dataclass(frozen=True)
class Line:
    """One comparison."""

    part: str
    """`rules`, `growth in n`, `growth in d`, `training`, `memory` or `distributed`."""
    what: str
    n: int | None
    d: int | None
    value: float
    """The ratio, or the quantity that the unit names."""
    unit: str = "x"
    low: float | None = None
    high: float | None = None
    """The middle half of the passes is from low to high."""
    ours_ms: float | None = None
    other_ms: float | None = None
    limit: float | None = None
    """The largest value that is promised; None without a promise."""

    @property
    def holds(self) -> bool | None:
        return None if self.limit is None else self.value <= self.limit


def ratio_line(part: str, what: str, ratio: Ratio, *, n: int | None = None, d: int | None = None,
               times: tuple[float, float] | None = None, limit: float | None = None) -> Line:  # fmt: skip
    """Return a line from a ratio and from the seconds of both sides."""
    ours, other = (None, None) if times is None else (1e3 * times[0], 1e3 * times[1])
    return Line(part, what, n, d, ratio.middle, "x", ratio.low, ratio.high, ours, other, limit)


def table(lines: Iterable[Line]) -> str:
    """Return the table as text."""
    text = [f"{'':72}{'ours':>11}{'other':>11}{'ratio':>9}  {'(middle half)':16}{'at most':>8}"]
    for entry in lines:
        shape = f" at ({entry.n}, {entry.d:,})" if entry.n is not None and entry.d is not None else ""
        times = "".join(f"{'' if ms is None else f'{ms:,.2f} ms':>11}" for ms in (entry.ours_ms, entry.other_ms))
        value = f"{entry.value:.3g}" if entry.unit == "x" else f"{entry.value:,.3g} {entry.unit}"
        half = "" if entry.low is None else f"({entry.low:.3g} - {entry.high:.3g})"
        limit = "" if entry.limit is None else f"{entry.limit:.3g}"
        verdict = {None: "", True: "  holds", False: "  DOES NOT HOLD"}[entry.holds]
        text.append(f"{entry.what + shape:72}{times}{value:>9}  {half:16}{limit:>8}{verdict}".rstrip())
    return "\n".join(text)


def write(lines: Sequence[Line], path: Path) -> None:
    """Write the lines as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        fields = [field.name for field in dataclasses.fields(Line)]
        writer.writerow([*fields, "holds"])
        for entry in lines:
            values = [getattr(entry, field) for field in fields]
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values] + [entry.holds])
