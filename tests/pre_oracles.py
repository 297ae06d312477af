"""Slow, obvious answers for pre-aggregations, composed rules and mixtures, in plain Python: see `oracles`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from oracles import DOUBT, RULE_ORACLES, Row, Rows, distance, squared_distance

from gyroscope.rules import ARC, NNM, Bucketing, Clip, Preaggregation, Rule, RuleContext


def nnm(rows: Rows, f: int) -> tuple[list[list[float]], list[list[int]]]:
    """ "The average of its n-f nearest neighbours", itself included, and which ones these are.

    Who is infinitely far is nobody's neighbour; who has no neighbour stays what it is.
    """
    n = len(rows)
    mixed, neighbours = [], []
    for i in range(n):
        order = sorted(range(n), key=lambda j: (j != i, squared_distance(rows[i], rows[j]), j))
        near = [j for j in order[: n - f] if j == i or math.isfinite(squared_distance(rows[i], rows[j]))]
        neighbours.append(sorted(near))
        mixed.append(
            [sum(value / len(near) for value in column) for column in zip(*(rows[j] for j in near), strict=True)]
        )
    return mixed, neighbours


def nnm_in_doubt(rows: Rows, f: int, strict: bool) -> bool:
    """Return whether rounding (or, if strict, a row number) decides which row is the last of another's n-f nearest."""
    n = len(rows)
    for i in range(n):
        lengths = sorted(squared_distance(rows[i], rows[j]) for j in range(n) if j != i)
        last, first_left_out = [0.0, *lengths, math.inf][n - f - 1 : n - f + 1]
        if f > 0 and first_left_out - last <= DOUBT * first_left_out < math.inf:
            whole = last == first_left_out == round(last) < 1000
            if strict or not whole:
                return True
    return False


def bucketing(rows: Rows, s: int, order: Sequence[int]) -> list[list[float]]:
    """ "Average s of the permuted inputs each"; NaN and infinities follow from arithmetic."""
    shuffled = [rows[place] for place in order]
    buckets = [shuffled[start : start + s] for start in range(0, len(rows), s)]
    return [[sum(column) / len(column) for column in zip(*bucket, strict=True)] for bucket in buckets]


def length(row: Row) -> float:
    """Return the row's length, infinite if the row is not finite."""
    return distance(row, [0.0] * len(row))


def clip(rows: Rows, norm: float) -> list[list[float]]:
    """ "x min(1, C / ||x||)"; a row of infinite length becomes zero."""
    return [_shortened(row, norm) for row in rows]


def arc(rows: Rows, f: int) -> list[list[float]]:
    """ "Clip the k = floor(2 f/n (n-f)) largest to the norm of the (k+1)-th"."""
    n = len(rows)
    k = math.floor(2 * f * (n - f) / n)
    limit = sorted(map(length, rows), reverse=True)[k]
    return [_shortened(row, limit) for row in rows]


def _shortened(row: Row, limit: float) -> list[float]:
    size = length(row)
    if math.isinf(size) or not math.isfinite(size * size):  # or its square overflows
        return [0.0] * len(row)
    return list(row) if size <= limit else [value * (limit / size) for value in row]


def _stage(stage: Preaggregation, rows: Rows, f: int, context: RuleContext, strict: bool) -> list[list[float]] | None:
    if isinstance(stage, NNM):
        return None if nnm_in_doubt(rows, f, strict) else nnm(rows, f)[0]
    if isinstance(stage, Bucketing):
        return bucketing(rows, stage.s, torch.randperm(len(rows), generator=context.generator("buckets")).tolist())
    if isinstance(stage, Clip):
        return clip(rows, stage.norm)
    assert isinstance(stage, ARC)
    return arc(rows, f)


def _single(rows: Rows, doubt: float) -> bool:
    """Return whether the rows are float32, judging by the doubt about a row of usual size."""
    sizes = sorted(max(map(abs, row)) for row in rows if all(map(math.isfinite, row)) and any(row))
    return bool(sizes) and doubt > 1e-9 * sizes[(len(sizes) - 1) // 2]


def parameters_of(rule: Rule) -> dict[str, Any]:
    """Return the rule's parameters without f, which every oracle takes from the call."""
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule) if field.name != "f"}


def composed(
    rows: Rows,
    f: int,
    doubt: float,
    strict: bool = False,
    *,
    stages: Sequence[Preaggregation],
    rule: Rule,
    context: RuleContext | None = None,
) -> list[list[float]] | None:
    """Apply the rule's oracle to what the stages' oracles return, each rounded as the rows are."""
    context, single = context or RuleContext(), _single(rows, doubt)
    for place, stage in enumerate(stages):
        left = _stage(stage, rows, f, context.within(f"{place}:{stage.name}"), strict)
        if left is None:
            return None
        with np.errstate(over="ignore"):
            rows = np.array(left, dtype=np.float32 if single else np.float64).astype(np.float64).tolist()
    known = {"context": context.within(f"{len(stages)}:{rule.name}")} if rule.uses else {}
    return RULE_ORACLES[rule.name](rows, f, doubt=doubt, strict=strict, **parameters_of(rule), **known)


def mixture(
    rows: Rows,
    f: int,
    doubt: float,
    strict: bool = False,
    *,
    rules: Sequence[Rule],
    order: str,
    context: RuleContext | None = None,
) -> list[list[float]] | None:
    """Apply the oracle of the rule whose turn it is. (The suite's step is 3.)"""
    context = context or RuleContext(step=3)
    turn = context.step % len(rules)
    if order == "random":
        turn = int(torch.randint(len(rules), (), generator=context.generator("turn")))
    rule = rules[turn]
    known = {"context": context.within(f"{turn}:{rule.name}")} if rule.uses else {}
    return RULE_ORACLES[rule.name](rows, f, doubt=doubt, strict=strict, **parameters_of(rule), **known)
