"""Foresight: the rows that the rule sees, not those that are sent, are the inner attack's."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from attack_rounds import context_for
from strategies import normal
from torch import Tensor

from gyroscope import Config
from gyroscope.attacks import Attack, Foresight, Gaussian, Little, Nan, SignFlip, parse
from gyroscope.runs import training
from gyroscope.simulation import tasks

HONEST, PAST = normal(6, 4, seed=1), 3 * normal(8, 4, seed=2)
DIGITS = tasks.parse("digits").load()


def shown(attack: Attack, received: object, seed: int = 0) -> Tensor:
    """Return all rows as the rule sees them, of 6 honest and 2 Byzantine workers."""
    context = dataclasses.replace(context_for(HONEST, 2, seed=seed), preview=received)  # type: ignore[arg-type]
    return context.shown(torch.cat([HONEST, attack(HONEST, 2, context)]))


@pytest.mark.parametrize("spec", ["little", "empire", "min-max", "little:factor=auto", "label-flip", "mimic"])
def test_the_rule_sees_the_inner_attack_on_the_accumulated_rows(spec: str) -> None:
    rows = shown(Foresight(parse(spec)), lambda rows: rows + PAST)
    honest = HONEST + PAST[:6]
    context = context_for(honest, 2)
    own = context_for(HONEST, 2).compute_gradients
    assert own is not None
    context = dataclasses.replace(context, compute_gradients=lambda flipped: own(flipped) + PAST[6:])
    torch.testing.assert_close(rows[6:], parse(spec)(honest, 2, context), rtol=1e-9, atol=1e-9)
    assert spec == "label-flip" or not torch.allclose(shown(parse(spec), lambda rows: rows + PAST)[6:], rows[6:])


@pytest.mark.parametrize("inner", [SignFlip(), Gaussian(), Little()], ids=str)
def test_it_aims_again_where_the_row_changes_what_the_server_does(inner: Attack) -> None:
    def switching(rows: Tensor) -> Tensor:
        return rows + PAST if bool(rows[6:].any()) else rows

    # The first attempt must leave no trace in the state or the generator.
    got, wanted = (shown(Foresight(inner), server, seed=3) for server in (switching, lambda rows: rows + PAST))
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)


def test_rows_that_are_not_finite_stay_so() -> None:
    rows = shown(Foresight(Nan()), lambda rows: rows + PAST)
    assert all(math.isnan(value) for value in rows[6:].flatten().tolist())


@pytest.mark.parametrize("attack", ["little", "empire"])
def test_against_momentum_kept_by_the_server_it_is_the_attack_on_momentum_at_the_workers(attack: str) -> None:
    config = Config(rule="krum", byzantine=5, steps=15, evaluate_every=15)
    kept = training.train(dataclasses.replace(config, momentum="server-kept", attack=f"foresight:attack={attack}"))
    known = training.train(dataclasses.replace(config, momentum="workers", attack=attack))
    for name, tensor in kept.model.state_dict().items():
        torch.testing.assert_close(tensor, known.model.state_dict()[name], rtol=1e-3, atol=1e-4)
    unknowing = training.train(dataclasses.replace(config, momentum="server-kept", attack=attack))
    same = all(
        torch.allclose(tensor, known.model.state_dict()[name], rtol=1e-3, atol=1e-4)
        for name, tensor in unknowing.model.state_dict().items()
    )
    assert same == (attack == "empire"), "a share of the mean is the same share of what is accumulated; std is not"
