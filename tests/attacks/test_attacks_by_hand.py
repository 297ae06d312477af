"""Single attacks: numbers computed by hand, and what each attack achieves."""

from __future__ import annotations

import math

import pytest
import torch
from attack_oracles import deviations
from attack_rounds import context_for, send
from strategies import DTYPES, SCALES, normal
from torch import Tensor

from gyroscope import Config
from gyroscope._core.errors import InfeasibleError
from gyroscope.attacks import (
    Alternate,
    AntiCGE,
    ByzMean,
    Drop,
    Empire,
    EmpireStrict,
    Equivocate,
    FangKrum,
    FangTrimmedMean,
    Gaussian,
    Hidden,
    Little,
    Mimic,
    MinMax,
    MinSum,
    Rare,
    SignFlip,
    SignGuardAttack,
    Stale,
    Stranger,
)
from gyroscope.attacks.little import z_factor
from gyroscope.rules import Average, Bulyan, Krum, Median, Rule

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])
TWO = torch.tensor([[1.0, 5.0], [3.0, 5.0]])


# ------------------------------------------------------------------------------------------------ little


@by_dtype
@pytest.mark.parametrize("scale", [*SCALES, 1e-22, 1e25], ids=str)
def test_littles_deviation_is_precise_at_every_scale(dtype: torch.dtype, scale: float) -> None:
    """Squares of float32 values below 1e-19 or above 1e19 leave its range: they must not decide the deviation."""
    honest = (normal(6, 9, seed=8) * scale).to(dtype)
    honest -= honest.mean(dim=0)
    right = torch.tensor(deviations(honest.tolist()), dtype=torch.float64)
    got = -send(Little(factor=1.0), honest, 1).double()[0]
    assert torch.allclose(got, right, rtol=1e-5, atol=0)


def test_little_by_hand() -> None:
    assert send(Little(factor=2.0), TWO, 2).tolist()[0] == pytest.approx([2 - 2 * math.sqrt(2), 5.0])
    assert send(Little(factor=2.0, sign=1), TWO, 2).tolist()[0] == pytest.approx([2 + 2 * math.sqrt(2), 5.0])


def test_little_of_one_honest_row_is_that_row() -> None:
    honest = torch.tensor([[1.0, -5.0]])
    for attack in (Little(), Little(factor="auto"), Little(sign="auto")):
        assert send(attack, honest, 1, declared_f=0).tolist() == honest.tolist()


@pytest.mark.parametrize(
    ("n", "f", "z"),
    [
        (51, 12, 0.3612),  # s = 14 of 39: Phi^-1(25/39)
        (51, 24, 1.4462),  # s = 2 of 27: Phi^-1(25/27)
        (50, 24, 1.4261),  # floor(50/2 + 1) = 26 as well: s = 2 of 26, Phi^-1(24/26)
        (5, 1, 0.0),
        (4, 1, -0.4307),
    ],
)
def test_z_is_the_original_papers(n: int, f: int, z: float) -> None:
    assert z_factor(n, f) == pytest.approx(z, abs=1e-4)
    honest = torch.arange(n - f, dtype=torch.float64).unsqueeze(1)
    sent = float(send(Little(factor="z"), honest, f)[0, 0])
    assert sent == pytest.approx(float(honest.mean() - z_factor(n, f) * honest.std()))


@pytest.mark.parametrize(("n", "f"), [(51, 26), (4, 3), (2, 1)])
def test_training_does_not_start_if_there_is_no_z(n: int, f: int) -> None:
    with pytest.raises(InfeasibleError, match=f"n = {n} and f = {f}.*little:factor=1.5"):
        Config(attack="alternate:attack=(little:factor=z)", workers=n, byzantine=f, declared_byzantine=0).resolve()


def test_the_worse_of_both_signs() -> None:
    """A median of skewed values has more room on one side."""
    honest = torch.tensor([[0.0], [0.1], [0.2], [5.0], [6.0], [7.0], [8.0]])
    rule = Median()
    reached = {}
    for sign in (-1, 1, "auto"):
        row = send(Little(factor=1.0, sign=sign), honest, 2, rule=rule)[0]  # type: ignore[arg-type]
        reached[sign] = float((rule(torch.cat([honest, row.expand(2, -1)]), 2).vector - honest.mean()).abs())
    assert reached[-1] != reached[1] and reached["auto"] == max(reached.values())


# ------------------------------------------------------------------------------------------------ empire


def test_empire_by_hand() -> None:
    honest = torch.tensor([[1.0, -2.0], [3.0, -2.0]])
    assert send(Empire(), honest, 2)[1].tolist() == pytest.approx([-0.2, 0.2])
    assert send(Empire(factor=1.0), honest, 1).tolist() == [[0.0, 0.0]]
    assert send(Empire(sign=1), honest, 1)[0].tolist() == pytest.approx([4.2, -4.2])


