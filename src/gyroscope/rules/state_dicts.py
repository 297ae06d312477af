"""Robust aggregation of state dicts: whole models or adapters, from wherever they come."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._core.errors import ConfigError, InfeasibleError, RowsError
from gyroscope._core.foreign_text import quoted
from gyroscope._linalg import flat_parameters, matrix
from gyroscope.rules.average import Average
from gyroscope.rules.base import Aggregate, Rule, RuleContext, refuse_trusted
from gyroscope.rules.median import Median
from gyroscope.rules.trimmed_mean import TrimmedMean

StateDict = Mapping[str, Tensor]
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape and the dtype of each key."""

_NAMED = 3
"""How many of the participants that cannot take part an error describes."""
_NOT_FINITE = "it holds NaN or infinity"
_ROUNDING = 1e-12
"""Sums of weights closer than this are equal."""


@dataclasses.dataclass(frozen=True)
class ParticipantReport:
    """What became of one participant's state dict."""

    name: int | str
    """Its place in the sequence, or its name in the mapping."""
    problem: str
    """Why its state dict could not take part: it does not fit, or holds NaN or infinity. Else empty."""
    distance: float
    """Its distance from the result, relative to the median of all that took part: above 1 is farther than most.

    Infinite if it could not take part.
    """
    share: float | None
    """Its share in the result, 0 if the rule chose others; None where the rule has no such thing (a median takes each
    value from somebody else)."""
    weight: float | None
    """Its weight, normalised and capped; None without weights."""


@dataclasses.dataclass(frozen=True)
class AggregationReport:
    """What became of all participants, in their order."""

    rule: str
    f: int
    participants: tuple[ParticipantReport, ...]

    @property
    def left_out(self) -> list[int | str]:
        """The participants that could not take part, each with its `problem`.

        Who took part and got nothing has a `share` of 0: with Krum honest participants, too.
        """
        return [one.name for one in self.participants if one.problem]


@dataclasses.dataclass(frozen=True)
class AggregatedState:
    """What `aggregate` returns."""

    state_dict: dict[str, Tensor]
    report: AggregationReport


