"""`Participation`: rounds that ask only some of the workers, and what the rule is given of the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._core import random_streams
from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope._linalg import matrix
from gyroscope.rules import Rule

MOMENTUM, LEFT_OUT = "momentum", "left-out"
ABSENT = (MOMENTUM, LEFT_OUT)
RISK_PER_CENT = 1
"""With `left-out`, how probable it may be that some round of the run asks more Byzantine workers than the rule is told.
"""


class Participation:
    """Ask `sample` of n workers in a round, chosen at random, and say what the rule is given.

    Who is asked in a round is a function of the seed and the step: the server, a simulation and a resumed run agree,
    and a worker cannot influence it. (It can foresee it, because it knows the seed of its batches.)

    With `momentum` the rule is given n rows in every round: those of the workers that were asked, and the last finite
    row of each of the others, as it came. So at most f of the rows are Byzantine whoever is asked, which is the idea of
    delayed momentum aggregation (DeMoA: Otsuka, Takezawa, Yamada 2025). An absent worker's row does not age: with
    momentum at the workers each row has the scale of a whole momentum, and a factor per missed round would make honest
    rows differ in length. The first round asks everybody, since the rule needs n rows. A worker without any finite row
    has a row of NaN, and counts as Byzantine.

    With `left-out` the rule is given the rows of those asked, and is told to tolerate f' among them: the least number
    for which the probability that any round of the run asks more than f' of f Byzantine workers is at most 1 %.
    """

    def __init__(self, workers: int, sample: int, seed: int, *, absent: str = MOMENTUM, f: int, steps: int) -> None:
        """Begin with the first round.

        Args:
            workers: n.
            sample: how many of them a round asks.
            seed: of the choice.
            absent: what the rule is given of the others: their last rows ("momentum") or nothing ("left-out").
            f: how many of the n workers may be Byzantine.
            steps: how many rounds there are.

        Raises:
            ConfigError: there is no such sample.
        """
        if absent not in ABSENT:
            raise UnknownNameError("treatment of absent workers", absent, ABSENT)
        if not 1 <= sample <= workers:
            raise ConfigError(
                f"a round cannot ask {sample} of {workers} workers: choose a sample from 1 to {workers}, or leave it "
                "out to ask all"
            )
        self.workers, self.sample, self.seed, self.keeps = workers, sample, seed, absent == MOMENTUM
        self.f = f if self.keeps else tolerated(workers, f, sample, steps)
        """How many Byzantine rows the rule is told to tolerate."""
        self.rows_given = workers if self.keeps else sample
        """How many rows the rule is given."""
        self.kept: Tensor | None = None
        """(n, d): each worker's last finite row, NaN before there is one. None before the first round."""
        self._last: tuple[int, tuple[int, ...]] | None = None

    def asked(self, step: int) -> tuple[int, ...]:
        """Return the numbers of the workers that are asked in this round, in order."""
        if self.keeps and step == 0:
            return tuple(range(self.workers))
        if self._last is None or self._last[0] != step:
            stream = random_streams.generator(self.seed, "participation", step)
            chosen = torch.randperm(self.workers, generator=stream)[: self.sample]
            self._last = step, tuple(sorted(chosen.tolist()))
        return self._last[1]

    def required(self, step: int, honest: int, always: int) -> int:
        """Return how many finite rows of the first `honest` workers this round needs, of those that it asks.

        Args:
            always: how many a round with all workers needs.
        """
        asked = sum(worker < honest for worker in self.asked(step))
        spare = honest - always
        if not self.keeps:
            spare = min(spare, self.f - (len(self.asked(step)) - asked))
        elif self.kept is not None:
            absent = sorted(set(range(honest)) - set(self.asked(step)))
            spare -= int((~self.kept[absent, 0].isfinite()).sum())
        return max(min(1, asked), asked - max(0, spare))

    def given(self, step: int, rows: Tensor) -> Tensor:
        """Return what the rule is given for these n rows, and change nothing. Rows of absent workers are not read."""
        asked = list(self.asked(step))
        if not self.keeps:
            return rows[asked]
        shown = torch.full_like(rows, math.nan) if self.kept is None else self.kept.clone()
        shown[asked] = rows[asked]
        return shown

    def take(self, step: int, rows: Tensor) -> Tensor:
        """Return what the rule is given for these n rows, and keep them for the rounds to come."""
        shown = self.given(step, rows)
        if self.keeps:
            if self.kept is None:
                self.kept = torch.full_like(rows, math.nan)
            for worker in self.asked(step):
                if matrix.all_finite(rows[worker]):
                    self.kept[worker] = rows[worker]
        return shown

    def forget(self, worker: int) -> None:
        """Keep nothing of a worker, because it is not to take part: its row is NaN until it is taken again."""
        if self.kept is not None:
            self.kept[worker] = math.nan

    def of_all(self, step: int, values: Tensor, absent: float) -> Tensor:
        """Return what belongs to the rows that the rule was given as (n, ...), with this value for those left out."""
        if self.keeps:
            return values
        spread = values.new_full((self.workers, *values.shape[1:]), absent)
        spread[list(self.asked(step))] = values
        return spread

    def state_dict(self) -> dict[str, Tensor]:
        """Return the rows that are kept."""
        return {} if self.kept is None else {"kept": self.kept.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.kept = state["kept"].clone() if "kept" in state else None


class Settings(Protocol):
    """The settings of a run that say who takes part."""

    @property
    def sample(self) -> int | None: ...
    @property
    def absent(self) -> str: ...
    @property
    def workers(self) -> int: ...
    @property
    def byzantine(self) -> int: ...
    @property
    def declared_byzantine(self) -> int: ...
    @property
    def seed(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def rule(self) -> str: ...
    @property
    def momentum(self) -> str: ...


def of(config: Settings) -> Participation | None:
    """Return who is asked in the rounds of a run; None where everybody is.

    Raises:
        ConfigError: there is no such sample, or the settings do not go together.
        InfeasibleError: the rule cannot work with as few rows as it would be given.
    """
    if config.absent not in ABSENT:
        raise UnknownNameError("treatment of absent workers", config.absent, ABSENT)
    if config.sample is None:
        if config.absent == LEFT_OUT:
            raise ConfigError("absent = left-out is for rounds that ask some of the workers: set sample, too")
        return None
    n, f, steps = config.workers, config.declared_byzantine, config.steps
    made = Participation(n, config.sample, config.seed, absent=config.absent, f=f, steps=steps)
    if config.momentum == "server-kept":
        raise ConfigError(
            "with momentum = server-kept the server accumulates every worker's row in every round, and only a sample "
            "of the workers sends one: use momentum = workers, whose last rows the server keeps"
        )
    if not made.keeps:
        _check_left_out(made, rules.parse(config.rule), config)
    return made


def _check_left_out(made: Participation, rule: Rule, config: Settings) -> None:
    """Raise an error where the rule cannot work with the rows of a sample."""
    n, m, f, steps = made.workers, made.sample, config.declared_byzantine, config.steps
    if rule.tracks_workers:
        raise ConfigError(
            f"the rule {rule} follows each worker from round to round, and with absent = left-out it would be given "
            "other workers in every round: use absent = momentum"
        )
    if m <= config.byzantine:
        raise ConfigError(
            f"with absent = left-out a round that asks {m} workers may ask none but the {config.byzantine} Byzantine "
            f"ones: raise sample to {config.byzantine + 1} or more, or use absent = momentum"
        )
    if rule.min_workers(made.f) > m:
        enough = (k for k in range(m + 1, n + 1) if rule.min_workers(tolerated(n, f, k, steps)) <= k)
        more = next((f"raise sample to {k}, or " for k in enough), "")
        raise InfeasibleError(
            f"with absent = left-out the rule {rule} is given {m} rows and told that {made.f} of them may be Byzantine "
            f"(that {steps} rounds, each with {m} of {n} workers of which {f} are Byzantine, ever ask more has a "
            f"probability of at most {RISK_PER_CENT} %), for which it needs {rule.min_workers(made.f)} rows: "
            f"{more}use absent = momentum"
        )


def tolerated(workers: int, f: int, sample: int, steps: int) -> int:
    """Return the least number that a run's samples exceed with a probability of at most `RISK_PER_CENT`.

    How many of f Byzantine workers are in one sample is distributed hypergeometrically; the probability that one of
    `steps` samples has more is at most `steps` times that of one. The numbers are whole, so nothing is rounded.
    """
    allowed = RISK_PER_CENT * math.comb(workers, sample)
    more = 0
    for count in range(min(f, sample), 0, -1):
        more += math.comb(f, count) * math.comb(workers - f, sample - count) * 100 * steps
        if more > allowed:
            return count
    return 0
