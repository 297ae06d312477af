"""What Hypothesis draws for rules and attacks: rows of many shapes and scales, some of them bad, and every variant."""

from __future__ import annotations

import dataclasses
import math

import torch
from context_oracles import CONTEXT_ORACLES
from hypothesis import assume
from hypothesis import strategies as st
from oracles import RULE_ORACLES, RULE_PRECISION
from pre_oracles import composed, mixture, parameters_of
from torch import Tensor

from gyroscope.attacks import ATTACKS
from gyroscope.rules import RULES, Aggregate, Rule, RuleContext
from gyroscope.rules import parse as parse_rule
from gyroscope.rules.base import Property

# Parameters that deserve the whole suite. A rule or an attack that is not here is tested with its defaults.
_RULE_VARIANTS = {
    "krum": ["krum:m=1", "krum:squared=true", "krum:neighbours=n-f-1", "krum:m=n-f,squared=true,neighbours=n-f-1"],
    "median": ["median:even=mean"],
    "bulyan": [
        "bulyan:m=1",
        "bulyan:rescore=true",
        "bulyan:rescore=true,m=1",
        "bulyan:slack=0",
        "bulyan:slack=0,rescore=true,neighbours=n-f-1,squared=true",
    ],
    "meamed": ["meamed:even=mean"],
    "aksel": ["aksel:keep=n-f"],
    "geometric-median": ["geometric-median:tolerance=1e-9"],
}
_RULE_VARIANTS |= {
    "centered-clipping": ["centered-clipping:tau=2.0,iterations=3", "centered-clipping:start=zero"],
    "safeguard": ["safeguard:short=1,factor=2.0"],
    "zeno": ["zeno:rho=0.5"],
    "dnc": ["dnc:coordinates=2,iterations=3", "dnc:c=1.5", "dnc:robust=true", "dnc:coordinates=2,robust=true"],
    "flame": ["flame:linkage=ball"],
    "signguard": ["signguard:fraction=1", "signguard:lower=0.5,upper=1.5,fraction=0.5"],
}
_ATTACK_VARIANTS = {
    "little": [
        "little:factor=0.3",
        "little:factor=-2",
        "little:factor=auto",
        "little:factor=z",
        "little:sign=1",
        "little:sign=auto",
    ],
    "empire": ["empire:factor=0.5", "empire:factor=auto", "empire:sign=1"],
    "empire-strict": ["empire-strict:epsilon=0.2", "empire-strict:epsilon=auto"],
    "min-max": ["min-max:direction=sign", "min-max:direction=mean"],
    "min-sum": ["min-sum:direction=sign", "min-sum:direction=mean"],
    "fang-krum": ["fang-krum:search=largest"],
    "fang-trimmed-mean": ["fang-trimmed-mean:b=5"],
    "hidden": ["hidden:gamma=auto", "hidden:gamma=3,coordinate=0,sign=-1", "hidden:coordinate=all"],
    "mimic": ["mimic:worker=0", "mimic:warmup=2"],
    "byzmean": ["byzmean:attack=(empire:factor=2)", "byzmean:attack=gaussian"],
    "decoy": ["decoy:attack=gaussian,distance=100"],
    "persistent": ["persistent:c=0.6,window=1", "persistent:window=2"],
    "coupled": ["coupled:location=0.3,angle=135", "coupled:angle=180,z=0.5", "coupled:z=auto"],
    "sign-flip": ["sign-flip:scale=3"],
    "gaussian": ["gaussian:std=100"],
    "stale": ["stale:delay=2", "stale:delay=1,source=own"],
    "drop": ["drop:chance=0.5"],
    "stranger": ["stranger:attacks=(zero/little:factor=2,sign=1/mimic:warmup=1)"],
    "alternate": ["alternate:attack=(stale:delay=1),period=1"],
    "rare": ["rare:attack=(empire:factor=2),chance=0.5"],
    "equivocate": ["equivocate:attack=min-max"],
}
# Rules made of others: one for each way in which a stage or a mixture may go wrong.
_COMPOSED = [
    "nnm+median",
    "bucketing:s=3+median",
    "bucketing+krum",
    "nnm+bucketing+median",
    "clip:norm=1e+30+median",
    "random:krum/median",
    "round-robin:krum:m=1/nnm+median",
]
RULE_SPECS = [*(spec for name in RULES for spec in [name, *_RULE_VARIANTS.get(name, [])]), *_COMPOSED]
RULE_ORACLES.update(CONTEXT_ORACLES)
RULE_ORACLES.update({parse_rule(spec).name: mixture if "/" in spec else composed for spec in _COMPOSED})
RESILIENT_SPECS = [spec for spec in RULE_SPECS if parse_rule(spec).resilient]
ATTACK_SPECS = [spec for name in ATTACKS for spec in [name, *_ATTACK_VARIANTS.get(name, [])]]