def aggregate(
    state_dicts: Sequence[StateDict] | Mapping[str, StateDict],
    rule: str | Rule = "nnm+median",
    *,
    f: int,
    weights: Sequence[float] | Mapping[str, float] | Tensor | None = None,
    reference: StateDict | None = None,
    seed: int = 0,
) -> AggregatedState:
    """Aggregate n state dicts, up to f of them Byzantine, into one.

    All floating-point tensors of a state dict are one row, and the rule aggregates the n rows. It computes in float32,
    or in float64 if a tensor is float64; the result has each tensor's own dtype. An integer or bool tensor (such as
    `num_batches_tracked`) becomes the lower median of each value.

    A state dict whose keys, shapes or dtypes differ from the reference's (without one: from those that most have) is
    left out: its row is NaN, it counts as one of the f Byzantine ones, and the report says why. So does a state dict
    that holds a NaN or an infinity. When more than f participants are of either kind, an error names them. A
    participant of weight 0 does not count.

    Weights are the server's own judgement, never what a participant claims. They are normalised to the sum 1 and
    capped at 1 / (2f + 1); what is cut off goes to the others, in proportion. So any f participants together weigh at
    most f / (2f + 1), less than half: the weighted median and the weighted trimmed mean (which trims as much weight as
    the f heaviest have, at either end) stay within the range of the honest values. With n = 2f + 1 participants all
    weigh the same. With equal weights the result is the usual rule's. Integer tensors are not weighted.

    Args:
        state_dicts: One per participant, or a mapping from names, which the report then uses.
        rule: A rule or its spec.
        f: How many of the participants may be Byzantine.
        weights: One non-negative weight per participant, for the rules `average`, `median` and `trimmed-mean`.
        reference: Usually the model that the participants started from. The rule then aggregates the differences from
            it, and the result is the reference plus their aggregate: that matters to rules that look at norms or
            directions (clip, cge, flame), and sets the layout.
        seed: Of the rules that draw at random (bucketing, dnc). Take a new one, which the participants cannot foresee,
            in every round.

    Returns:
        The state dict, in new memory on the devices of the first participant that fits, and a report.

    Raises:
        InfeasibleError: The rule cannot tolerate f of n participants.
        RowsError: More than f state dicts do not fit or are not finite, or one that the rule cannot do without.
        ConfigError: The rule takes no weights, the weights are no weights, or the rule needs a trusted gradient.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> honest = [{"weight": torch.tensor([1.0, value])} for value in (1.0, 2.0, 3.0, 4.0)]
        >>> broken = {"weight": torch.tensor([1e9, float("nan")])}
        >>> result = gy.aggregate([*honest, broken], "median", f=1)
        >>> result.state_dict["weight"]
        tensor([1., 3.])
        >>> result.report.left_out
        [4]
    """
    names, given = _participants(state_dicts)
    chosen = rules.parse(rule)
    refuse_trusted(chosen, "a list of state dicts")
    chosen.check_feasible(len(given), f)
    weighting = None if weights is None else _weighting(weights, names, chosen, f)
    problems = _problems(given, reference)
    _check_fit(problems, names, chosen, f, weighting)
    home = next(one for one, problem in zip(given, problems, strict=True) if not problem)
    keys = sorted(key for key in home if home[key].is_floating_point())  # the order of the keys changes no bit
    rows = _rows(given, problems, keys, home)
    finite = matrix.finite_rows(rows).tolist()
    problems = [problem or ("" if sound else _NOT_FINITE) for problem, sound in zip(problems, finite, strict=True)]
    _check_fit(problems, names, chosen, f, weighting)
    fitting = [one for one, problem in zip(given, problems, strict=True) if not problem]
    if reference is not None:
        start = _flat(reference, keys, rows)
        if not matrix.all_finite(start):
            raise RowsError(f"the reference cannot be used: {_NOT_FINITE}")
        rows -= start
    result = _apply(chosen, rows, f, weighting, seed)
    away = matrix.squared_lengths(rows, result.vector).sqrt().tolist()
    vector = result.vector if reference is None else result.vector + start
    pieces = dict(zip(keys, flat_parameters.split_like(vector, [home[key] for key in keys]), strict=True))
    state_dict = {
        key: (pieces[key] if key in pieces else _lower_median([one[key] for one in fitting])).to(
            device=value.device, dtype=value.dtype, copy=True
        )
        for key, value in home.items()
    }
    none = [None] * len(names)
    shares = none if result.weight is None else result.weight.tolist()
    capped = none if weighting is None else weighting.tolist()
    facts = zip(names, problems, _relative(away, problems), shares, capped, strict=True)
    report = AggregationReport(str(chosen), f, tuple(ParticipantReport(*each) for each in facts))
    return AggregatedState(state_dict, report)


def _participants(state_dicts: object) -> tuple[list[int | str], list[Any]]:
    """The participants' names and state dicts."""
    if isinstance(state_dicts, Mapping):
        if any(isinstance(value, Tensor) for value in state_dicts.values()):
            raise RowsError(
                "state_dicts is a single state dict, and aggregation needs one per participant: pass a list of them, "
                "or a mapping from the participants' names to their state dicts"
            )
        names, given = list(state_dicts), list(state_dicts.values())
    elif isinstance(state_dicts, Iterable):
        given = list(state_dicts)
        names = list(range(len(given)))
    else:
        raise RowsError(
            f"state_dicts must be a list of state dicts or a mapping from names to them, got a "
            f"{type(state_dicts).__name__}"
        )
    if not given:
        raise RowsError("there are no state dicts: aggregation needs at least one")
    return names, given


def _problems(given: Sequence[Any], reference: Any) -> list[str]:
    """Why each state dict does not fit; empty for those that do."""
    layouts = [_layout(one) for one in given]
    if reference is not None:
        wanted = _layout(reference)
        if isinstance(wanted, str):
            raise RowsError(f"the reference cannot be used: {wanted}")
        whose = "the reference"
    else:
        # Not the first one's: a single liar could otherwise declare all the others unfit.
        counted = Counter(frozenset(layout.items()) for layout in layouts if not isinstance(layout, str))
        wanted = dict(sorted(counted.most_common(1)[0][0])) if counted else {}
        whose = "the majority"
    return [layout if isinstance(layout, str) else _difference(layout, wanted, whose) for layout in layouts]


