"""`persistent` and `coupled`: attacks that read the server's last update off the parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from attack_rounds import send
from strategies import DTYPES, normal
from torch import Tensor

from gyroscope import Config
from gyroscope.attacks import Attack, Coupled, Persistent
from gyroscope.rules import Average, CenteredClipping, Rule
from gyroscope.runs.training import Run
from gyroscope.simulation.round import play_round
from gyroscope.simulation.tasks import TASKS

D = 400
State = dict[str, Tensor]


def play(attack: Attack, rounds: int, update: Callable[[Tensor, Tensor], Tensor]) -> tuple[list[Tensor], State]:
    """Return the rows of so many rounds, after each of which the model moves by -0.1 update(row, signs)."""
    parameters, state, sent = normal(1, D, seed=7)[0], {}, []
    for step in range(rounds):
        rows = send(attack, normal(6, D, seed=step) + 0.5, 2, seed=step, step=step, state=state, parameters=parameters)
        assert torch.equal(rows[0], rows[1])
        sent.append(rows[0])
        parameters = parameters - 0.1 * update(rows[0], state["signs"])
    return sent, state


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


# ------------------------------------------------------------------------------------------- persistent


def test_all_rows_have_the_signs_that_were_drawn_first_and_c_times_the_means_length() -> None:
    sent, state = play(Persistent(c=3.0), 8, lambda row, signs: normal(1, D, seed=int(1000 * row.norm()))[0])
    for step, row in enumerate(sent):
        assert bool((row * state["signs"] >= 0).all()) and set(state["signs"].tolist()) == {-1.0, 1.0}
        assert float(row.norm()) == pytest.approx(3 * float((normal(6, D, seed=step) + 0.5).mean(dim=0).norm()))
    assert torch.allclose(sent[0].abs(), sent[0].abs().mean().expand(D)) and float(sent[1].abs().std()) > 0


@pytest.mark.parametrize(
    ("what", "update", "factor"),
    [
        ("everything gets through", lambda row, signs: row, 0.7**-3),
        ("60 % of the coordinates follow", lambda row, signs: signs * (1 - 2 * (torch.arange(D) % 5 < 2)), 0.7**-3),
        ("54 % follow, which may be chance", lambda row, signs: signs * (1 - 2 * (torch.arange(D) % 50 < 23)), 0.7**3),
        ("nothing gets through", lambda row, signs: normal(1, D, seed=4)[0], 0.7**3),
        ("the update is the opposite", lambda row, signs: -row, 0.7**3),
        ("nothing moves", lambda row, signs: torch.zeros(D), 0.7**3),
        ("ten coordinates move, all with s", lambda row, signs: signs * (torch.arange(D) < 10), 0.7**-3),
    ],
)
def test_c_grows_if_the_update_follows_and_shrinks_otherwise(
    what: str, update: Callable[[Tensor, Tensor], Tensor], factor: float
) -> None:
    sent, state = play(Persistent(window=4), 15, update)  # three windows end, at rounds 4, 8 and 12
    assert float(state["c"]) == pytest.approx(8 * factor), what
    assert bool(sent[-1].isfinite().all())


def test_c_stays_between_a_half_and_a_million() -> None:
    _, state = play(Persistent(window=1), 12, lambda row, signs: -row)
    assert 0.5 <= float(state["c"]) < 0.5 / 0.7
    _, state = play(Persistent(c=1e5, window=1), 12, lambda row, signs: row)
    assert 0.7e6 < float(state["c"]) <= 1e6


def test_coordinates_that_did_not_follow_get_more() -> None:
    """The update follows the first half only: it has that part of the row's direction in excess, and lacks the rest."""
    sent, _ = play(Persistent(), 2, lambda row, signs: row * (torch.arange(D) < D // 2))
    first, second = sent[1][: D // 2].abs(), sent[1][D // 2 :].abs()
    # u = sqrt(2/d) in the first half, v = 1/sqrt(d): the ratio of |u - v| and v is sqrt(2) - 1.
    assert torch.allclose(first / second, torch.full_like(first, math.sqrt(2) - 1))


def test_if_the_update_follows_exactly_the_row_keeps_its_direction() -> None:
    sent, _ = play(Persistent(), 5, lambda row, signs: row)
    assert all(cosine(row, sent[0]) == pytest.approx(1) for row in sent)


# ---------------------------------------------------------------------------------------------- coupled


def test_the_perturbation_is_orthogonal_to_the_last_update_and_hardly_changes() -> None:
    updates: list[Tensor] = []

    def update(row: Tensor, signs: Tensor) -> Tensor:
        updates.append(normal(1, D, seed=100 + len(updates))[0])
        return updates[-1]

    sent, state = play(Coupled(z=2.0), 6, update)
    for step, row in enumerate(sent):
        honest = normal(6, D, seed=step) + 0.5
        away = row - honest.mean(dim=0)
        assert abs(cosine(away, updates[step - 1] if step else honest.mean(dim=0))) < 1e-12
        assert cosine(away, state["signs"]) > 0.9
        assert float(away.norm()) == pytest.approx(
            2 * float((honest - honest.mean(dim=0)).square().sum(dim=1).mean().sqrt())
        )


@pytest.mark.parametrize(("location", "angle"), [(1.0, 180.0), (0.0, 135.0), (0.25, 90.0)])
def test_place_and_angle_are_those_of_the_parameters(location: float, angle: float) -> None:
    update = normal(1, D, seed=3)[0]
    sent, _ = play(Coupled(location=location, angle=angle), 2, lambda row, signs: update)
    mean = (normal(6, D, seed=1) + 0.5).mean(dim=0)
    reference = update / update.norm() * mean.norm()
    away = sent[1] - location * mean - (1 - location) * reference
    assert cosine(away, reference) == pytest.approx(math.cos(math.radians(angle)), abs=1e-12)


def test_where_the_model_does_not_move_or_is_not_known_the_reference_is_the_mean() -> None:
    sent, _ = play(Coupled(angle=180.0), 2, lambda row, signs: torch.zeros(D))
    honest = normal(6, D, seed=1) + 0.5
    assert cosine(sent[1] - honest.mean(dim=0), honest.mean(dim=0)) == pytest.approx(-1)
    alone = Coupled(angle=180.0)(honest, 2)[0]
    assert cosine(alone - honest.mean(dim=0), honest.mean(dim=0)) == pytest.approx(-1)


@pytest.mark.parametrize("rule", [Average(), CenteredClipping()], ids=str)
def test_auto_moves_the_rule_farther_than_any_z_of_a_grid(rule: Rule) -> None:
    honest = normal(8, D, seed=1) + 0.5

    def moved(z: float | Literal["auto"]) -> float:
        rows = torch.cat([honest, send(Coupled(z=z), honest, 3, rule=rule)])
        return float((rule(rows, 3).vector - honest.mean(dim=0)).norm())

    assert moved("auto") >= 0.99 * max(moved(2.0 ** (place / 4)) for place in range(-16, 25))


# ------------------------------------------------------------------------------------------------- both


@pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
@pytest.mark.parametrize("spec", ["persistent:window=1", "coupled", "coupled:z=auto"])
def test_rows_are_finite_at_the_ends_of_the_range(spec: str, dtype: torch.dtype) -> None:
    for scale in (1e-40, 3e38, torch.finfo(dtype).max):
        honest = normal(5, 7, seed=3)
        honest = (honest / honest.abs().max() * scale).to(dtype)
        state: State = {}
        for step in range(3):
            assert bool(send(spec, honest, 2, step=step, state=state).isfinite().all())


def test_in_a_run_the_persistent_attack_steers_the_average() -> None:
    """And the attack's own view of the update is that of the run: c grows only if both have the same sign."""
    digits = TASKS["digits"]().load()
    config = Config(
        rule="average", attack="persistent:window=3", workers=9, byzantine=2, declared_byzantine=0, lr="0.01"
    )
    run = Run(config.resolve(), digits)
    for step in range(7):
        play_round(run.round_config, run.round_state, step, lr=0.01)
    assert float(run.round_state.adversary["c"]) == pytest.approx(8 / 0.7**2)