SCALES = [1e-20, 1e-6, 1.0, 1e6, 1e15]
DTYPES = [torch.float32, torch.float64]
BAD = ["nan", "+inf", "-inf", "huge", "-huge", "mixed", "one nan", "one inf", "one huge", "copy"]
COLLUSION = ["near", "edge", "far", "opposite", "copy", "huge", "nan", "one huge", "mixed"]
NON_FINITE = ["nan", "+inf", "-inf", "one nan", "one inf", "mixed"]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Rows for a rule, f, and which of the rows are bad (at most f of them)."""

    rows: Tensor
    f: int
    bad: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        return self.rows.shape[0]

    @property
    def honest(self) -> Tensor:
        return self.rows[[i for i in range(self.n) if i not in self.bad]]

    @property
    def magnitude(self) -> float:
        """The largest absolute value of an honest row."""
        return float(self.honest.abs().max())

    def context(self, rule: Rule) -> RuleContext:
        """Return what such a rule may know besides the rows; the trusted gradient is the mean of the honest rows."""
        return RuleContext(step=3, seed=7, trusted=self.honest.mean(dim=0) if "trusted" in rule.uses else None)

    def apply(self, rule: Rule) -> Aggregate:
        return rule(self.rows, self.f, self.context(rule))

    def tolerance(self, rule: Rule) -> float:
        """How far a result may be off by rounding, and by an iteration that ends before convergence."""
        # A rule may move by a distance that is a parameter, independent of the rows' magnitude.
        radius = vars(rule).get("tau", 0.0)
        step = 64 * torch.finfo(self.rows.dtype).eps * (radius if isinstance(radius, float) else 0.0)
        return max(self.rounding, RULE_PRECISION.get(rule.name, 0.0) * self.magnitude, step)

    @property
    def rounding(self) -> float:
        """How far a result may be off by the rounding of sums and means in the rows' dtype."""
        return 64 * torch.finfo(self.rows.dtype).eps * self.magnitude


def with_property(wanted: Property) -> list[str]:
    """Return the specs of the rules that do not list it as unsupported."""
    return [spec for spec in RULE_SPECS if wanted not in parse_rule(spec).unsupported]