def _layout(state_dict: Any) -> Layout | str:
    """The layout of a state dict, or why it can have none."""
    if not isinstance(state_dict, Mapping):
        return f"it is a {type(state_dict).__name__}, not a state dict"
    for key, value in state_dict.items():
        if not isinstance(key, str):
            return f"the key {quoted(key)} is a {type(key).__name__}, not a name"
        if not isinstance(value, Tensor):
            return f"{quoted(key)} is a {type(value).__name__}, not a tensor: leave it out"
        if value.is_complex():
            return f"{quoted(key)} is complex ({value.dtype}): give torch.view_as_real of it"
        if value.layout != torch.strided or value.is_quantized:
            return f"{quoted(key)} is sparse or quantized: give a dense tensor (to_dense, dequantize)"
    return {key: (tuple(value.shape), value.dtype) for key, value in state_dict.items()}


def _difference(layout: Layout, wanted: Layout, whose: str) -> str:
    """The first difference between two layouts; empty if there is none."""
    for key, (shape, dtype) in wanted.items():
        if key not in layout:
            return f"it lacks {quoted(key)}, which {whose} has"
        if layout[key][0] != shape:
            return f"{quoted(key)} has the shape {layout[key][0]}, in {whose} {shape}"
        if layout[key][1] != dtype:
            return f"{quoted(key)} is {layout[key][1]}, in {whose} {dtype}"
    return next((f"it has {quoted(key)}, which {whose} lacks" for key in layout if key not in wanted), "")


def _check_fit(problems: Sequence[str], names: Sequence[int | str], rule: Rule, f: int, weights: Tensor | None) -> None:
    """Whether the rule can do without those that cannot take part."""
    unfit = [place for place, problem in enumerate(problems) if problem and (weights is None or weights[place] > 0)]
    if not unfit:
        return
    shown = [names[place] if isinstance(names[place], int) else quoted(names[place]) for place in unfit[:_NAMED]]
    listed = "; ".join(f"{name}: {problems[place]}" for name, place in zip(shown, unfit, strict=False))
    if len(unfit) > f or len(unfit) == len(problems):
        more = f"; and {len(unfit) - _NAMED} more" if len(unfit) > _NAMED else ""
        raise RowsError(
            f"{len(unfit)} of {len(problems)} state dicts cannot be used, and f = {f} may ({listed}{more}): have all "
            "participants send finite values in the same keys, shapes and dtypes, remove those that do not, or raise f"
        )
    if not rule.resilient or set(rule.trusts(len(problems))) & set(unfit):
        why = "trusts that participant" if rule.resilient else "tolerates nobody"
        raise RowsError(f"a state dict cannot be used ({listed}), and the rule {rule} {why}: remove it or use median")


def _rows(given: Sequence[Any], problems: Sequence[str], keys: Sequence[str], home: StateDict) -> Tensor:
    """(n, d): the floating-point values of each state dict in the order of the keys; NaN for those that do not fit."""
    wide = any(home[key].dtype == torch.float64 for key in keys)
    rows = torch.full(
        (len(given), sum(home[key].numel() for key in keys)),
        torch.nan,
        dtype=torch.float64 if wide else torch.float32,
        device=home[keys[0]].device if keys else None,
    )
    for row, one, problem in zip(rows, given, problems, strict=True):
        if not problem:
            row.copy_(_flat(one, keys, rows))
    return rows


def _flat(state_dict: StateDict, keys: Sequence[str], like: Tensor) -> Tensor:
    """The values of the keys as one vector of the rows' dtype and device."""
    return flat_parameters.flatten([like.new_empty(0), *(state_dict[key].to(like) for key in keys)])


def _apply(rule: Rule, rows: Tensor, f: int, weights: Tensor | None, seed: int) -> Aggregate:
    """The rule's result, weighted if there are weights."""
    if weights is None and rows.shape[1] == 0:  # integers only: there is nothing to ask the rule
        return Aggregate(rows.new_empty(0), None)
    if weights is None:
        return rule(rows, f, RuleContext(seed=seed))
    weights = weights.to(rows.device)
    counted = weights > 0
    if not counted.all():  # 0 * NaN would be NaN
        rows = rows[counted]
    vector = torch.empty(rows.shape[1], dtype=rows.dtype, device=rows.device)
    for columns, block in matrix.blocks(rows):
        vector[columns] = _WEIGHTED[type(rule)](block, weights[counted], f).to(rows.dtype)
    return Aggregate(vector, weights if isinstance(rule, Average) else None)


