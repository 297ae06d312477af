"""A strict reader of Prometheus' text format: what it accepts, Prometheus accepts, and conventions hold."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SAMPLE = re.compile(r"(\w+)(?:\{(.+)\})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
_VALUE = re.compile(r"NaN|[+-]Inf|[+-]?(\d+(\.\d+)?|\.\d+)(e[+-]?\d+)?")
_SUFFIXES = ("_bucket", "_sum", "_count")

Labels = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    kind: str
    help: str
    samples: dict[tuple[str, Labels], float]

    def value(self, name: str, /, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]


def parse(text: str) -> dict[str, Metric]:
    """Return the metrics by name; AssertionError where a line is not as it should be."""
    assert text.endswith("\n") and "\r" not in text
    metrics: dict[str, Metric] = {}
    lines = text.removesuffix("\n").split("\n")
    name = ""
    for line, before in zip(lines, ["", *lines], strict=False):
        if line.startswith("# HELP "):
            _, _, name, help = line.split(" ", 3)
            assert _NAME.fullmatch(name) and name not in metrics and help.endswith("."), line
            metrics[name] = Metric("", help, {})
        elif line.startswith("# TYPE "):
            _, _, typed, kind = line.split(" ")
            assert typed == name and before.startswith(f"# HELP {name} "), line
            assert kind in ("counter", "gauge", "histogram") and name.endswith("_total") == (kind == "counter"), line
            metrics[name] = metrics[name]._replace(kind=kind)
        else:
            _sample(line, name, metrics[name])
    for name, metric in metrics.items():
        assert metric.samples, name
        if metric.kind == "histogram":
            _check_histogram(name, metric)
    return metrics


def _sample(line: str, name: str, metric: Metric) -> None:
    found = _SAMPLE.fullmatch(line)
    assert found, line
    whole, inner, value = found.groups()
    allowed = [name + suffix for suffix in _SUFFIXES] if metric.kind == "histogram" else [name]
    assert whole in allowed and _VALUE.fullmatch(value), line
    labels = _LABEL.findall(inner or "")
    assert "".join(f'{key}="{text}",' for key, text in labels) == (f"{inner}," if inner else ""), line
    escapes = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
    plain = {key: re.sub(r'\\["\\n]', lambda each: escapes[each[0]], text) for key, text in labels}
    series = whole, tuple(sorted(plain.items()))
    assert len(plain) == len(labels) and series not in metric.samples, line
    metric.samples[series] = float(value)
    assert metric.kind != "counter" or float(value) >= 0, line


def _check_histogram(name: str, metric: Metric) -> None:
    buckets = [(float(dict(labels)["le"]), value) for (whole, labels), value in metric.samples.items() if labels]
    assert buckets == sorted(buckets) and buckets[-1][0] == math.inf, name
    counts = [count for _, count in buckets]
    assert counts == sorted(counts) and counts[-1] == metric.value(f"{name}_count"), name
    assert metric.value(f"{name}_sum") >= 0
