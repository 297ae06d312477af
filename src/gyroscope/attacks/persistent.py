"""Persistent: push along one random sign vector in all rounds, as strongly as gets through."""

from __future__ import annotations

import dataclasses
from statistics import NormalDist

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._linalg.moments import CachedMoments
from gyroscope.attacks._history import kept_signs, last_update
from gyroscope.attacks.base import Attack, AttackContext, finite, normalized, repeat, to_unit_scale

_STEP = 0.7
_LEAST, _MOST = 0.5, 1e6
_SAME = 1e-6
_SIGNIFICANT = NormalDist().inv_cdf(0.99)


@dataclasses.dataclass(frozen=True)
class Persistent(Attack):
    """Send c |mean| v s with random signs s that stay the same in all rounds, so that what gets through adds up.

    Attacks that choose a new direction in every round undo part of their own work; a rule that lets little of each
    round through lets this one through all the same, only more slowly. v >= 0 has length 1 and says how much of the
    row each coordinate gets. It is the same everywhere in the first round, and then
        v_t ~ |u - v_{t-1} s|,  u the direction of the server's last update,
    so that the row changes from round to round, most where the update did not follow it. If the update has the row's
    very direction (to 1e-6), v stays.

    c: the row's length in multiples of the honest mean's, in the beginning.
    window: after so many rounds the adversary counts in how many coordinates the total update of the window has the
        sign of s, of those that moved. If that is significantly more than half (one-sided binomial test by the normal
        approximation, p < 0.01), the attack gets through, and c is divided by 0.7. Otherwise c is multiplied by 0.7.
        It stays between 0.5 and a million.
    The state is s, v, c, and the parameters of the last round and of the window's beginning. If nobody tells the
    adversary the parameters, v and c stay as they are.

    Differences: in the paper the adversary knows no honest row, and c multiplies the length of the last update. The
    paper only lowers c (not below 0.5 in its released code), here c also grows; it starts at 8 there, too. Its windows
    have 50 rounds, here 10, because runs here are short. Its code counts a coordinate that did not move by the sign of
    the parameter.
    """

    c: float = registry.positive(8.0)
    window: int = registry.count(10)

    name = "persistent"
    aliases = ("poisonedfl",)
    summary = "one random sign vector in all rounds, longer or shorter by what got through"
    paper = "Xie, Fang, Gong 2024 (PoisonedFL)"

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        state = context.state
        signs = kept_signs(context, honest[0]).double()
        update = last_update(context)
        v = state.get("magnitudes", normalized(torch.ones_like(signs)))
        if update is not None:
            changed = (update - v * signs).abs()
            v = normalized(changed) if float(torch.linalg.vector_norm(changed)) > _SAME else v
        state["magnitudes"] = v
        mean, scale = to_unit_scale((context.moments or CachedMoments(honest)).moments.mean)
        length = self._adapted(signs, context) * float(torch.linalg.vector_norm(mean))
        return repeat(finite(v * signs * length * scale, honest.dtype), f)

    def _adapted(self, signs: Tensor, context: AttackContext) -> float:
        """Return c, which changes after each window, and count the round."""
        state = context.state
        rounds, c = int(state.get("rounds", 0)), float(state.get("c", self.c))
        if context.parameters is not None and rounds % self.window == 0:
            if "start" in state:
                total = (state["start"].double() - context.parameters.double()).sign()
                moved, excess = int(total.count_nonzero()), float((total * signs).sum())
                # agreeing - moved/2 = excess/2, in multiples of the deviation sqrt(moved)/2
                changed = c / _STEP if excess > _SIGNIFICANT * moved**0.5 else c * _STEP
                c = changed if _LEAST <= changed <= _MOST else c
            state["start"] = context.parameters.clone()
        state.update({"rounds": torch.tensor(rounds + 1), "c": torch.tensor(c, dtype=torch.float64)})
        return c