def _lower_median(tensors: Sequence[Tensor]) -> Tensor:
    """The lower median of each value. By NumPy, which orders bool and every integer type."""
    middle = (len(tensors) - 1) // 2
    stacked = numpy.stack([tensor.detach().cpu().numpy() for tensor in tensors])
    return torch.from_numpy(numpy.asarray(numpy.partition(stacked, middle, axis=0)[middle]))


def _relative(distances: Sequence[float], problems: Sequence[str]) -> list[float]:
    """The distances divided by the lower median of those that took part."""
    known = sorted(distance for distance, problem in zip(distances, problems, strict=True) if not problem)
    scale = known[(len(known) - 1) // 2]
    scaled = 0 < scale < math.inf
    return [
        math.inf if problem else 0.0 if distance == 0 else distance / scale if scaled else math.inf
        for distance, problem in zip(distances, problems, strict=True)
    ]


def _weighting(weights: Any, names: Sequence[int | str], rule: Rule, f: int) -> Tensor:
    """One weight per participant, in their order, normalised and capped."""
    if type(rule) not in _WEIGHTED or rule != type(rule)():
        known = ", ".join(kind.name for kind in _WEIGHTED)
        raise ConfigError(f"the rule {rule} takes no weights: leave them out, or use one that does ({known})")
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            odd = next(iter(set(weights) ^ set(names)))
            raise ConfigError(
                f"the weights must have the participants' names, and {quoted(odd)} is only among the "
                f"{'weights' if odd in weights else 'participants'}: give each participant one weight"
            )
        weights = [weights[name] for name in names]
    try:
        values = [float(weight) for weight in weights]
    except (TypeError, ValueError) as problem:
        raise ConfigError(f"weights must be one number per participant, got {quoted(weights)}") from problem
    if len(values) != len(names):
        raise ConfigError(f"there are {len(names)} participants and {len(values)} weights: give each one weight")
    bad = next((value for value in values if not 0 <= value < math.inf), None)
    if bad is not None:
        raise ConfigError(f"weights must be finite and at least 0, got {bad}")
    return _capped(torch.tensor(values, dtype=torch.float64), f)


def _capped(weights: Tensor, f: int) -> Tensor:
    """The weights, normalised to the sum 1, none above 1 / (2f + 1): what is cut off goes to the others."""
    limit = 1 / (2 * f + 1)
    positive = int(weights.count_nonzero())
    if positive < 2 * f + 1:
        raise InfeasibleError(
            f"weights need at least 2f + 1 = {2 * f + 1} participants of positive weight for f = {f}, got {positive}: "
            "otherwise f of them could weigh half of all; lower f or give more of them a weight"
        )
    weights = weights / weights.max()  # the sum of huge ones would overflow
    weights /= weights.sum()
    fixed = torch.zeros_like(weights, dtype=torch.bool)
    while (over := weights > limit * (1 + _ROUNDING)).any():
        fixed |= over
        rest = weights.masked_fill(fixed, 0.0)
        weights = (rest * ((1 - limit * int(fixed.sum())) / rest.sum())).masked_fill(fixed, limit)
    return weights


def _median(block: Tensor, weights: Tensor, f: int) -> Tensor:
    """The smallest value of each column at which the values up to it weigh half of all."""
    ordered, order = block.sort(dim=0)  # NaN last
    before = (weights[order].cumsum(dim=0) < 0.5 - _ROUNDING).sum(dim=0)
    return ordered.gather(0, before.unsqueeze(0))[0]


def _trimmed_mean(block: Tensor, weights: Tensor, f: int) -> Tensor:
    """The weighted mean without as much weight as the f heaviest have, at either end of each column."""
    trimmed = weights.topk(f).values.sum()
    ordered, order = block.sort(dim=0)
    share = weights[order]
    upper = share.cumsum(dim=0)
    kept = upper.clamp(max=1 - trimmed) - (upper - share).clamp(min=trimmed)
    out = kept <= _ROUNDING  # rounding must not let a NaN in
    return (kept * ordered).masked_fill_(out, 0.0).sum(dim=0) / kept.masked_fill_(out, 0.0).sum(dim=0)


_WEIGHTED: Mapping[type[Rule], Callable[[Tensor, Tensor, int], Tensor]] = {
    Average: lambda block, weights, f: weights @ block,
    Median: _median,
    TrimmedMean: _trimmed_mean,
}
"""The rules with a weighted form, which takes float64 columns of the rows, their weights and f."""
