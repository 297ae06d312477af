"""Write the tables of docs/scaling.md: what was measured, and what the formulas below make of docs/performance/*.csv.

python -m benchmarks.pages.update_scaling
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable

from benchmarks.pages import DOCS, markers

B = 4
"""Bytes of a value."""
TABLE = 8
"""Bytes of a distance."""
LINK = 0.6e6
"""Bytes of a link: what asyncio keeps for TLS, and what waits to be sent."""
MANY_WORKERS = "many_workers.csv"
SHARED, VECTORS = 3, 10
"""Rows kept per worker at the server (the matrix and two buffers), and vectors besides."""
NETWORK = 10e9 / 8
"""Bytes per second and direction: 10 Gbit/s."""
WORKERS, PARAMETERS = (10, 100, 1000), (10**6, 10**8, 10**9)
GROWTH: dict[str, Callable[[float], float]] = {"median": lambda n: n * math.log2(n) ** 2, "krum": lambda n: n**2}
"""How the time per column grows beyond the largest n that was measured."""


def rows(name: str) -> list[dict[str, str]]:
    with (DOCS / "performance" / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


BENCH, DISTRIBUTED = rows("bench.csv"), rows("distributed.csv")


def column_seconds(rule: str, n: float) -> float:
    """Return the seconds per column of a rule, interpolated between measurements in logarithms."""
    known = {
        int(row["n"]): 1e-9 * float(row["value"])
        for row in BENCH
        if row["part"] == "growth in n" and row["unit"] == "ns/column" and row["what"].startswith(f"{rule},")
    }
    largest = max(known)
    if n >= largest:
        return known[largest] * GROWTH[rule](n) / GROWTH[rule](largest)
    below, above = max(k for k in known if k <= n), min(k for k in known if k > n)
    share = math.log(n / below) / math.log(above / below)
    return math.exp((1 - share) * math.log(known[below]) + share * math.log(known[above]))


NEEDED = re.compile(r"the server's round(| with TLS) / the bare transfer\1 \+ the rule \(median\)")


def needed(d: int) -> dict[str, str]:
    """Return the line of the server's round beside the transfer of its bytes and the rule, back to back."""
    return next(row for row in DISTRIBUTED if NEEDED.fullmatch(row["what"]) and int(row["d"]) == d)


# -- the formulas -----------------------------------------------------------------------------------------------------


def server_bytes(n: int, d: float, servers: int) -> float:
    """Return the bytes of a server in each direction: parameters out, rows in."""
    return n * B * d / servers


def server_memory(n: int, d: float, servers: int) -> float:
    """Return the memory of a server: the matrix, two buffers per worker, its vectors, and the links."""
    return (SHARED * n + VECTORS) * B * d / servers + n * LINK


def table_bytes(n: int) -> float:
    """Return the bytes that a server sends to reduce the tables of distances: a reduce-scatter and an all-gather."""
    return 2 * TABLE * n**2


def rank_bytes(n: int, d: float) -> float:
    """Return the bytes of a rank of RobustSGD in each direction: all but its own share of its row and of the result."""
    return 2 * B * d * (n - 1) / n


def rank_memory(d: float) -> float:
    """Return the memory of a rank: parameters, gradients, row, momentum, send buffer, columns, gathered result."""
    return 7 * B * d


# -- the tables -------------------------------------------------------------------------------------------------------


