"""Kardam's filters (Damaskinos et al. 2018, "Asynchronous Byzantine Machine Learning").

The Lipschitz filter refuses gradients that grow faster than those of most workers. The frequency filter lets no small
group of workers supply most of the updates, however fast they are. `kardam` applies the first, then the second.
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
class LipschitzState:
    """What the Lipschitz filter remembers, per worker."""

    f: int
    newest: Mapping[int, Arrival] = dataclasses.field(default_factory=dict)
    """The last accepted gradient."""
    older: Mapping[int, Arrival] = dataclasses.field(default_factory=dict)
    """The last accepted gradient that was computed on another model than the newest."""
    coefficients: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """The latest growth coefficient, of accepted and of refused gradients alike."""
    norms: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """The latest norm."""


@dataclasses.dataclass(frozen=True)
class Lipschitz(Filter[LipschitzState]):
    """Refuse a gradient that grew faster than most: K = |g - g'| / |theta - theta'|, since its worker's last accepted.

    The filter accepts a gradient if its K is among the n - f smallest of the workers' latest ones, the (n-f)/n
    quantile. So:
    - whatever f workers send, the bound is at most the largest honest coefficient;
    - at least n - 2f of the n - f honest workers' latest coefficients are within the bound;
    - an accepted gradient is bounded: it is no longer than the longest latest honest gradient, or than this worker's
      last accepted one plus the bound times the distance that the model has moved since;
    - with f = 0 every finite gradient is accepted; a gradient that is not finite never is, and changes nothing.

    A refused gradient is never a reference: otherwise the same huge vector, sent twice, would not have grown.

    Where there is no K (no gradient of this worker was accepted yet, or the model has not moved since), and until
    2f + 1 workers have one, the filter judges the gradient's norm in the same way; until 2f + 1 workers have sent a
    gradient, it refuses all. Kardam's paper leaves this beginning open. Its released template compares with the last
    *applied* gradient of any worker instead, against the quantile of the growth between each worker's own consecutive
    gradients, and accepts one gradient after n refusals in a row. With stochastic gradients it depends on that
    exception, because one update moves the model less than the n updates between two gradients of a worker.

    Cost: two vectors of memory per worker and model, and two passes over a vector per arrival.
    """

    name = LIPSCHITZ
    summary = "refuses what grew faster than the (n-f)/n quantile of the workers' growth coefficients"
    paper = "Damaskinos et al. 2018"
    needs = "n >= 2f + 1"

    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def begin(self, f: int) -> LipschitzState:
        return LipschitzState(f)

    def judge(self, arrival: Arrival, state: LipschitzState) -> tuple[FilterVerdict, LipschitzState]:
        norm = _norm(arrival.vector)
        if not math.isfinite(norm):
            return FilterVerdict(False, LIPSCHITZ), state
        reference = _reference(arrival, state)
        coefficient = _growth(arrival, reference) if reference else None
        state = _recorded(arrival.worker, norm, coefficient, state)
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


def _reference(arrival: Arrival, state: LipschitzState) -> Arrival | None:
    """Return the worker's last accepted gradient that was computed on another model."""
    newest = state.newest.get(arrival.worker)
    if newest is not None and newest.version != arrival.version:
        return newest
    return state.older.get(arrival.worker)


def _growth(arrival: Arrival, reference: Arrival) -> float | None:
    """Return K, or None where the model has not moved."""
    # In float64: the difference of huge values must not overflow, nor that of near-equal ones vanish.
    moved = _norm(arrival.parameters.to(torch.float64) - reference.parameters)
    grown = _norm(arrival.vector.to(torch.float64) - reference.vector)
    return grown / moved if moved > 0 else None


def _recorded(worker: int, norm: float, coefficient: float | None, state: LipschitzState) -> LipschitzState:
    """Return the state with the worker's latest norm and coefficient."""
    coefficients = state.coefficients if coefficient is None else {**state.coefficients, worker: coefficient}
    return dataclasses.replace(state, coefficients=coefficients, norms={**state.norms, worker: norm})


def _with_reference(arrival: Arrival, state: LipschitzState) -> LipschitzState:
    """Return the state in which the worker's later gradients are compared with this one."""
    worker, older = arrival.worker, state.older
    newest = state.newest.get(worker)
    if newest is not None and newest.version != arrival.version:
        older = {**older, worker: newest}
    return dataclasses.replace(state, newest={**state.newest, worker: arrival}, older=older)