def test_empire_is_sign_flip_with_a_shifted_factor_and_its_strict_form() -> None:
    honest = normal(5, 8, seed=1)
    flipped = send(SignFlip(scale=0.1), honest, 1)
    assert torch.allclose(send(Empire(factor=1.1), honest, 1), flipped, atol=1e-15)
    assert torch.allclose(send(EmpireStrict(epsilon=0.1), honest, 1), flipped, atol=1e-15)


@pytest.mark.parametrize("rule", [Krum(), Krum(m=1), Median(), Bulyan()], ids=str)
def test_the_strict_forms_search_turns_the_aggregate_round_as_far_as_a_grid_does(rule: Rule) -> None:
    for seed in range(4):
        honest = normal(9, 30, seed) + 0.05  # much noise, so that rules can be turned

        def product(epsilon: float | str, honest: Tensor = honest) -> float:
            row = send(EmpireStrict(epsilon), honest, 2, rule=rule)[0]  # type: ignore[arg-type]
            return float(rule(torch.cat([honest, row.expand(2, -1)]), 2).vector @ honest.mean(dim=0))

        grid = min(product(2 ** (place / 4)) for place in range(-16, 25))
        assert product("auto") <= grid + 0.05 * abs(grid)


def test_the_strict_form_wins_against_the_average_with_enough_epsilon() -> None:
    honest = normal(6, 5, seed=1) + 1
    for epsilon, wins in ((2.9, False), (3.1, True)):  # (n - f)/f = 3
        row = send(EmpireStrict(epsilon), honest, 2, rule=Average())[0]
        product = Average()(torch.cat([honest, row.expand(2, -1)]), 2).vector @ honest.mean(dim=0)
        assert bool(product < 0) == wins


# ------------------------------------------------------------------------------ within honest distances


@pytest.mark.parametrize("direction", ["std", "sign", "mean"])
@by_dtype
def test_min_max_and_min_sum_are_as_far_out_as_their_bounds_allow(direction: str, dtype: torch.dtype) -> None:
    honest = (normal(9, 40, seed=2) + 0.3).to(dtype)
    table = torch.cdist(honest.double(), honest.double())
    for attack, measure, bound in (
        (MinMax(direction), lambda away: away.max(), table.max()),  # type: ignore[arg-type]
        (MinSum(direction), lambda away: away.square().sum(), table.square().sum(dim=1).max()),  # type: ignore[arg-type]
    ):
        row = send(attack, honest, 2)[0].double()
        reached = measure((honest.double() - row).norm(dim=1))
        assert float(reached / bound) == pytest.approx(1, abs=1e-5)


def test_min_sum_is_the_stricter_of_both() -> None:
    honest = normal(9, 40, seed=2)
    lengths = [float((send(attack, honest, 2)[0] - honest.mean(dim=0)).norm()) for attack in (MinSum(), MinMax())]
    assert 0 < lengths[0] < lengths[1]


# -------------------------------------------------------------------------------------------------- Krum


@pytest.mark.parametrize(
    "attack", [FangKrum(), FangKrum(search="largest"), Hidden(), Hidden(coordinate="all")], ids=str
)
@pytest.mark.parametrize("rule", [Krum(m=1), Krum(m=1, squared=True), Krum(m=1, neighbours="n-f-1")], ids=str)
def test_the_configured_krum_chooses_the_attack_on_krum(attack: FangKrum | Hidden, rule: Krum) -> None:
    honest = normal(9, 60, seed=4) + 0.1
    row = send(attack, honest, 4, rule=rule)[0]
    assert torch.equal(rule(torch.cat([honest, row.expand(4, -1)]), 4).vector, row)


@pytest.mark.parametrize("rule", [Krum(m=1), Krum(m=1, squared=True)], ids=str)
def test_a_little_more_and_krum_would_not_choose_it(rule: Krum) -> None:
    honest = normal(9, 60, seed=4) + 0.1
    mean = honest.mean(dim=0)
    for attack, origin in ((Hidden(), mean), (FangKrum(search="largest"), torch.zeros_like(mean))):
        row = send(attack, honest, 4, rule=rule)[0]
        more = origin + (row - origin) * (1 + 1e-5)
        assert not torch.equal(rule(torch.cat([honest, more.expand(4, -1)]), 4).vector, more)


def test_fangs_largest_lambda_is_between_the_halved_one_and_twice_that() -> None:
    honest = normal(9, 60, seed=4) + 0.1
    halved, largest = (float(send(FangKrum(search=way), honest, 4)[0].abs().max()) for way in ("halving", "largest"))  # type: ignore[arg-type]
    assert halved <= largest < 2 * halved