def normal(n: int, d: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Draw standard normal rows."""
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def acceptable(rule: Rule, problem: Problem, strict: bool = False) -> list[list[float]] | None:
    """Return the oracle's results per coordinate; None if rounding (or, if strict, the order of the rows) decides."""
    known = {"context": problem.context(rule)} if rule.uses else {}
    return RULE_ORACLES[rule.name](
        problem.rows.tolist(), problem.f, doubt=4 * problem.rounding, strict=strict, **parameters_of(rule), **known
    )


def assume_clear(rule: Rule, problem: Problem) -> None:
    """Discard a draw with ties: on a line, for example, sums of distances are often equal."""
    assume(acceptable(rule, problem, strict=True) is not None)


def assert_answers(vector: Tensor, answers: list[list[float]] | None, rounding: float) -> None:
    assert answers is not None
    assert len(vector) == len(answers)
    for place, (got, right) in enumerate(zip(vector.tolist(), answers, strict=True)):
        assert any(abs(got - value) <= rounding for value in right), (place, got, right)


seeds = st.integers(0, 2**32 - 1)
dimensions = st.sampled_from([1, 2, 3, 7, 33])
kinds = st.sampled_from(["normal", "normal", "ties", "offset"])


@st.composite
def matrices(draw: st.DrawFn, n: int, kind: str | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Draw (n, d): normal at some scale, few distinct values, or near-identical rows around 10,000."""
    kind = draw(kinds) if kind is None else kind
    dtype = draw(st.sampled_from(DTYPES)) if dtype is None else dtype
    rows = normal(n, draw(dimensions), draw(seeds))
    if kind == "ties":
        rows = rows.round().clamp(-1, 1)
    elif kind == "offset":
        rows = 1e4 + 0.01 * rows
    else:
        rows = (rows + draw(st.sampled_from([0.0, 0.5, 3.0]))) * draw(st.sampled_from(SCALES))
    return rows.to(dtype)


@st.composite
def problems(
    draw: st.DrawFn,
    rule: Rule,
    kind: str | None = None,
    dtype: torch.dtype | None = None,
    bad: list[str] | None = None,
    max_f: int = 3,
) -> Problem:
    """Draw rows at the rule's bound or a few above it; with `bad`, up to f of them hold something of those kinds."""
    f = draw(st.integers(0, max_f))
    n = rule.min_workers(f) + draw(st.integers(0, 4))
    rows = draw(matrices(n, kind, dtype))
    if bad is None:
        return Problem(rows, f)
    suspects = [i for i in range(n) if i not in rule.trusts(n)]
    places = draw(st.permutations(suspects))[: draw(st.integers(0, f))]
    honest = [i for i in range(n) if i not in places]
    for place in places:
        model = rows[draw(st.sampled_from(honest))].clone()
        rows[place] = _bad_row(draw(st.sampled_from(bad)), model, draw(seeds))
    return Problem(rows, f, tuple(sorted(places)))


@st.composite
def collusions(draw: st.DrawFn, rule: Rule, max_f: int = 3) -> Problem:
    """Draw as `problems`, but with f bad rows that are equal or nearly so; honest rows may all be the same."""
    f = draw(st.integers(1, max_f))
    n = rule.min_workers(f) + draw(st.integers(0, 4))
    rows = draw(matrices(n))
    if draw(st.integers(0, 4)) == 0:
        rows = rows[:1].repeat(n, 1)
    suspects = [i for i in range(n) if i not in rule.trusts(n)]
    places = sorted(draw(st.permutations(suspects))[:f])
    honest = rows[[i for i in range(n) if i not in places]]
    kind, seed = draw(st.sampled_from(COLLUSION)), draw(seeds)
    center, deviation = honest.double().mean(dim=0), honest.double().std(dim=0)
    direction = normal(1, rows.shape[1], seed)[0]
    scale = float(honest.abs().max()) + 1e-30
    agreed = {
        "near": center + 1e-3 * scale * direction,
        "edge": center - draw(st.sampled_from([-1.5, 0.3, 1.5, 4.0])) * deviation,
        "far": center + 1e4 * scale * direction,
        "opposite": -draw(st.sampled_from([0.1, 1.0, 10.0])) * center,
    }
    shared = agreed[kind].to(rows.dtype) if kind in agreed else _bad_row(kind, honest[0].clone(), seed)
    spread = draw(st.sampled_from([0.0, 0.0, 1e-6, 1e-3]))
    for number, place in enumerate(places):
        rows[place] = shared * (1 + number * spread)
    return Problem(rows, f, tuple(places))


def _bad_row(kind: str, model: Tensor, seed: int) -> Tensor:
    """Make a bad row from an honest one."""
    huge = 3e38 if model.dtype == torch.float32 else 1.7e308
    generator = torch.Generator().manual_seed(seed)
    fills = {"nan": math.nan, "+inf": math.inf, "-inf": -math.inf, "huge": huge, "-huge": -huge}
    place = int(torch.randint(len(model), (1,), generator=generator))
    if kind in fills:
        model.fill_(fills[kind])
    elif kind == "mixed":  # any of them next to honest values, and a NaN for certain
        pick = torch.randint(6, model.shape, generator=generator)
        for number, value in enumerate(fills.values()):
            model[pick == number] = value
        model[place] = math.nan
    elif kind != "copy":
        model[place] = {"one nan": math.nan, "one inf": math.inf, "one huge": huge}[kind]
    return model


def strided(rows: Tensor) -> list[tuple[str, Tensor]]:
    """Return the same rows in other memory layouts."""
    n, d = rows.shape
    wide = torch.full((n, 2 * d), math.nan, dtype=rows.dtype)
    wide[:, ::2] = rows
    tall = torch.full((2 * n, d), math.nan, dtype=rows.dtype)
    tall[1::2] = rows
    return [("transposed", rows.t().contiguous().t()), ("every other column", wide[:, ::2]), ("row gaps", tall[1::2])]
