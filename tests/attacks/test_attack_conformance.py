"""What every attack in the table must do, whatever it sends."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import ATTACK_ORACLES
from strategies import ATTACK_SPECS, DTYPES, SCALES, matrices, normal, strided
from torch import Tensor

from gyroscope import attacks
from gyroscope.attacks import ATTACKS, Attack, Empire, Gaussian, Little, SignFlip, View, parse
from gyroscope.errors import ConfigError, GyroscopeError, RowsError
from gyroscope.rules import Median

by_name = pytest.mark.parametrize("name", ATTACKS)
by_spec = pytest.mark.parametrize("spec", ATTACK_SPECS)
by_finite_spec = pytest.mark.parametrize("spec", [spec for spec in ATTACK_SPECS if spec not in ("nan", "inf")])
by_formula = pytest.mark.parametrize(
    "spec", [spec for spec in ATTACK_SPECS if spec.partition(":")[0] in ATTACK_ORACLES and "auto" not in spec]
)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


def view(seed: int = 0, f: int = 2) -> View:
    return View(rule=Median(), declared_f=f, generator=torch.Generator().manual_seed(seed))


def bits(rows: Tensor) -> Tensor:
    """For comparison bit by bit, NaN included."""
    return rows.contiguous().view(torch.int32 if rows.dtype == torch.float32 else torch.int64)


# ------------------------------------------------------------------------------------------- the entries


@by_name
def test_an_attack_describes_itself(name: str) -> None:
    kind = ATTACKS[name]
    assert kind.name == name and kind.summary and kind.paper
    assert kind() == kind() and hash(kind()) == hash(kind())
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().anything = 1  # type: ignore[attr-defined]


@by_spec
def test_the_representation_builds_the_attack_again(spec: str) -> None:
    assert eval(repr(parse(spec)), {kind.__name__: kind for kind in ATTACKS.values()}) == parse(spec)


def test_an_unknown_attack_names_the_nearest() -> None:
    with pytest.raises(GyroscopeError, match="did you mean 'little'"):
        attacks.make("litle")


# ----------------------------------------------------------------------------- shape, dtype, determinism


@by_spec
@by_dtype
@pytest.mark.parametrize(("h", "f", "d"), [(5, 2, 3), (2, 1, 1), (3, 3, 40), (9, 4, 8193)])
def test_shape_and_dtype(spec: str, dtype: torch.dtype, h: int, f: int, d: int) -> None:
    rule_f = min(f, (h + f - 1) // 2)
    rows = parse(spec)(normal(h, d, seed=d, dtype=dtype), f, view(f=rule_f))
    assert rows.shape == (f, d) and rows.dtype == dtype and rows.device.type == "cpu"


@by_spec
@given(data=st.data())
def test_the_honest_rows_are_neither_changed_nor_aliased(spec: str, data: st.DataObject) -> None:
    honest = data.draw(matrices(6))
    before = honest.clone()
    rows = parse(spec)(honest, 2, view())
    assert torch.equal(honest, before)
    assert rows.untyped_storage().data_ptr() != honest.untyped_storage().data_ptr()


@by_spec
def test_a_single_honest_row_is_not_aliased(spec: str) -> None:
    honest = normal(1, 5, seed=1)
    rows = parse(spec)(honest, 1, view(f=0))
    assert rows.shape == (1, 5) and rows.untyped_storage().data_ptr() != honest.untyped_storage().data_ptr()


@by_finite_spec
@given(data=st.data())
def test_finite_honest_rows_give_finite_byzantine_rows(spec: str, data: st.DataObject) -> None:
    assert parse(spec)(data.draw(matrices(5)), 2, view()).isfinite().all()


@by_finite_spec
@by_dtype
def test_large_and_small_honest_rows_give_finite_byzantine_rows(spec: str, dtype: torch.dtype) -> None:
    """Also where the square of a value would not fit in float32."""
    for scale in (*SCALES, 1e25, 1e35):
        honest = (normal(5, 7, seed=3) * scale).to(dtype)
        assert parse(spec)(honest, 2, view()).isfinite().all()


@by_spec
def test_the_same_generator_gives_the_same_bits(spec: str) -> None:
    honest = normal(7, 100, seed=2, dtype=torch.float32)
    assert torch.equal(bits(parse(spec)(honest, 3, view(5, f=3))), bits(parse(spec)(honest.clone(), 3, view(5, f=3))))


@by_spec
def test_only_the_given_generator_is_drawn_from(spec: str) -> None:
    state = torch.get_rng_state()
    parse(spec)(normal(7, 10, seed=2), 3, view(f=3))
    assert torch.equal(torch.get_rng_state(), state)


@by_formula
@given(data=st.data())
def test_the_layout_in_memory_does_not_matter(spec: str, data: st.DataObject) -> None:
    honest = data.draw(matrices(5, kind="normal", dtype=torch.float64))
    rows = parse(spec)(honest, 2, view())
    for _, same in strided(honest):
        again = parse(spec)(same, 2, view())
        assert torch.allclose(again, rows, rtol=1e-12, atol=1e-12 * float(honest.abs().max()), equal_nan=True)


# ----------------------------------------------------------------------------------------------- formulas


@by_formula
@given(data=st.data())
def test_equals_its_formula(spec: str, data: st.DataObject) -> None:
    attack = parse(spec)
    honest = data.draw(matrices(data.draw(st.integers(1, 8))))
    right = torch.tensor(ATTACK_ORACLES[attack.name](honest.tolist(), **vars(attack)), dtype=torch.float64)
    rows = attack(honest, 3, view()).double()
    # Little's deviation of rows around 10,000 is what float32 leaves of it; the mean's rounding is the measure.
    rounding = 64 * torch.finfo(honest.dtype).eps * float(honest.abs().max())
    for row in rows:
        assert torch.allclose(row, right, rtol=0, atol=rounding, equal_nan=True)


@by_dtype
@pytest.mark.parametrize("scale", [*SCALES, 1e-22, 1e25], ids=str)
def test_littles_deviation_is_precise_at_every_scale(dtype: torch.dtype, scale: float) -> None:
    """Squares of float32 values below 1e-19 or above 1e19 leave its range: they must not decide the deviation."""
    honest = (normal(6, 9, seed=8) * scale).to(dtype)
    honest -= honest.mean(dim=0)
    right = torch.tensor(oracle_deviation(honest), dtype=torch.float64)
    got = -Little(factor=1.0)(honest, 1, view()).double()[0]
    assert torch.allclose(got, right, rtol=1e-5, atol=0)


def oracle_deviation(honest: Tensor) -> list[float]:
    return [-value for value in ATTACK_ORACLES["little"](honest.tolist(), factor=1.0)]


def test_little_by_hand() -> None:
    honest = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    assert Little(factor=2.0)(honest, 2, view()).tolist()[0] == pytest.approx([2 - 2 * math.sqrt(2), 5.0])


def test_little_of_one_honest_row_is_that_row() -> None:
    honest = torch.tensor([[1.0, -5.0]])
    for factor in (1.5, "auto"):
        assert Little(factor=factor)(honest, 1, view(f=0)).tolist() == honest.tolist()  # type: ignore[arg-type]


def test_empire_by_hand() -> None:
    honest = torch.tensor([[1.0, -2.0], [3.0, -2.0]])
    assert Empire()(honest, 2, view())[1].tolist() == pytest.approx([-0.2, 0.2])
    assert Empire(factor=1.0)(honest, 1, view()).tolist() == [[0.0, 0.0]]


def test_empire_is_sign_flip_with_a_shifted_factor() -> None:
    honest = normal(5, 8, seed=1)
    flipped = SignFlip(scale=0.1)(honest, 1, view())
    assert torch.allclose(Empire(factor=1.1)(honest, 1, view()), flipped, atol=1e-15)


@by_dtype
def test_gaussian_has_its_deviation_and_differs_from_worker_to_worker(dtype: torch.dtype) -> None:
    rows = Gaussian(std=3.0)(torch.zeros(2, 20_000, dtype=dtype), 2, view(1)).double()
    assert float(rows.std()) == pytest.approx(3, rel=0.02) and abs(float(rows.mean())) < 0.1
    assert abs(float(torch.corrcoef(rows)[0, 1])) < 0.05
    other = Gaussian(std=3.0)(torch.zeros(2, 20_000, dtype=dtype), 2, view(2)).double()
    assert not torch.equal(rows, other)


# ------------------------------------------------------------------------------------------ wrong input


@by_name
@pytest.mark.parametrize("f", [0, -1])
def test_an_attack_needs_a_byzantine_worker(name: str, f: int) -> None:
    with pytest.raises(ConfigError, match=f"at least one Byzantine worker, got f = {f}"):
        ATTACKS[name]()(torch.ones(3, 2), f, view())


@pytest.mark.parametrize("f", [True, 1.5, "2"], ids=repr)
def test_f_is_a_whole_number_and_no_truth_value(f: object) -> None:
    for kind in ATTACKS.values():
        with pytest.raises(ConfigError):
            kind()(torch.ones(3, 2), f, view())  # type: ignore[arg-type]


@by_name
def test_wrong_rows_raise_a_rows_error(name: str) -> None:
    for wrong in (torch.ones(3), torch.ones(3, 2, dtype=torch.int64), torch.ones(0, 2), torch.ones(3, 0)):
        with pytest.raises(RowsError):
            ATTACKS[name]()(wrong, 1, view())


@pytest.mark.parametrize("kind", [Little, Empire], ids=["little", "empire"])
@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf, True, "automatic", "", None], ids=repr)
def test_the_factor_is_a_finite_number_or_auto(kind: type[Little | Empire], factor: object) -> None:
    with pytest.raises(ConfigError, match="factor"):
        kind(factor=factor)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "parameter"), [(SignFlip, "scale"), (Gaussian, "std")], ids=["sign-flip", "gaussian"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None], ids=repr)
def test_scale_and_std_are_positive_numbers(kind: type[Attack], parameter: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{parameter} of .* must be a positive number"):
        kind(**{parameter: value})
