"""Time the kernels as ratios to torch's own operations.

    python benchmarks/kernels.py [--repeats 15] [--growth]

Each kernel and its reference run in turn, many times, in one process; a ratio is that of the least times and (in
brackets) of the medians. Only ratios are comparable on a machine that other programs use.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from gyroscope._linalg import _kernels
from gyroscope._linalg._kernels import pairwise, row_updates, selections, sums

SMALL, LARGE = (51, 79_510), (25, 1_310_922)
Timed = Callable[[], object]


def interleaved(functions: Mapping[str, Timed], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each run of each function; they run in turn."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: values[1:] for name, values in times.items()}  # the first run warms caches and threads up


def compare(name: str, kernel: Timed, reference: tuple[str, Timed], repeats: int, target: str = "") -> None:
    ours, theirs = interleaved({"kernel": kernel, "reference": reference[1]}, repeats).values()
    least, middle = min(ours) / min(theirs), statistics.median(ours) / statistics.median(theirs)
    print(
        f"{name:28} {min(ours) * 1e3:8.2f} ms   {reference[0]:22} {min(theirs) * 1e3:8.2f} ms"
        f"   {least:6.3f} ({middle:6.3f})   {target}"
    )


def table(shape: tuple[int, int], repeats: int) -> None:
    rows, momentum = torch.randn(shape), torch.randn(shape)
    n = shape[0]
    few = max(3, repeats // 5)  # torch's median is slow
    mean = ("mean", lambda: rows.mean(dim=0))
    slow = ("torch.median", lambda: rows.median(dim=0))
    deviation = ("mean and deviation", lambda: torch.linalg.vector_norm(rows - rows.mean(dim=0), dtype=torch.float64))
    # Bulyan's middle step: as many mixtures of the best rows as there are selections.
    f = (n - 3) // 4
    size = n - 2 * f - 2
    shares = torch.stack([(torch.arange(n) >= i) & (torch.arange(n) < n - f - 2) for i in range(size)]).double()
    shares /= shares.sum(dim=1, keepdim=True)
    chosen = list(range(n - f - 2))
    selected = ("index_select and mean", lambda: rows.index_select(0, torch.tensor(chosen)).mean(dim=0))
    product = ("rows @ rows.T", lambda: rows @ rows.T)
    added = ("torch.add in place", lambda: torch.add(rows, momentum, alpha=0.9, out=momentum))

    print(f"\n{shape}, {torch.get_num_threads()} thread(s)")
    median = functools.partial(selections.median, rows)
    compare("median", median, mean, repeats, "at most 2.5" if shape == LARGE else "")
    compare("median", median, slow, few, "at most 0.067" if shape == SMALL else "")
    compare("trimmed mean", lambda: selections.trimmed_mean(rows, n // 4), mean, repeats)
    compare("mean around median", lambda: selections.mean_around_median(rows, n // 2), mean, repeats)
    mixed = functools.partial(selections.mean_around_median, rows, size - 2 * f, shares)
    compare("mean around median, mixed", mixed, mean, repeats)
    compare("mean of chosen rows", lambda: sums.mean_of(rows, chosen), selected, repeats)
    compare("squared distances", lambda: pairwise.squared_distances(rows), product, repeats, "at most 2.5")
    compare("moments", lambda: sums.moments(rows), mean, repeats)
    compare("moments", lambda: sums.moments(rows), deviation, few)
    compare("moments with std", lambda: sums.moments(rows, std=True), mean, repeats)
    compare("9 vectors, 36 products", lambda: sums.products(list(rows[:9])), mean, repeats)
    compare("momentum", lambda: row_updates.accumulate(momentum, rows, 0.9), added, repeats)


def growth(repeats: int) -> None:
    """Print nanoseconds per column of 100,000, which should grow no faster than n log^2 n and n^2."""
    print(f"\ngrowth in n, {torch.get_num_threads()} thread(s): nanoseconds per column")
    print("   n    median   / n log2^2 n   distances   / n^2")
    for n in (7, 15, 25, 31, 33, 51, 65, 101, 151, 255):
        rows = torch.randn(n, 100_000)
        functions = {
            "median": functools.partial(selections.median, rows),
            "all": functools.partial(pairwise.squared_distances, rows),
        }
        times = {name: min(values) * 1e4 for name, values in interleaved(functions, repeats).items()}
        logarithmic = times["median"] / n / math.log2(n) ** 2
        print(f"{n:4} {times['median']:9.2f} {logarithmic:14.4f} {times['all']:11.2f} {times['all'] / n**2:7.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--growth", action="store_true", help="the growth in n instead of the table")
    options = parser.parse_args()
    begin = time.perf_counter()
    _kernels.warm_up()
    print(f"all kernels compiled or loaded in {time.perf_counter() - begin:.2f} s")
    most = torch.get_num_threads()
    for count in sorted({1, most}):
        torch.set_num_threads(count)
        if options.growth:
            growth(options.repeats)
        else:
            for shape in (SMALL, LARGE):
                table(shape, options.repeats)


if __name__ == "__main__":
    main()