def _bound(latest: Mapping[int, float], f: int) -> float:
    """Return the largest value but f."""
    return sorted(latest.values())[len(latest) - f - 1]


@dataclasses.dataclass(frozen=True)
class FrequencyState:
    """What the frequency filter remembers: the senders of the last 2f accepted gradients, oldest first."""

    f: int
    workers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class _FrequencyBounded(Filter[FilterState]):
    """The common part of the filters that bound the share of every f workers in the updates."""

    joint: bool = True

    paper = "Damaskinos et al. 2018"
    needs = "n >= 3f + 1"

    def __post_init__(self) -> None:
        if not isinstance(self.joint, bool):
            raise ConfigError(f"joint of the filter {self.name!r} must be true or false, got {self.joint!r}")

    def min_workers(self, f: int) -> int:
        return 3 * f + 1


@dataclasses.dataclass(frozen=True)
class Frequency(_FrequencyBounded[FrequencyState]):
    """Refuse a gradient that would give any f workers more than f of the last 2f + 1 accepted ones.

    So every 2f + 1 consecutive accepted gradients hold at least f + 1 honest ones, however fast the Byzantine workers
    are: their share is at most f / (2f + 1). Among 2f + 1 gradients some f workers have more than f exactly when one
    worker has two, so the filter accepts no worker twice within 2f + 1. A worker that it refuses was accepted a short
    while ago: this filter starves no worker, and with n >= 3f + 1 the honest workers alone keep it going.

    joint: False for a weaker reading that other implementations have: no single worker has more than f of them. Then
    f >= 2 colluding workers can have 2f of every 2f + 1.
    """

    name = FREQUENCY
    summary = "refuses what would let any f workers have more than f of the last 2f + 1 accepted gradients"

    def begin(self, f: int) -> FrequencyState:
        return FrequencyState(f)

    def judge(self, arrival: Arrival, state: FrequencyState) -> tuple[FilterVerdict, FrequencyState]:
        allowed = 1 if self.joint else state.f
        if state.f > 0 and state.workers.count(arrival.worker) >= allowed:
            return FilterVerdict(False, FREQUENCY), state
        last = (*state.workers, arrival.worker)
        return FilterVerdict(True), FrequencyState(state.f, last[max(0, len(last) - 2 * state.f) :])


@dataclasses.dataclass(frozen=True)
class KardamState:
    """What Kardam remembers: the states of both filters."""

    lipschitz: LipschitzState
    frequency: FrequencyState


@dataclasses.dataclass(frozen=True)
class Kardam(_FrequencyBounded[KardamState]):
    """Apply the Lipschitz filter, then the frequency filter. Either counts as accepted what both accepted.

    So a worker whose turn it is by the frequency filter is compared with its gradient of longest ago, from which the
    model has moved furthest, and usually passes. But the two can wait for each other: with n = 3f + 1 and f silent
    Byzantine workers all honest workers must take turns, and a worker whose gradients are always the longest is never
    accepted a first time. Then the server accepts no gradient any more. More workers, or workers whose data are alike,
    are the remedy.

    joint: as in `Frequency`.
    """

    name = "kardam"
    summary = "the Lipschitz filter, then the frequency filter"

    def begin(self, f: int) -> KardamState:
        return KardamState(LipschitzState(f), FrequencyState(f))

    def judge(self, arrival: Arrival, state: KardamState) -> tuple[FilterVerdict, KardamState]:
        verdict, lipschitz = Lipschitz().judge(arrival, state.lipschitz)
        if not verdict.accepted:
            return verdict, KardamState(lipschitz, state.frequency)
        second, frequency = Frequency(self.joint).judge(arrival, state.frequency)
        if not second.accepted:
            verdict = dataclasses.replace(verdict, accepted=False, refused_by=FREQUENCY)
            lipschitz = dataclasses.replace(lipschitz, newest=state.lipschitz.newest, older=state.lipschitz.older)
        return verdict, KardamState(lipschitz, frequency)


FILTERS: dict[str, type[Filter[Any]]] = {kind.name: kind for kind in (Kardam, Lipschitz, Frequency, NoFilter)}


def parse(spec: str) -> Filter[Any]:
    """Return the filter that a spec such as `kardam` or `frequency:joint=false` describes."""
    name, parameters = registry.split(spec)
    made: Filter[Any] = registry.make("filter", Filter, FILTERS, name, parameters)
    return made
