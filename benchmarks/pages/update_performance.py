"""Rewrite docs/performance.md after `gyroscope bench`, and copy its figure and its CSV files.

    python -m benchmarks.pages.update_performance bench

After `gyroscope bench distributed` the script replaces only that part.
"""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

from benchmarks.pages import DOCS, markers


def main(folder: Path) -> None:
    with (folder / "bench.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    here = machine(json.loads((folder / "machine.json").read_text(encoding="utf-8")))
    profiled = folder / "profile.txt"
    profiles = profiled.read_text(encoding="utf-8").split("\n\n") if profiled.is_file() else []
    served = [text for text in profiles if text.startswith("parameter server")]
    others = [text for text in profiles if text not in served]
    target = DOCS / "performance"
    target.mkdir(exist_ok=True)
    of_processes = [line for line in lines if line["part"] == "distributed"]
    if of_processes:
        parts = {"distributed": distributed(of_processes), "distributed machine": here, "server": block(served)}
        markers.replace(DOCS / "performance.md", parts)
        with (target / "distributed.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(of_processes[0]))
            writer.writeheader()
            writer.writerows(of_processes)
    of_ddp = [line for line in lines if line["part"] == "ddp"]
    if of_ddp:
        markers.replace(DOCS / "performance.md", {"ddp": promises(of_ddp, all_lines=True), "ddp machine": here})
    lines = [line for line in lines if line not in of_processes and line not in of_ddp]
    if lines:
        beside = [line for line in lines if line["part"] in ("floors", "attacks")]
        parts = {
            "promises": promises([line for line in lines if line not in beside]),
            "machine": here,
            "profile": block(others),
            "rules": rules(lines),
            "floors": floors([line for line in beside if line["part"] == "floors"]),
            "attacks": floors([line for line in beside if line["part"] == "attacks"]),
        }
        markers.replace(DOCS / "performance.md", parts)
        markers.replace(DOCS / "how-to" / "which-defence.md", {"costs": costs(lines)})
        for name in ("bench.csv", "bench.png", "bench.svg"):
            shutil.copy(folder / name, target / name)


def costs(lines: list[dict[str, str]]) -> str:
    """Return the times of the rules that people choose from, as multiples of the average's."""
    sizes = list(dict.fromkeys((line["n"], line["d"]) for line in lines if line["part"] == "floors"))
    times = {
        (line["what"].partition(" / ")[0], line["n"]): float(line["ours_ms"])
        for line in lines
        if line["part"] in ("rules", "floors")
    }
    table = ["| rule | " + " | ".join(f"{n} workers, {int(d):,} parameters" for n, d in sizes) + " |"]
    table.append("|---|" + "---:|" * len(sizes))
    for rule in _CHOICES:
        cells = (f"{times[rule, n] / times['average', n]:.2g}" for n, _ in sizes)
        table.append(f"| `{rule}` | {' | '.join(cells)} |")
    runs = {line["what"]: line["value"] for line in lines if line["part"] == "training"}
    best = number(runs["MNIST run, --defence best / average"])
    return "\n".join(
        [f"An MNIST run with `--defence best` takes {best} times as long as one with `average`.", "", *table]
    )


_CHOICES = ("average", "median", "meamed", "fltrust", "nnm+trimmed-mean", "caf", "caf-history", "dnc:robust=true")


def block(texts: list[str]) -> str:
    return "```\n" + "\n\n".join(text.strip("\n") for text in texts) + "\n```"


def distributed(lines: list[dict[str, str]]) -> str:
    """Return each ratio at both sizes."""
    sizes = list(dict.fromkeys(line["d"] for line in lines))
    head = " | ".join(f"d = {int(d):,} | middle half | in ms" for d in sizes)
    table = [f"| | what | {head} | at most |", "|---|---|" + "---:|---:|---:|" * len(sizes) + "---:|"]
    for name in dict.fromkeys(line["what"] for line in lines):
        found = [line for line in lines if line["what"] == name]
        cells = [
            f"{number(line['value'])} | {number(line['low'])} to {number(line['high'])} | "
            f"{number(line['ours_ms'])} / {number(line['other_ms'])}"
            for line in found
        ]
        limit = found[0]["limit"]
        mark = "" if not limit else "✓" if all(line["holds"] == "True" for line in found) else "✗"
        table.append(f"| {mark} | {name} | {' | '.join(cells)} | {number(limit) if limit else ''} |")
    return "\n".join(table)


def promises(lines: list[dict[str, str]], all_lines: bool = False) -> str:
    """Return the promised limits beside the measurements; all_lines: also those without a limit."""
    table = ["| | what | measured | middle half of the passes | at most |", "|---|---|---:|---:|---:|"]
    for line in lines:
        if not line["limit"] and not all_lines:
            continue
        mark = "" if not line["limit"] else "✓" if line["holds"] == "True" else "✗"
        unit = "" if line["unit"] == "x" else f" {line['unit']}"
        half = f"{number(line['low'])} to {number(line['high'])}" if line["low"] else ""
        limit = f"{number(line['limit'])}{unit}" if line["limit"] else ""
        table.append(f"| {mark} | {what(line)} | {number(line['value'])}{unit} | {half} | {limit} |")
    return "\n".join(table)


def rules(lines: list[dict[str, str]]) -> str:
    """Return the milliseconds of everything, at both sizes, and as a multiple of the mean."""
    sizes = list(dict.fromkeys((line["n"], line["d"]) for line in lines if line["part"] == "rules"))
    times: dict[str, dict[tuple[str, str], float]] = {}
    for line in lines:
        if line["part"] == "rules":
            name, _, other = line["what"].partition(" / ")
            times.setdefault(name, {})[line["n"], line["d"]] = float(line["ours_ms"])
            times.setdefault(other, {})[line["n"], line["d"]] = float(line["other_ms"])
    head = " | ".join(f"({n}, {int(d):,}) | of the mean" for n, d in sizes)
    table = [f"| | {head} |", "|---|" + "---:|---:|" * len(sizes)]
    for name in sorted(times, key=lambda name: times[name].get(sizes[-1], 0)):
        cells = [
            f"{times[name][size]:,.2f} ms | {times[name][size] / times['torch.mean(dim=0)'][size]:.3g}x"
            if size in times[name]
            else "- | -"  # too slow there to be measured: see MOST_WORKERS
            for size in sizes
        ]
        table.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(table)


def floors(lines: list[dict[str, str]]) -> str:
    """Return what each takes beside the least that it needs, at both sizes."""
    sizes = list(dict.fromkeys((line["n"], line["d"]) for line in lines))
    head = " | ".join(f"({n}, {int(d):,}) | times the least" for n, d in sizes)
    table = [f"| | beside | {head} | at most |", "|---|---|" + "---:|---:|" * len(sizes) + "---:|"]
    found: dict[str, dict[tuple[str, str], dict[str, str]]] = {}
    for line in lines:
        found.setdefault(line["what"], {})[line["n"], line["d"]] = line
    for what, there in found.items():
        name, _, other = what.partition(" / ")
        limit = next(iter(there.values()))["limit"]
        cells = []
        for size in sizes:
            if size not in there:
                cells.append("- | -")
                continue
            bold = "**" if there[size]["holds"] == "False" else ""
            cells.append(f"{float(there[size]['ours_ms']):,.2f} ms | {bold}{number(there[size]['value'])}{bold}")
        table.append(f"| `{name}` | {other} | {' | '.join(cells)} | {number(limit) if limit else ''} |")
    return "\n".join(table)


def machine(facts: dict[str, object]) -> str:
    """Return the machine of the measurement in words."""
    known = ("processor", "cores", "threads", "platform", "python", "torch", "numpy", "byzfl", "torchjd", "commit")
    return (
        "; ".join(f"{name} {facts.get(name)}" for name in known)
        + f". Kernels were loaded from disk in {facts['kernels_ready_seconds']} s."
    )


def what(line: dict[str, str]) -> str:
    size = f" at ({line['n']}, {int(line['d']):,})" if line["n"] and line["d"] else ""
    return line["what"].replace("|", "\\|") + size


def number(text: str) -> str:
    return f"{float(text):,.3g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
