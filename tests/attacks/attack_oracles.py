"""What each attack sends, written from its paper's sentences in plain Python: slow, obvious, and for every name.

An oracle gets the attack (for its parameters) and all rounds so far, and tells the rows of the last one: or None where
rounding decides. Random numbers are drawn from a generator at the start of the round's stream, as the attack does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any

import torch
from oracles import Row, Rows, krum_scores, mean, squared_distance

DOUBT = 1e-9


@dataclasses.dataclass(frozen=True)
class Round:
    """What the adversary sees in one round. The rule is not Krum, so attacks on Krum aim at the original one."""

    honest: Rows
    f: int
    step: int
    seed: int
    own: Rows
    """What the Byzantine workers would send if they were honest."""
    flipped: Rows
    """Likewise at flipped labels."""
    declared_f: int
    dtype: torch.dtype = torch.float64
    server: int = 0
    parameters: Row = ()

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


Rounds = Sequence[Round]
Oracle = Callable[[Any, Rounds], "list[list[float]] | None"]


def plus(a: Row, factor: float, b: Row) -> list[float]:
    """a + factor * b."""
    return [x + factor * y for x, y in zip(a, b, strict=True)]


def norm(a: Row) -> float:
    return math.hypot(*a)


def signs(a: Row) -> list[float]:
    return [float((x > 0) - (x < 0)) for x in a]


def deviations(rows: Rows) -> list[float]:
    """The coordinate-wise standard deviation, with ddof = 1; zero for a single row."""
    center, h = mean(rows), len(rows)
    if h == 1:
        return [0.0] * len(center)
    columns = zip(*rows, strict=True)
    return [
        math.sqrt(math.fsum((x - c) * (x - c) for x in column) / (h - 1))
        for column, c in zip(columns, center, strict=True)
    ]


def little(attack: Any, rounds: Rounds) -> list[list[float]]:
    """mean + factor * a, with a = -sigma; "z_max such that Phi(z) < (n - m - s)/(n - m), s = floor(n/2 + 1) - m"."""
    at = rounds[-1]
    factor, n = attack.factor, len(at.honest) + at.f
    if factor == "z":
        supporters = math.floor(n / 2 + 1) - at.f
        factor = NormalDist().inv_cdf((n - at.f - supporters) / (n - at.f))
    return [plus(mean(at.honest), attack.sign * factor, deviations(at.honest))] * at.f


def empire(attack: Any, rounds: Rounds) -> list[list[float]]:
    """(1 - factor) * mean, or with the other sign (1 + factor) * mean."""
    at = rounds[-1]
    return [[(1 + attack.sign * attack.factor) * c for c in mean(at.honest)]] * at.f


def empire_strict(attack: Any, rounds: Rounds) -> list[list[float]]:
    """-epsilon * mean."""
    at = rounds[-1]
    return [[-attack.epsilon * c for c in mean(at.honest)]] * at.f


# ------------------------------------------------------------------------------------ Min-Max, Min-Sum


def perturbation(kind: str, rows: Rows) -> list[float]:
    """Inverse standard deviation, inverse sign, inverse unit vector."""
    center = mean(rows)
    if kind == "std":
        return [-s for s in deviations(rows)]
    if kind == "sign":
        return [-s for s in signs(center)]
    return [-c / (norm(center) or 1.0) for c in center]


def largest(holds: Callable[[float], bool], start: float) -> float:
    """Return the largest number that passes a test which 0 passes and infinity does not: double, then bisect."""
    low, high = 0.0, start
    while holds(high):
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def bounded(attack: Any, rounds: Rounds, within: Callable[[Row, Rows], bool]) -> list[list[float]]:
    """mean + gamma * p with the largest gamma within the bound."""
    at = rounds[-1]
    center, p = mean(at.honest), perturbation(attack.direction, at.honest)
    if norm(p) == 0:
        return [center] * at.f
    limit = max(norm(plus(a, -1.0, b)) for a in at.honest for b in at.honest) / norm(p)
    gamma = largest(lambda gamma: within(plus(center, gamma, p), at.honest), limit) if limit else 0.0
    return [plus(center, gamma, p)] * at.f


def min_max(attack: Any, rounds: Rounds) -> list[list[float]]:
    """Its maximum distance from any honest row is at most the maximum distance between two of them."""

    def within(row: Row, honest: Rows) -> bool:
        return max(math.dist(row, x) for x in honest) <= max(math.dist(x, y) for x in honest for y in honest)

    return bounded(attack, rounds, within)


def min_sum(attack: Any, rounds: Rounds) -> list[list[float]]:
    """The sum of its squared distances from the honest rows is at most that of any honest row."""

    def total(row: Row, honest: Rows) -> float:
        return math.fsum(math.dist(row, x) ** 2 for x in honest)

    def within(row: Row, honest: Rows) -> bool:
        return total(row, honest) <= max(total(x, honest) for x in honest)

    return bounded(attack, rounds, within)


# --------------------------------------------------------------------------------------- Fang, hidden


class InDoubtError(Exception):
    """Two scores are so near to each other that rounding decides."""


def krum_takes(row: Row, at: Round) -> bool:
    """Return whether the best of all rows by the original Krum's score is one of f copies of this one."""
    scores = krum_scores([*at.honest, *[row] * at.f], at.f, squared=True).scores
    best, ours = min(scores[: len(at.honest)]), min(scores[len(at.honest) :])
    if all(list(other) == list(row) for other in at.honest):
        return False  # for certain: all are the same row, and the lowest number is honest
    # A row that comes out on top of an honest one is off by the rounding of its values, however small the distance.
    rounding = (DOUBT * max(abs(x) for other in at.honest for x in other)) ** 2
    if abs(best - ours) <= max(DOUBT * max(best, ours), rounding):
        raise InDoubtError
    return ours < best