def test_the_hidden_coordinate_grows_with_the_square_root_of_the_dimension() -> None:
    lengths = []
    for d in (100, 10_000):
        honest = normal(20, d, seed=1)
        row = send(Hidden(), honest, 5, rule=Krum(m=1))[0]
        away = (row - honest.mean(dim=0)).abs()
        assert float(away[:-1].max()) < 1e-12
        lengths.append(float(away[-1]))
    assert lengths[1] / lengths[0] == pytest.approx(10, rel=0.2) and lengths[0] > 3


def test_a_hidden_coordinate_that_does_not_exist() -> None:
    with pytest.raises(InfeasibleError, match="coordinate 7, but there are only 5"):
        send(Hidden(coordinate=7), normal(4, 5, seed=1), 1)


def test_hidden_searches_against_the_configured_rule() -> None:
    """The median does not look at distances: what Krum lets pass is not what harms it most."""
    honest = normal(9, 50, seed=3)
    by_rule = [float(send(Hidden(gamma="auto"), honest, 2, rule=rule)[0, -1]) for rule in (Krum(m=1), Bulyan(m=1))]
    assert abs(by_rule[0] - by_rule[1]) > 1e-3


# ----------------------------------------------------------------------------------------- other targets


def test_fang_against_the_trimmed_mean_is_beyond_all_honest_values_and_within_b() -> None:
    honest = normal(7, 200, seed=5) + 0.4
    sign = honest.sum(dim=0).sign()
    rows = send(FangTrimmedMean(b=3), honest, 4)
    low, high = honest.amin(dim=0), honest.amax(dim=0)
    assert bool(torch.where(sign > 0, rows <= low, rows >= high).all())
    extreme = torch.where(sign > 0, low, high)
    factors = rows / extreme
    assert bool(((factors >= 1 / 3) & (factors <= 3)).all()) and not torch.equal(rows[0], rows[1])


@by_dtype
def test_cge_would_keep_all_rows_of_the_attack_on_it(dtype: torch.dtype) -> None:
    for seed in range(5):
        honest = normal(9, 20, seed, dtype)
        rows = torch.cat([honest, send(AntiCGE(), honest, 3)])
        kept = rows.double().norm(dim=1).argsort(stable=True)[: 12 - 3].tolist()
        assert {9, 10, 11} <= set(kept)
        limit = sorted(honest.double().norm(dim=1).tolist())[9 - 3]
        assert float(rows[-1].double().norm()) == pytest.approx(limit, rel=1e-5)
        shortest = honest[honest.double().norm(dim=1).argsort()[: 9 - 3]].mean(dim=0)
        assert float(torch.nn.functional.cosine_similarity(rows[-1], shortest, dim=0)) == pytest.approx(-1, abs=1e-5)


@pytest.mark.parametrize("f", [1, 2, 5])
def test_byzmean_makes_the_mean_of_all_rows_the_inner_attacks(f: int) -> None:
    honest = normal(7, 6, seed=1)
    rows = send(ByzMean(Little(factor=2.0)), honest, f)
    target = send(Little(factor=2.0), honest, 1)[0]
    assert torch.allclose(torch.cat([honest, rows]).mean(dim=0), target, atol=1e-12)
    assert sum(torch.equal(row, target) for row in rows) == f // 2


def test_the_attack_on_signguard_has_the_means_shares_of_signs_and_the_median_norm() -> None:
    honest = normal(7, 500, seed=1).round()
    mean = honest.mean(dim=0)
    row = send(SignGuardAttack(), honest, 2)[0]
    for sign in (-1, 0, 1):
        assert int((row.sign() == sign).sum()) == int((mean.sign() == sign).sum())
    assert float(row.norm()) == pytest.approx(float(honest.norm(dim=1).median()))
    assert abs(float(torch.nn.functional.cosine_similarity(row, mean, dim=0))) < 0.2


# ------------------------------------------------------------------------------------------------- mimic


def test_mimic_finds_a_worker_that_differs_and_stays_with_it() -> None:
    """Workers 1 and 3 lean to opposite sides: one of them is repeated, after the warm-up whatever the rows then are."""
    attack, state = Mimic(warmup=8), {}  # type: ignore[var-annotated]
    for step in range(12):
        honest = normal(6, 40, seed=step)
        for worker, way in ((1, -8.0), (3, 8.0)):
            honest[worker, 7] += way if step < 8 else 0.0
        rows = send(attack, honest, 2, step=step, state=state)
        if step >= 7:
            assert set(state) == {"worker"} and int(state["worker"]) in (1, 3)
            assert torch.equal(rows, honest[int(state["worker"])].expand(2, -1))