def measured() -> str:
    """Return the table of `benchmarks.many_workers`, and what idle workers cost."""
    if not (DOCS / "performance" / MANY_WORKERS).exists():
        return "`python -m benchmarks.many_workers` writes this table; it was not run for this version yet."
    table = [
        "| workers | parameters | all joined after | a round | the server's processor time | peak memory | of it rows "
        "| beyond | descriptors | threads |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    idle = ""
    for row in rows(MANY_WORKERS):
        n = int(row["workers"])
        half = " to ".join(plain(row[f"round_{end}_ms"]) for end in ("low", "high"))
        table.append(
            f"| {n:,} | {int(row['values']):,} | {float(row['join_seconds']):.2f} s "
            f"| {plain(row['round_ms'])} ({half}) | {plain(row['server_cpu_ms'])} "
            f"| {size(1e6 * float(row['peak_mb']))} | {size(1e6 * float(row['rows_mb']))} "
            f"| {size(1e6 * max(0.0, float(row['beyond_mb'])))} | {int(row['descriptors']):,} | {row['threads']} |"
        )
        if float(row["idle_seconds"]):
            idle = (
                f"\n\n**{n:,} workers that are linked and idle** for {float(row['idle_seconds']):.0f} s cost the "
                f"server {plain(row['idle_cpu_ms'])} of processor time per second, mostly for heartbeats, and the "
                f"process has {size(1e6 * float(row['idle_mb']))}."
            )
    return "\n".join(table) + idle


def plain(milliseconds: str) -> str:
    """Return a measured time, to three digits."""
    value = float(milliseconds)
    return f"{value / 1e3:.3g} s" if value >= 1e3 else f"{value:.3g} ms"


def one_server() -> str:
    table = [
        "| workers | parameters | each way | memory | network | median | krum | first limit |",
        "|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for n in WORKERS:
        for d in PARAMETERS:
            moved, memory = server_bytes(n, d, 1), server_memory(n, d, 1)
            network, median, krum = moved / NETWORK, column_seconds("median", n) * d, column_seconds("krum", n) * d
            limit = "memory" if memory > 1e12 else "krum, then the network" if krum > network else "the network"
            table.append(
                f"| {n:,} | {d:.0e} | {size(moved)} | {size(memory)} | {time(network)} | {time(median)} | {time(krum)} "
                f"| {limit} |"
            )
    return "\n".join(table).replace("e+0", "e")


def many_servers() -> str:
    table = [
        "| workers | parameters | servers | each way | memory | network | median | krum | tables of distances |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n, d, servers in ((100, 1e8, 10), (100, 1e9, 10), (100, 1e9, 100), (1000, 1e8, 100), (1000, 1e9, 100),
                          (1000, 1e9, 1000)):  # fmt: skip
        moved, memory = server_bytes(n, d, servers), server_memory(n, d, servers)
        times = [moved / NETWORK, *(column_seconds(rule, n) * d / servers for rule in GROWTH)]
        cells = " | ".join(time(value) for value in times)
        table.append(
            f"| {n:,} | {d:.0e} | {servers:,} | {size(moved)} | {size(memory)} | {cells} | {size(table_bytes(n))} |"
        )
    return "\n".join(table).replace("e+0", "e")


def ranks() -> str:
    table = [
        "| ranks | parameters | each way | memory | network | median | krum | tables of distances |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for n in WORKERS:
        for d in PARAMETERS:
            moved = rank_bytes(n, d)
            times = [moved / NETWORK, *(column_seconds(rule, n) * d / n for rule in GROWTH)]
            cells = " | ".join(time(value) for value in times)
            table.append(
                f"| {n:,} | {d:.0e} | {size(moved)} | {size(rank_memory(d))} | {cells} | {size(table_bytes(n))} |"
            )
    return "\n".join(table).replace("e+0", "e")


def units() -> str:
    """Return the measured units, and where Krum takes longer than the network."""
    small, large = 79_510, 1_310_922
    n = int(needed(small)["n"])
    bare = float(needed(large)["other_ms"]) / 1e3
    own = (float(needed(small)["ours_ms"]) - float(needed(small)["other_ms"])) / 1e3 / n
    crossing = {
        speed: next(n for n in range(7, 10**5) if column_seconds("krum", n) > n * B / (speed * 1e9 / 8))
        for speed in (10, 100)
    }
    table = ["| | measured |", "|---|---:|"]
    loopback = f"{2 * n * B * large / bare / 1e9:.1f} GB/s"
    table.append(f"| bytes over loopback, both ways together, {n} workers, and the rule applied | {loopback} |")
    table.append(f"| the server's own time per worker and round besides bytes and rule | {1e3 * own:.2f} ms |")
    for rule in GROWTH:
        values = ", ".join(f"{1e9 * column_seconds(rule, n):,.0f}" for n in (*WORKERS[:-1], 255, WORKERS[-1]))
        table.append(
            f"| {rule}, ns per column with {', '.join(map(str, WORKERS[:-1]))}, 255 and (by growth) "
            f"{WORKERS[-1]:,} workers | {values} |"
        )
    for speed, workers in crossing.items():
        table.append(f"| Krum takes longer than {speed} Gbit/s bring its rows from so many workers on | {workers:,} |")
    return "\n".join(table)


def size(value: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def time(seconds: float) -> str:
    for unit, factor in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= (2 * factor if factor > 1 else factor):
            return f"{seconds / factor:.2g} {unit}"
    return f"{1e6 * seconds:.2g} us"


def parts() -> dict[str, str]:
    """Return the tables of the page by the name of their marker."""
    return {
        "measured": measured(),
        "units": units(),
        "one server": one_server(),
        "many servers": many_servers(),
        "ranks": ranks(),
    }


if __name__ == "__main__":
    markers.replace(DOCS / "scaling.md", parts())