def furthest(taken: Callable[[float], bool], start: float) -> float:
    """Return where acceptance ends: at most 64 times a start that is halved until it is accepted."""
    for _ in range(60):
        if taken(start):
            break
        start /= 2
    else:
        return 0.0
    lengths = [start * 2**k for k in range(7)]
    last = next((length for length in lengths[:-1] if not taken(2 * length)), None)
    if last is None:
        return lengths[-1]
    return last + largest(lambda more: taken(last + more), last)


def fang_krum(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """-lambda * s: lambda from Theorem 1's bound, halved until Krum chooses it (or on to the largest such one)."""
    at = rounds[-1]
    h, d = len(at.honest), len(at.honest[0])
    s = signs(mean(at.honest))
    nearest = [sorted(squared_distance(x, y) for j, y in enumerate(at.honest) if j != i)[: max(0, h - 2)]
               for i, x in enumerate(at.honest)]  # fmt: skip
    start = math.sqrt(min(map(sum, nearest)) / (max(1, h - at.f - 1) * d))
    start += max(map(norm, at.honest)) / math.sqrt(d)
    if start == 0 or not any(s):
        return [[0.0] * d] * at.f
    takes = lambda length: krum_takes([-length * x for x in s], at)  # noqa: E731
    try:
        length = start
        while not takes(length) and length / 2 >= attack.threshold * start:
            length /= 2
        if attack.search == "largest" and takes(length):
            length = furthest(takes, length)
    except InDoubtError:
        return None
    return [[-length * x for x in s]] * at.f


def fang_trimmed_mean(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Where the mean is positive from [v/b, v] or [bv, v] with the smallest value v, whichever is below it; else ..."""
    at = rounds[-1]
    columns = list(zip(*at.honest, strict=True))
    draws = torch.rand(at.f, len(columns), generator=at.generator(), dtype=torch.float64).tolist()
    rows = []
    for worker in range(at.f):
        row = []
        for column, draw in zip(columns, draws[worker], strict=True):
            total = math.fsum(column)
            if total != 0 and abs(total) < DOUBT * max(map(abs, column)):
                return None
            u = 1 + (attack.b - 1) * draw
            if total > 0:
                row.append(min(column) / u if min(column) > 0 else min(column) * u)
            elif total < 0:
                row.append(max(column) / u if max(column) < 0 else max(column) * u)
            else:
                row.append(0.0)
        rows.append(row)
    return rows


def hidden(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """mean + gamma * E, with the largest gamma that Krum takes, from the root mean square distance on."""
    at = rounds[-1]
    center = mean(at.honest)
    places = range(len(center)) if attack.coordinate == "all" else [range(len(center))[attack.coordinate]]

    def row(gamma: float) -> list[float]:
        return [c + attack.sign * gamma * (j in places) for j, c in enumerate(center)]

    gamma = attack.gamma
    if gamma == "krum":
        spread = math.sqrt(math.fsum(squared_distance(x, center) for x in at.honest) / len(at.honest))
        try:
            gamma = furthest(lambda gamma: krum_takes(row(gamma), at), spread) if spread else 0.0
        except InDoubtError:
            return None
    return [row(gamma)] * at.f


# ------------------------------------------------------------------------------- mimic, CGE, SignGuard


def mimic(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Repeats worker i* = argmax <x_i, z>, z being the direction of largest variance; fixed after the warm-up."""
    at = rounds[-1]
    if attack.worker != "auto":
        return [list(at.honest[attack.worker])] * at.f
    z: list[float] = []
    mu: list[float] = []
    target = 0
    for t, now in enumerate(rounds[: attack.warmup]):
        center = mean(now.honest)
        mu = [(t * m + c) / (t + 1) for m, c in zip(mu, center, strict=True)] if t else center
        if t == 0:
            z = torch.randn(len(center), generator=now.generator(), dtype=torch.float64).tolist()
        away = [plus(x, -1.0, mu) for x in now.honest]
        size = max(abs(value) for a in away for value in a) or 1.0
        away = [[value / size for value in a] for a in away]
        pull = [0.0] * len(center)
        for a in away:
            pull = plus(pull, math.fsum(x * y for x, y in zip(a, z, strict=True)), a)
        if norm(pull) > 0:
            z = [(t * x + p / norm(pull)) / (t + 1) for x, p in zip(z, pull, strict=True)]
        z = [x / norm(z) for x in z]
        products = [math.fsum(x * y for x, y in zip(row, z, strict=True)) for row in now.honest]
        target = products.index(max(products))
        rounding = 1e-6 * max(map(norm, now.honest))
        rivals = [row for row, product in zip(now.honest, products, strict=True) if max(products) - product <= rounding]
        if any(list(row) != list(now.honest[target]) for row in rivals):
            return None
    return [list(at.honest[target])] * at.f


def anti_cge(attack: Any, rounds: Rounds) -> list[list[float]]:
    """-mean of the h-f shortest honest rows, at a norm just below that of the next shortest."""
    at = rounds[-1]
    by_norm = sorted(at.honest, key=norm)
    kept = max(0, len(by_norm) - at.declared_f)
    center = mean(by_norm[:kept] or by_norm)
    limit = norm(by_norm[min(kept, len(by_norm) - 1)]) * (1 - 1e-6)
    return [[-c * limit / norm(center) if norm(center) else 0.0 for c in center]] * at.f


def byzmean(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """g_m1 of the inner attack; g_m2 = ((n - m1) g_m1 - sum of the honest) / m2."""
    at = rounds[-1]
    inside = oracle(attack.attack, rounds)
    if inside is None:
        return None
    n, m1 = len(at.honest) + at.f, at.f // 2
    target = mean(inside[: max(1, m1)])
    total = [math.fsum(column) for column in zip(*at.honest, strict=True)]
    other = [((n - m1) * a - s) / (at.f - m1) for a, s in zip(target, total, strict=True)]
    return [*inside[:m1], *[other] * (at.f - m1)]


def signguard_attack(attack: Any, rounds: Rounds) -> list[list[float]]:
    """The mean's coordinates in another order, at the median norm."""
    at = rounds[-1]
    center = mean(at.honest)
    order = torch.randperm(len(center), generator=at.generator()).tolist()
    median = sorted(map(norm, at.honest))[(len(at.honest) - 1) // 2]
    scale = median / norm(center) if norm(center) else 0.0
    return [[center[j] * scale for j in order]] * at.f


# --------------------------------------------------------------------------------------- chain, decoy


def cosine_distance(a: Row, b: Row) -> float:
    """1 - cosine of the angle; 1 from a row of zeros to another row, 0 between two of them."""
    units = [[x / (norm(row) or 1.0) for x in row] for row in (a, b)]
    return squared_distance(*units) / 2 * (1 if norm(a) and norm(b) else 2)


def linked(rows: Rows, longest: float) -> list[list[int]]:
    """Return the groups of rows that links of at most this cosine distance join, directly or through others."""
    root = list(range(len(rows)))
    for i, a in enumerate(rows):
        for j, b in enumerate(rows[:i]):
            if cosine_distance(a, b) <= longest:
                root = [root[j] if r == root[i] else r for r in root]
    return [[i for i in range(len(rows)) if root[i] == r] for r in sorted(set(root))]


def chain(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """From the row nearest to -mean of a group that links shorter than the next one join, in equal steps to -mean."""
    at = rounds[-1]
    h, center = len(at.honest), mean(at.honest)
    n, goal = h + at.f, [-c for c in (center if any(center) else at.honest[0])]
    lengths = sorted(map(norm, at.honest))
    table = sorted(cosine_distance(a, b) for i, a in enumerate(at.honest) for b in at.honest[:i])
    if not all(lengths) or norm(goal) < 1e-6 * lengths[-1] or len(at.honest[0]) < 2:
        return None
    # Rounding decides between links of equal lengths, and where rows are parallel.
    if any(b - a <= 1e-4 * b for a, b in zip([0.0, *table], [*table, 2.0], strict=True)):
        return None
    limit = sorted([*lengths, *[4 * lengths[-1]] * at.f])[(n - 1) // 2]
    limit = min(limit, lengths[-1])
    towards = [1 - cosine_distance(x, goal) for x in at.honest]
    found = []
    for now, after in zip([0.0, *table], [*table, 2.0], strict=True):
        groups = linked(at.honest, now)
        if max(map(len, groups)) > n / 2:
            break
        for group in groups:
            if (len(group) + at.f) > n / 2:
                start = max(group, key=towards.__getitem__)
                step = 2 * math.asin(math.sqrt(after * (1 - 2e-5) / 2))
                left = [max(0.0, angle_between(at.honest[start], goal) - k * step) for k in range(1, at.f + 1)]
                shares = [towards[i] * min(norm(at.honest[i]), limit) for i in group]
                found.append(
                    ((math.fsum(shares) + limit * sum(map(math.cos, left))) / (len(group) + at.f), start, step)
                )
    if not found:  # they cannot be a majority before the honest rows are
        longest = next(t for t in table if len(linked(at.honest, t)) == 1)
        found = [(0.0, towards.index(max(towards)), 2 * math.asin(math.sqrt(longest / 2)))]
    best = max(found)
    if any(best[0] - other[0] <= 1e-6 and other != best for other in found):
        return None
    start = at.honest[best[1]]
    whole = angle_between(start, goal)
    if math.pi - whole < 1e-3 or whole < 1e-3:
        return None
    rows = []
    for k in range(1, at.f + 1):  # spherical interpolation
        share = min(1.0, (k - (k - 1) * 1e-5) * best[2] / whole)
        a, b = math.sin((1 - share) * whole) / math.sin(whole), math.sin(share * whole) / math.sin(whole)
        row = plus([a * x / norm(start) for x in start], b / norm(goal), goal)
        rows.append([4 * lengths[-1] * x for x in row])
    return rows


def angle_between(a: Row, b: Row) -> float:
    return 2 * math.asin(min(1.0, math.sqrt(cosine_distance(a, b) / 2)))


def decoy(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """One row mean + D w, the others the inner attack's + D w/(n - f + 1); w is +-1/sqrt(d) everywhere."""
    at = rounds[-1]
    h, d = len(at.honest), len(at.honest[0])

    def draw(generator: torch.Generator) -> list[float]:
        return torch.rand(d, generator=generator, dtype=torch.float64).tolist()  # type: ignore[no-any-return]

    inside = oracle(attack.attack, [later(past, draw) for past in rounds])
    if inside is None:
        return None
    w = [(1 if u > 0.5 else -1) / math.sqrt(d) for u in draw(at.generator())]
    away = attack.distance * max(map(norm, at.honest))
    return [plus(mean(at.honest), away, w), *(plus(row, away / (h + 1), w) for row in inside[: at.f - 1])]


# ------------------------------------------------------------------------------------- over the rounds


def stale(attack: Any, rounds: Rounds) -> list[list[float]]:
    """Return what was sent `delay` rounds ago, or in the first round."""
    at = rounds[-1]
    then = max((past for past in rounds if past.step <= at.step - attack.delay), default=rounds[0], key=_step)
    return [list(row) for row in then.own] if attack.source == "own" else [mean(then.honest)] * at.f


def _step(at: Round) -> int:
    return at.step


def dot(a: Row, b: Row) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def at_length_1(a: Row) -> list[float]:
    return [x / (norm(a) or 1.0) for x in a]


def random_signs(at: Round) -> list[float]:
    drawn = torch.rand(len(at.honest[0]), generator=at.generator(), dtype=torch.float64).tolist()
    return [1.0 if u > 0.5 else -1.0 for u in drawn]


def persistent(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """lambda_t v_t s; c shrinks after a window in which chance alone gives s as many coordinates in 1 of 100 cases."""
    s = random_signs(rounds[0])
    v = at_length_1([1.0] * len(s))
    c, begin = attack.c, rounds[0].parameters
    for t, now in enumerate(rounds):
        if t > 0:
            update = at_length_1(plus(rounds[t - 1].parameters, -1.0, now.parameters))
            row = [x * sign for x, sign in zip(v, s, strict=True)]
            change = [abs(x) for x in plus(update, -1.0, row)]
            v = at_length_1(change) if norm(change) > 1e-6 else v
        if t > 0 and t % attack.window == 0:
            total = plus(begin, -1.0, now.parameters)
            trials = sum(x != 0 for x in total)
            agree = sum(x * sign > 0 for x, sign in zip(total, s, strict=True))
            chance = 1 - NormalDist(trials / 2, math.sqrt(trials) / 2).cdf(agree) if trials else 1.0
            wanted = c / 0.7 if chance < 0.01 else c * 0.7
            c = wanted if wanted >= 0.5 else c
            begin = now.parameters
    at = rounds[-1]
    return [[c * norm(mean(at.honest)) * x * sign for x, sign in zip(v, s, strict=True)]] * at.f


def coupled(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Between mean and reference, perturbed by z deviations at an angle to the reference."""
    at, s = rounds[-1], random_signs(rounds[0])
    center = mean(at.honest)
    update = plus(rounds[-2].parameters, -1.0, at.parameters) if len(rounds) > 1 else center
    along = at_length_1(update)
    p = plus(s, -dot(s, along), along)
    if norm(p) < 1e-3:
        return None
    deviation = math.sqrt(math.fsum(squared_distance(x, center) for x in at.honest) / len(at.honest))
    turned = plus([math.sin(math.radians(attack.angle)) * x for x in at_length_1(p)],
                  math.cos(math.radians(attack.angle)), along)  # fmt: skip
    place = plus([attack.location * x for x in center], (1 - attack.location) * norm(center), along)
    return [plus(place, attack.z * deviation, turned)] * at.f


def drop(attack: Any, rounds: Rounds) -> list[list[float]]:
    """Return nothing, or by chance an honest row."""
    at = rounds[-1]
    draws = (
        torch.rand(at.f, generator=at.generator(), dtype=torch.float64).tolist() if attack.chance < 1 else [0.0] * at.f
    )
    return [
        [math.nan for _ in row] if draw < attack.chance else list(row) for draw, row in zip(draws, at.own, strict=True)
    ]


def gaussian(attack: Any, rounds: Rounds) -> list[list[float]]:
    """Normal numbers of mean zero, one after the other, in the rows' dtype (another stream for each)."""
    at = rounds[-1]
    drawn = torch.empty(at.f, len(at.honest[0]), dtype=at.dtype).normal_(0.0, attack.std, generator=at.generator())
    return drawn.tolist()  # type: ignore[no-any-return]


def later(at: Round, draws: Callable[[torch.Generator], object]) -> Round:
    """Return the round for an inner attack, after another draw from the generator."""

    class Later(Round):
        def generator(self) -> torch.Generator:
            generator = torch.Generator().manual_seed(self.seed)
            draws(generator)
            return generator

    return Later(**vars(at))


def stranger(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Return the drawn attack's rows. It has seen only the rounds in which it was drawn."""

    def draw(generator: torch.Generator) -> int:
        return int(torch.randint(len(attack.attacks), (1,), generator=generator))

    drawn = draw(rounds[-1].generator())
    seen = [later(at, draw) for at in rounds if draw(at.generator()) == drawn]
    return oracle(attack.attacks[drawn], seen)


def split(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Groups of about f/k workers, one for each attack: group g begins at ceil(f g / k)."""
    rows: list[list[float]] = []
    for group, inner in enumerate(attack.attacks):
        sent = oracle(inner, rounds)
        if sent is None:
            return None
        count, f = len(attack.attacks), rounds[-1].f
        rows += sent[: math.ceil(f * (group + 1) / count) - math.ceil(f * group / count)]
    return rows


def no_formula(attack: Any, rounds: Rounds) -> None:
    """What a search finds has no formula: test_attack_searched.py compares it with a naive search."""


def alternate(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Honest in the even periods, the inner attack in the odd ones."""
    at = rounds[-1]
    if at.step // attack.period % 2 == 0:
        return [list(row) for row in at.own]
    return oracle(attack.attack, [past for past in rounds if past.step // attack.period % 2 == 1])


def rare(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Honest, but by chance the inner attack."""

    def draw(generator: torch.Generator) -> bool:
        return float(torch.rand(1, generator=generator, dtype=torch.float64)) < attack.chance

    at = rounds[-1]
    if not draw(at.generator()):
        return [list(row) for row in at.own]
    return oracle(attack.attack, [later(past, draw) for past in rounds if draw(past.generator())])


def equivocate(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """The inner attack's rows for servers 0, 2, ..., and for the others 2 * mean - row."""
    at = rounds[-1]
    rows = oracle(attack.attack, rounds)
    if rows is None or at.server % 2 == 0:
        return rows
    return [plus([2 * c for c in mean(at.honest)], -1.0, row) for row in rows]


def foresight(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Return the inner attack's rows: here the rule sees what the workers send."""
    return oracle(attack.attack, rounds)


def constant(value: float) -> Oracle:
    return lambda _, rounds: [[value for _ in rounds[-1].honest[0]]] * rounds[-1].f


ATTACK_ORACLES: dict[str, Oracle] = {
    "little": little,
    "empire": empire,
    "empire-strict": empire_strict,
    "min-max": min_max,
    "min-sum": min_sum,
    "fang-krum": fang_krum,
    "fang-trimmed-mean": fang_trimmed_mean,
    "hidden": hidden,
    "mimic": mimic,
    "anti-cge": anti_cge,
    "byzmean": byzmean,
    "signguard-attack": signguard_attack,
    "chain": chain,
    "decoy": decoy,
    "persistent": persistent,
    "coupled": coupled,
    "searched": no_formula,
    "split": split,
    "label-flip": lambda _, rounds: [list(row) for row in rounds[-1].flipped],
    "sign-flip": lambda attack, rounds: [[-attack.scale * c for c in mean(rounds[-1].honest)]] * rounds[-1].f,
    "gaussian": gaussian,
    "zero": constant(0.0),
    "nan": constant(math.nan),
    "inf": constant(math.inf),
    "stale": stale,
    "drop": drop,
    "stranger": stranger,
    "alternate": alternate,
    "rare": rare,
    "equivocate": equivocate,
    "foresight": foresight,
}


def oracle(attack: Any, rounds: Rounds) -> list[list[float]] | None:
    """Return the rows of the last round."""
    return ATTACK_ORACLES[attack.name](attack, rounds)
