"""Kardam's filters (Damaskinos et al. 2018, "Asynchronous Byzantine Machine Learning").

Two filters, one after the other: what a worker sends may not grow faster than what most workers' gradients do, and no
few workers may supply most of the updates, however fast they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope.research.asynchronous.filters import Arrival, Filter, FilterState, FilterVerdict, NoFilter

LIPSCHITZ, FREQUENCY = "lipschitz", "frequency"


@dataclasses.dataclass(frozen=True)
class Grown:
    """What the Lipschitz filter remembers, per worker."""

    f: int
    newest: Mapping[int, Arrival] = dataclasses.field(default_factory=dict)
    """The last gradient that was accepted."""
    older: Mapping[int, Arrival] = dataclasses.field(default_factory=dict)
    """The last accepted one that was computed on another model than the newest."""
    coefficients: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """The latest growth coefficient, of accepted and of refused gradients alike."""
    norms: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """The latest norm."""


@dataclasses.dataclass(frozen=True)
class Lipschitz(Filter[Grown]):
    """Refuses gradients that grew faster than most: K = |g - g'| / |theta - theta'|, since its worker's last accepted.

    A gradient is accepted if its K is among the n - f smallest of the workers' latest ones, the (n-f)/n quantile. So:
    - whatever f workers send, the bound is at most the largest honest coefficient;
    - at least n - 2f of the n - f honest workers' latest coefficients are within the bound;
    - what is accepted is bounded: it is no longer than the longest latest honest gradient, or than this worker's last
      accepted one and the bound times the distance that the model has gone since;
    - with f = 0 every finite gradient is accepted, and a gradient that is not finite never is.

    A refused gradient is nobody's reference: else the same huge vector, sent twice, would not have grown.

    Where there is no K (nothing of this worker was accepted yet, or the model has not moved since), and until 2f + 1
    workers have one, the gradient's norm is judged in its place, in the same way; until 2f + 1 workers have sent
    anything, all are refused. Kardam's paper leaves this beginning open. Its released template compares with the last
    *applied* gradient of anybody instead, against the quantile of the growth between each worker's own consecutive
    gradients, and lets one pass after n refusals in a row; with stochastic gradients it lives on that exception,
    because one update moves the model less than the n updates between two gradients of a worker.

    What it costs: two vectors of memory per worker and model, and two passes over a vector per arrival.
    """

    name = LIPSCHITZ
    summary = "refuses what grew faster than the (n-f)/n quantile of the workers' growth coefficients"
    paper = "Damaskinos et al. 2018"
    needs = "n >= 2f + 1"

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def begin(self, f: int) -> Grown:
        return Grown(f)

    def judge(self, arrival: Arrival, state: Grown) -> tuple[FilterVerdict, Grown]:
        norm = _norm(arrival.vector)
        if not math.isfinite(norm):
            return FilterVerdict(False, LIPSCHITZ), state
        reference = _reference(arrival, state)
        coefficient = _growth(arrival, reference) if reference else None
        state = _noted(arrival.worker, norm, coefficient, state)
        if coefficient is not None and len(state.coefficients) > 2 * state.f:
            bound = _bound(state.coefficients, state.f)
            accepted = coefficient <= bound
        else:
            bound = None
            accepted = len(state.norms) > 2 * state.f and norm <= _bound(state.norms, state.f)
        if not accepted:
            return FilterVerdict(False, LIPSCHITZ, coefficient, bound), state
        return FilterVerdict(True, "", coefficient, bound), _with_reference(arrival, state)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _reference(arrival: Arrival, state: Grown) -> Arrival | None:
    """The worker's last accepted gradient that was computed on another model."""
    newest = state.newest.get(arrival.worker)
    if newest is not None and newest.version != arrival.version:
        return newest
    return state.older.get(arrival.worker)


def _growth(arrival: Arrival, reference: Arrival) -> float | None:
    """Differences are taken in float64: huge values must not overflow into a NaN, nor near-equal ones vanish."""
    moved = _norm(arrival.parameters.to(torch.float64) - reference.parameters)
    grown = _norm(arrival.vector.to(torch.float64) - reference.vector)
    return grown / moved if moved > 0 else None


def _noted(worker: int, norm: float, coefficient: float | None, state: Grown) -> Grown:
    coefficients = state.coefficients if coefficient is None else {**state.coefficients, worker: coefficient}
    return dataclasses.replace(state, coefficients=coefficients, norms={**state.norms, worker: norm})


