"""Rows on many machines: a rule on parts of the columns gives what it gives on whole rows."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from strategies import RULE_SPECS, normal
from torch import Tensor

from gyroscope._core.errors import ConfigError, InfeasibleError
from gyroscope._linalg.distances import squared_distances
from gyroscope.rules import RULES, Aggregate, Bulyan, Krum, Median, Rule, parse

N, F, CUTS = 11, 2, [0, 1, 40, 41, 300]


def in_parts(rule: Rule, rows: Tensor) -> Tensor:
    """Apply the rule to each part of the columns, with the sum of the parts' distance tables."""
    parts = [rows[:, begin:end].contiguous() for begin, end in itertools.pairwise(CUTS)]
    table = None
    if rule.reads == "distances":
        table = torch.stack([squared_distances(part) for part in parts]).sum(dim=0)
    return torch.cat([rule.on_columns(part, F, table).vector for part in parts])


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("spec", [spec for spec in RULE_SPECS if parse(spec).reads != "rows"])
def test_parts_of_the_columns_give_the_whole(spec: str, bad: float) -> None:
    rule, rows = parse(spec), normal(N, CUTS[-1], seed=5, dtype=torch.float32)
    if rule.resilient:
        rows[3, 0] = bad  # in one part only: the others know it through the table
        rows[7, 299] = -bad
    whole = rule(rows, F).vector
    assert whole.isfinite().all()
    torch.testing.assert_close(in_parts(rule, rows), whole, rtol=1e-6, atol=1e-6)


def test_few_rules_of_ours_need_whole_rows() -> None:
    """The table of distances between rows has no norms, distances from the median or directions; and a rule that
    depends on its context gets whole rows."""
    whole = {name for name, kind in RULES.items() if kind.reads == "rows" and not kind.uses}
    assert whole == {"geometric-median", "cge", "aksel"}


@dataclasses.dataclass(frozen=True)
class Plain(Rule):
    def min_workers(self, f: int) -> int:
        return f + 1

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(rows[0].clone(), None)


class Changed(Median):
    """Overrides the algorithm, and does not set `reads`."""

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(rows[rows.norm(dim=1).argmin()].clone(), None)


class Mixin:
    aggregate = Changed.aggregate


class Mixed(Mixin, Krum):
    pass


class Renamed(Bulyan):
    pass


class Declared(Krum):
    reads = "columns"

    def aggregate(self, rows: Tensor, f: int) -> Aggregate:
        return Aggregate(rows.amax(dim=0), None)


def test_a_rule_that_overrides_the_algorithm_reads_whole_rows_unless_it_says_otherwise() -> None:
    kinds = (Plain, Changed, Mixed, Renamed, Declared)
    assert [kind.reads for kind in kinds] == ["rows", "rows", "rows", "distances", "columns"]


class Forgetful(Krum):
    reads = "distances"
    combine = Rule.combine


def test_a_rule_that_cannot_work_on_columns_says_so() -> None:
    rows, table = normal(N, 4, seed=1), torch.zeros(N, N)
    with pytest.raises(ConfigError, match="Plain cannot work on some of the columns: it needs whole rows"):
        Plain().on_columns(rows, F, table)
    with pytest.raises(ConfigError, match=r"Krum cannot .* it needs the table of distances"):
        Krum().on_columns(rows, F)
    with pytest.raises(ConfigError, match="must implement combine"):
        Forgetful().on_columns(rows, F, table)
    with pytest.raises(InfeasibleError):
        Krum().on_columns(rows[:4], F, table)
