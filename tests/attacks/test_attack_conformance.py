"""What every attack in the table must do, whatever it sends."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest
import torch
from attack_oracles import ATTACK_ORACLES, Round, oracle
from attack_rounds import context_for, own_gradients, parameters_at, send
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import ATTACK_SPECS, DTYPES, SCALES, matrices, normal, strided
from torch import Tensor

from gyroscope import attacks
from gyroscope._core.errors import ConfigError, GyroscopeError, InfeasibleError, RowsError
from gyroscope.attacks import ATTACKS, Attack, Gaussian, SignFlip, parse

# Their rows are the outcome of a search against the rule: other tests compare them with a fine grid.
SEARCHED = [spec for spec in ATTACK_SPECS if "auto" in spec or spec.startswith("searched")]
by_name = pytest.mark.parametrize("name", ATTACKS)
by_spec = pytest.mark.parametrize("spec", ATTACK_SPECS)
by_finite_spec = pytest.mark.parametrize("spec", [spec for spec in ATTACK_SPECS if parse(spec).finite])
by_formula = pytest.mark.parametrize("spec", [spec for spec in ATTACK_SPECS if spec not in SEARCHED])
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["f32", "f64"])


def feasible(spec: str, h: int, f: int) -> bool:
    """`little:factor=z` does not exist for every (n, f)."""
    try:
        parse(spec).check_feasible(h + f, f)
    except InfeasibleError:
        return False
    return True


def bits(rows: Tensor) -> Tensor:
    """For comparison bit by bit, NaN included."""
    return rows.contiguous().view(torch.int32 if rows.dtype == torch.float32 else torch.int64)


# ------------------------------------------------------------------------------------------- the entries


@by_name
def test_an_attack_describes_itself(name: str) -> None:
    kind = ATTACKS[name]
    assert kind.name == name and kind.summary and kind.paper and kind.__doc__
    assert kind() == kind() and hash(kind()) == hash(kind())
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().anything = 1  # type: ignore[attr-defined]


def test_every_attack_has_an_oracle() -> None:
    assert set(ATTACK_ORACLES) == set(ATTACKS)


@by_spec
def test_the_representation_builds_the_attack_again(spec: str) -> None:
    assert eval(repr(parse(spec)), {kind.__name__: kind for kind in ATTACKS.values()}) == parse(spec)


@by_spec
def test_the_text_builds_the_attack_again(spec: str) -> None:
    assert parse(str(parse(spec))) == parse(spec) and str(parse(str(parse(spec)))) == str(parse(spec))


def test_an_unknown_attack_names_the_nearest() -> None:
    with pytest.raises(GyroscopeError, match="did you mean 'little'"):
        attacks.make("litle")


# ----------------------------------------------------------------------------- shape, dtype, determinism


@by_spec
@by_dtype
@pytest.mark.parametrize(("h", "f", "d"), [(5, 2, 3), (2, 1, 1), (1, 1, 4), (3, 3, 40), (9, 4, 8193)])
def test_shape_and_dtype(spec: str, dtype: torch.dtype, h: int, f: int, d: int) -> None:
    if feasible(spec, h, f):
        rows = send(spec, normal(h, d, seed=d, dtype=dtype), f)
        assert rows.shape == (f, d) and rows.dtype == dtype and rows.device.type == "cpu"
    else:
        with pytest.raises(InfeasibleError, match=f"n = {h + f} and f = {f}"):
            send(spec, normal(h, d, seed=d, dtype=dtype), f)


@by_spec
@given(data=st.data())
def test_the_honest_rows_are_neither_changed_nor_aliased(spec: str, data: st.DataObject) -> None:
    honest = data.draw(matrices(6))
    before = honest.clone()
    rows = send(spec, honest, 2)
    assert torch.equal(honest, before)
    assert rows.untyped_storage().data_ptr() != honest.untyped_storage().data_ptr()


@by_spec
def test_a_single_honest_row_is_not_aliased(spec: str) -> None:
    honest = normal(1, 5, seed=1)
    if feasible(spec, 1, 1):
        rows = send(spec, honest, 1, declared_f=0)
        assert rows.shape == (1, 5) and rows.untyped_storage().data_ptr() != honest.untyped_storage().data_ptr()


@by_finite_spec
@given(data=st.data())
def test_finite_honest_rows_give_finite_byzantine_rows(spec: str, data: st.DataObject) -> None:
    h, f = data.draw(st.sampled_from([(1, 1), (2, 1), (2, 3), (5, 2)]))
    honest = data.draw(matrices(h))
    if feasible(spec, h, f):
        assert send(spec, honest, f, step=data.draw(st.integers(0, 40))).isfinite().all()


@by_finite_spec
@by_dtype
def test_large_and_small_honest_rows_give_finite_byzantine_rows(spec: str, dtype: torch.dtype) -> None:
    """Also where the square of a value would not fit in its dtype."""
    for scale in (*SCALES, 1e25, 1e35, *([1e140, 1e-140] if dtype == torch.float64 else [])):
        honest = (normal(5, 7, seed=3) * scale).to(dtype)
        assert send(spec, honest, 2).isfinite().all()


@by_finite_spec
@by_dtype
def test_rows_that_are_all_the_same_or_all_zero_give_finite_byzantine_rows(spec: str, dtype: torch.dtype) -> None:
    for row in (torch.zeros(4), torch.tensor([0.1, -0.3, 0.0, 7.7])):
        for h in (1, 2, 5):
            if feasible(spec, h, 1):
                assert send(spec, row.to(dtype).expand(h, -1).clone(), 1, declared_f=0).isfinite().all()


@by_spec
def test_the_same_generator_gives_the_same_bits(spec: str) -> None:
    honest = normal(7, 100, seed=2, dtype=torch.float32)
    assert torch.equal(bits(send(spec, honest, 3, seed=5)), bits(send(spec, honest.clone(), 3, seed=5)))


@by_spec
def test_only_the_given_generator_is_drawn_from(spec: str) -> None:
    state = torch.get_rng_state()
    send(spec, normal(7, 10, seed=2), 3)
    assert torch.equal(torch.get_rng_state(), state)


@by_spec
def test_only_the_state_passes_from_round_to_round_and_it_holds_tensors(spec: str) -> None:
    """A new object with a copy of the state sends what the old object sends: so a resumed run continues exactly."""
    one, state, others = parse(spec), {}, {}  # type: ignore[var-annotated]
    for step in range(5):
        honest = normal(6, 9, seed=step)
        rows = send(one, honest, 2, step=step, seed=step, state=state)
        copies = {name: value.clone() for name, value in others.items()}
        again = send(spec, honest, 2, step=step, seed=step, state=copies)
        assert torch.equal(bits(rows), bits(again))
        others = copies
        assert all(isinstance(value, Tensor) for value in state.values()) and set(state) == set(copies)


@by_formula
@given(data=st.data())
def test_the_layout_in_memory_does_not_matter(spec: str, data: st.DataObject) -> None:
    honest = data.draw(matrices(5, kind="normal", dtype=torch.float64))
    rows = send(spec, honest, 2)
    for _, same in strided(honest):
        again = send(spec, same, 2)
        assert torch.allclose(again, rows, rtol=1e-6, atol=1e-9 * float(honest.abs().max()), equal_nan=True)


# ----------------------------------------------------------------------------------------------- formulas


def rounds_of(history: list[Tensor], f: int, seed: int, server: int) -> list[Round]:
    return [
        Round(
            honest=honest.tolist(),
            f=f,
            step=step,
            seed=seed + step,
            own=own_gradients(honest, f, step, flipped=False).tolist(),
            flipped=own_gradients(honest, f, step, flipped=True).tolist(),
            declared_f=context_for(honest, f).declared_f,
            dtype=honest.dtype,
            server=server,
            parameters=parameters_at(honest, step).tolist(),
        )
        for step, honest in enumerate(history)
    ]


@by_formula
@given(data=st.data())
def test_equals_its_formula(spec: str, data: st.DataObject) -> None:
    """In the last of a few rounds, in all of which the attack was carried out."""
    attack = parse(spec)
    h, f = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    assume(feasible(spec, h, f))
    first = data.draw(matrices(h))
    count, seed, server = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 99)), data.draw(st.integers(0, 1))
    history = [first * (1 + step) for step in range(count)]
    right = oracle(attack, rounds_of(history, f, seed, server))
    assume(right is not None)
    assert right is not None
    state: dict[str, Tensor] = {}
    for step, honest in enumerate(history):
        rows = send(attack, honest, f, seed=seed + step, step=step, state=state, server=server).double()
    expected = torch.tensor(right, dtype=torch.float64)
    # Little's deviation of rows around 10,000 is what float32 leaves of it; the mean's rounding is the measure.
    magnitude = max(float(history[-1].abs().max()), float(expected.nan_to_num(0, 0, 0).abs().max()))
    searched = 1e-8 if re.search("krum|chain", str(attack)) else 0.0
    rounding = 64 * max(torch.finfo(first.dtype).eps, searched) * magnitude
    assert torch.allclose(rows, expected, rtol=0, atol=rounding, equal_nan=True)


# ------------------------------------------------------------------------------------------ wrong input


@by_name
@pytest.mark.parametrize("f", [0, -1])
def test_an_attack_needs_a_byzantine_worker(name: str, f: int) -> None:
    with pytest.raises(ConfigError, match=f"at least one Byzantine worker, got f = {f}"):
        ATTACKS[name]()(torch.ones(3, 2), f, context_for(torch.ones(3, 2), 1))


@pytest.mark.parametrize("f", [True, 1.5, "2"], ids=repr)
def test_f_is_a_whole_number_and_no_bool(f: object) -> None:
    for kind in ATTACKS.values():
        with pytest.raises(ConfigError):
            kind()(torch.ones(3, 2), f, context_for(torch.ones(3, 2), 1))  # type: ignore[arg-type]


@by_name
def test_wrong_rows_raise_a_rows_error(name: str) -> None:
    for wrong in (torch.ones(3), torch.ones(3, 2, dtype=torch.int64), torch.ones(0, 2), torch.ones(3, 0)):
        with pytest.raises(RowsError):
            ATTACKS[name]()(wrong, 1, context_for(torch.ones(3, 2), 1))


WRONG = {
    "little:factor": [math.nan, math.inf, -math.inf, True, "automatic", "", None],
    "little:sign": [0, 2, True, "both", None],
    "empire:factor": [math.nan, math.inf, True, "z", None],
    "empire-strict:epsilon": [0, -1.0, math.nan, math.inf, True, "z", None],
    "min-max:direction": ["stdev", None, 1],
    "min-sum:direction": ["stdev", None, 1],
    "fang-krum:search": ["smallest", None],
    "fang-krum:threshold": [0, 1, -1, True, None],
    "fang-trimmed-mean:b": [1, 0.5, math.inf, math.nan, True, None],
    "hidden:gamma": [math.nan, math.inf, True, "bulyan", None],
    "hidden:coordinate": [0.5, True, "last", None],
    "hidden:sign": [0, True, "auto"],
    "mimic:worker": [-1, 0.5, True, "all", None],
    "mimic:warmup": [0, 1.5, True, None],
    "sign-flip:scale": [0, -1.0, math.nan, math.inf, True, "1", None],
    "gaussian:std": [0, -1.0, math.nan, math.inf, True, "1", None],
    "stale:delay": [0, 1.5, True, None],
    "stale:source": ["median", None],
    "drop:chance": [0, 1.1, True, None],
    "rare:chance": [0, 1.1, True, None],
    "rare:attack": [None, "", 3, "litle", ()],
    "alternate:period": [0, 1.5, True, None],
    "alternate:attack": [None, "", 3, "litle", "little/empire"],
    "stranger:attacks": [None, "", (), 3, "little/litle"],
    "byzmean:attack": [None, "", "litle:factor=1"],
    "persistent:c": [0, -1.0, math.nan, True, "auto", None],
    "persistent:window": [0, 1.5, True, None],
    "coupled:location": [-0.1, 1.1, True, "mean", None],
    "coupled:angle": [89, 181, True, None],
    "coupled:z": [0, -1.0, math.inf, True, "z", None],
    "decoy:distance": [0, -1.0, math.inf, True, "far", None],
    "decoy:attack": [None, "", "little/empire"],
    "equivocate:attack": [None, ""],
    "foresight:attack": [None, "", "little/empire"],
}


@pytest.mark.parametrize(
    ("parameter", "value"), [(key, value) for key, values in WRONG.items() for value in values], ids=repr
)
def test_an_invalid_parameter_is_an_error_that_names_it(parameter: str, value: object) -> None:
    name, _, field = parameter.partition(":")
    with pytest.raises(GyroscopeError) as caught:
        ATTACKS[name](**{field: value})
    assert field in str(caught.value) or "attack" in str(caught.value)
    assert repr(value) in str(caught.value) or str(value).rpartition("/")[2].partition(":")[0] in str(caught.value)


@pytest.mark.parametrize(("kind", "parameter"), [(SignFlip, "scale"), (Gaussian, "std")], ids=["sign-flip", "gaussian"])
def test_scale_and_std_are_positive_numbers(kind: type[Attack], parameter: str) -> None:
    with pytest.raises(ConfigError, match=f"{parameter} of .* must be a positive, finite number"):
        kind(**{parameter: -1})