def _with_reference(arrival: Arrival, state: Grown) -> Grown:
    """From now on the worker's gradients are compared with this one."""
    worker, older = arrival.worker, state.older
    newest = state.newest.get(worker)
    if newest is not None and newest.version != arrival.version:
        older = {**older, worker: newest}
    return dataclasses.replace(state, newest={**state.newest, worker: arrival}, older=older)


def _bound(latest: Mapping[int, float], f: int) -> float:
    """All but the f largest are within it."""
    return sorted(latest.values())[len(latest) - f - 1]


@dataclasses.dataclass(frozen=True)
class Accepted:
    """What the frequency filter remembers: whose the last 2f accepted gradients were, oldest first."""

    f: int
    workers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class _TakesTurns(Filter[FilterState]):
    """What the filters have in common that let nobody supply too many of the updates."""

    joint: bool = True

    paper = "Damaskinos et al. 2018"
    needs = "n >= 3f + 1"

    def __post_init__(self) -> None:
        if not isinstance(self.joint, bool):
            raise ConfigError(f"joint of the filter {self.name!r} must be true or false, got {self.joint!r}")

    def min_workers(self, f: int) -> int:
        return 3 * f + 1


@dataclasses.dataclass(frozen=True)
class Frequency(_TakesTurns[Accepted]):
    """Refuses a gradient that would let any f workers have more than f of the last 2f + 1 accepted ones.

    So every 2f + 1 accepted gradients in a row hold at least f + 1 honest ones, however fast the Byzantine workers are:
    their share is bounded by f / (2f + 1). Among 2f + 1 gradients some f workers have more than f exactly when one of
    the workers has two, so this says that nobody is accepted twice within 2f + 1. Who is refused was accepted a short
    while ago: by this filter nobody starves, and with n >= 3f + 1 the honest workers alone keep it going.

    joint: False for a weaker reading that other implementations have: no single worker more than f of them. Then f >= 2
    colluding workers can have 2f of every 2f + 1.
    """

    name = FREQUENCY
    summary = "refuses what would let any f workers have more than f of the last 2f + 1 accepted gradients"

    def begin(self, f: int) -> Accepted:
        return Accepted(f)

    def judge(self, arrival: Arrival, state: Accepted) -> tuple[FilterVerdict, Accepted]:
        allowed = 1 if self.joint else state.f
        if state.f > 0 and state.workers.count(arrival.worker) >= allowed:
            return FilterVerdict(False, FREQUENCY), state
        last = (*state.workers, arrival.worker)
        return FilterVerdict(True), Accepted(state.f, last[max(0, len(last) - 2 * state.f) :])


@dataclasses.dataclass(frozen=True)
class Both:
    """What Kardam remembers."""

    grown: Grown
    accepted: Accepted


@dataclasses.dataclass(frozen=True)
class Kardam(_TakesTurns[Both]):
    """The Lipschitz filter, then the frequency filter. What counts as accepted is what both accepted, for either.

    So a worker whose turn it is by the frequency filter is compared with its gradient of longest ago, from which the
    model has moved furthest, and usually passes. But they can wait for each other: with n = 3f + 1 and f silent liars
    all honest workers must take turns, and one whose gradients are always the longest is never accepted a first time.
    Then nothing is, any more. More workers, or workers whose data are alike, are the remedy.

    joint: as in `Frequency`.
    """

    name = "kardam"
    summary = "the Lipschitz filter, then the frequency filter"

    def begin(self, f: int) -> Both:
        return Both(Grown(f), Accepted(f))

    def judge(self, arrival: Arrival, state: Both) -> tuple[FilterVerdict, Both]:
        verdict, grown = Lipschitz().judge(arrival, state.grown)
        if not verdict.accepted:
            return verdict, Both(grown, state.accepted)
        often, accepted = Frequency(self.joint).judge(arrival, state.accepted)
        if not often.accepted:
            verdict = dataclasses.replace(verdict, accepted=False, refused_by=FREQUENCY)
            grown = dataclasses.replace(grown, newest=state.grown.newest, older=state.grown.older)
        return verdict, Both(grown, accepted)


FILTERS: dict[str, type[Filter[Any]]] = {kind.name: kind for kind in (Kardam, Lipschitz, Frequency, NoFilter)}


def parse(spec: str) -> Filter[Any]:
    """The filter that a spec such as `kardam` or `frequency:joint=false` describes."""
    name, parameters = registry.split(spec)
    made: Filter[Any] = registry.make("filter", Filter, FILTERS, name, parameters)
    return made