def test_mimic_of_a_worker_that_does_not_exist_does_not_start() -> None:
    with pytest.raises(InfeasibleError, match="honest worker 11, but those are numbered from 0 to 10"):
        Config(attack="mimic:worker=11", workers=13, byzantine=2).resolve()


# ---------------------------------------------------------------------------------------- over the rounds


def test_stale_replays_the_mean_of_some_rounds_ago_and_keeps_no_more_state_than_it_needs() -> None:
    state: dict[str, Tensor] = {}
    means = []
    for step in range(9):
        honest = normal(4, 3, seed=step)
        means.append(honest.mean(dim=0))
        rows = send(Stale(delay=3), honest, 2, step=step, state=state)
        assert torch.allclose(rows, means[max(0, step - 3)].expand(2, -1), atol=1e-15)
    assert len(state) <= 4


def test_drop_sends_nothing_or_by_chance_an_honest_row() -> None:
    honest = normal(4, 3, seed=1)
    assert bool(send(Drop(), honest, 2).isnan().all())
    missing = torch.stack([send(Drop(chance=0.3), honest, 5, seed=seed).isnan().all(dim=1) for seed in range(200)])
    assert float(missing.double().mean()) == pytest.approx(0.3, abs=0.05)
    own = context_for(honest, 5).own_gradients()
    rows = send(Drop(chance=0.3), honest, 5, seed=1)
    assert torch.equal(rows[~rows.isnan().any(dim=1)], own[~rows.isnan().any(dim=1)])


def test_alternate_is_honest_and_byzantine_in_turn() -> None:
    honest = normal(5, 4, seed=1)
    for step in range(12):
        rows = send(Alternate(SignFlip(), period=3), honest, 2, step=step)
        own = context_for(honest, 2, step=step).own_gradients()
        assert torch.equal(rows, send(SignFlip(), honest, 2) if step % 6 >= 3 else own)


def test_rare_attacks_are_rare() -> None:
    honest = normal(5, 4, seed=1)
    attacked = [
        torch.equal(send(Rare(SignFlip(), chance=0.1), honest, 2, seed=seed), send(SignFlip(), honest, 2))
        for seed in range(300)
    ]
    assert sum(attacked) / 300 == pytest.approx(0.1, abs=0.05)


def test_momentum_at_the_workers_is_accumulated_also_while_they_attack() -> None:
    asked = []

    def own(flipped: bool) -> Tensor:
        asked.append(flipped)
        return torch.zeros(2, 4)

    honest = normal(5, 4, seed=1)
    for placement, times in (("workers", 8), ("server", 4)):
        asked.clear()
        for step in range(8):
            Alternate(period=2)(honest, 2, step=step, momentum=placement, compute_gradients=own)
        assert asked == [False] * times


def test_a_stranger_is_any_of_its_list_and_each_keeps_its_own_state() -> None:
    attack = Stranger((Mimic(warmup=3), Mimic(warmup=4), SignFlip()))
    state: dict[str, Tensor] = {}
    for step in range(30):
        send(attack, normal(5, 4, seed=step), 2, seed=step, step=step, state=state)
    assert set(state) == {"mimic:warmup=3/worker", "mimic:warmup=4/worker"}


def test_equivocation_sends_every_second_server_the_mirror_image() -> None:
    honest = normal(5, 4, seed=1)
    first, second, third = (send(Equivocate(Little()), honest, 2, server=server) for server in range(3))
    assert torch.equal(first, send(Little(), honest, 2)) and torch.equal(first, third)
    assert torch.allclose((first + second) / 2, honest.mean(dim=0).expand(2, -1), atol=1e-12)


@by_dtype
def test_gaussian_has_its_deviation_and_differs_from_worker_to_worker(dtype: torch.dtype) -> None:
    rows = send(Gaussian(std=3.0), torch.zeros(2, 20_000, dtype=dtype), 2, seed=1).double()
    assert float(rows.std()) == pytest.approx(3, rel=0.02) and abs(float(rows.mean())) < 0.1
    assert abs(float(torch.corrcoef(rows)[0, 1])) < 0.05
    other = send(Gaussian(std=3.0), torch.zeros(2, 20_000, dtype=dtype), 2, seed=2).double()
    assert not torch.equal(rows, other)


@pytest.mark.parametrize("attack", [MinMax(), MinSum()])
@pytest.mark.parametrize(
    "honest", [[[3e38, 1.0], [-3e38, 0.0]], [[3e38, 1.0], [-3e38, 0.0], [3e38, 2.0]]], ids=["two", "three"]
)
def test_rows_within_a_bound_on_distances_stay_finite_for_huge_ones(
    attack: MinMax | MinSum, honest: list[list[float]]
) -> None:
    """Their standard deviation is beyond float32."""
    rows = attack(torch.tensor(honest), 2)
    assert rows.isfinite().all() and rows[0, 0] < -1e38
