"""An attack without a simulation around it: `Little()(honest, f)`, with keywords for what it may know."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from attack_rounds import own_gradients
from strategies import ATTACK_SPECS, normal
from torch import Tensor

import gyroscope as gy
from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.attacks import ATTACKS, Attack, AttackContext, Little, parse
from gyroscope.rules import Krum, Median

HONEST = normal(9, 30, seed=1, dtype=torch.float32)
NEEDS_GRADIENTS = {"label-flip", "alternate", "rare"}
"""The attacks that with their defaults, in the first round, need gradients at the Byzantine workers' own data."""
KNOWN = {
    "rule": "krum",
    "compute_gradients": lambda flipped: own_gradients(HONEST, 3, 0, flipped),
}


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(nan=7.0), other.nan_to_num(nan=7.0))


@pytest.mark.parametrize("name", [name for name in ATTACKS if name not in {*NEEDS_GRADIENTS, "searched"}])
def test_an_attack_needs_nothing_but_the_honest_rows(name: str) -> None:
    before = HONEST.clone()
    rows = ATTACKS[name]()(HONEST, 3)
    assert rows.shape == (3, 30) and rows.dtype == HONEST.dtype and torch.equal(HONEST, before)
    assert same(rows, ATTACKS[name]()(HONEST, 3)), "the same call gives the same rows"
    context = AttackContext(declared_f=3, generator=torch.Generator().manual_seed(0))
    assert same(rows, ATTACKS[name]()(HONEST, 3, context))


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_has_enough_with_keywords(name: str) -> None:
    assert ATTACKS[name]()(HONEST, 3, **KNOWN).shape == (3, 30)


def missing(attack: Attack) -> str:
    """Return the keyword that the attack asks for if it is called without any."""
    with pytest.raises(ConfigError) as caught:
        attack(HONEST, 3)
    message = str(caught.value)
    assert str(attack) in message, "the error names the attack"
    (keyword,) = (keyword for keyword in KNOWN if f"call attack(honest, f, {keyword}=" in message)
    return keyword


def test_a_search_needs_a_rule_to_search_against() -> None:
    assert missing(ATTACKS["searched"]()) == "rule"


@pytest.mark.parametrize("name", sorted(NEEDS_GRADIENTS))
def test_an_attack_that_needs_gradients_names_the_keyword(name: str) -> None:
    attack = ATTACKS[name](**({"chance": 0.001} if name == "rare" else {}))
    assert missing(attack) == "compute_gradients"


@pytest.mark.parametrize("spec", ["drop:chance=0.5", "stale:source=own"])
def test_a_variant_that_needs_gradients_names_the_keyword(spec: str) -> None:
    assert missing(parse(spec)) == "compute_gradients"


@pytest.mark.parametrize("spec", [spec for spec in ATTACK_SPECS if "auto" in spec])
def test_a_search_against_a_rule_names_the_keyword(spec: str) -> None:
    assert missing(parse(spec)) == "rule"
    assert parse(spec)(HONEST, 3, rule="krum").shape == (3, 30)


def test_the_error_about_a_missing_rule_shows_the_call() -> None:
    with pytest.raises(ConfigError) as caught:
        Little(factor="auto")(HONEST, 3)
    assert str(caught.value) == (
        "the attack little:factor=auto searches for the rows that do most damage to a rule, and no rule is given: call "
        "attack(honest, f, rule='krum')"
    )


def test_an_inner_attack_that_lacks_knowledge_is_named() -> None:
    with pytest.raises(ConfigError, match="the attack little:factor=auto searches"):
        parse("byzmean:attack=(little:factor=auto)")(HONEST, 3)


def test_a_rule_is_a_spec_or_an_object() -> None:
    wanted = Little(factor="auto")(HONEST, 2, AttackContext(rule=Krum(m=1), declared_f=2))
    for rule in ("krum:m=1", Krum(m=1), Krum(m=1, f=2), "krum:m=1,f=2"):
        assert torch.equal(Little(factor="auto")(HONEST, 2, rule=rule), wanted)
    with pytest.raises(ConfigError, match="the rule must be a spec"):
        Little(factor="auto")(HONEST, 2, rule=Krum)


def test_the_rule_is_told_f_or_what_it_was_built_with_or_declared_f() -> None:
    def sent(**known: object) -> Tensor:
        return Little(factor="auto")(HONEST, 3, **known)

    assert torch.equal(sent(rule="median"), sent(rule="median", declared_f=3))
    assert torch.equal(sent(rule="krum:f=1"), sent(rule="krum", declared_f=1))
    assert not torch.equal(sent(rule="krum"), sent(rule="krum", declared_f=1))


def test_a_seed_or_a_generator() -> None:
    noise = gy.attacks.Gaussian()
    one = noise(HONEST, 2, seed=5)
    assert torch.equal(one, noise(HONEST, 2, generator=torch.Generator().manual_seed(5)))
    assert torch.equal(noise(HONEST, 2), noise(HONEST, 2, seed=0)) and not torch.equal(one, noise(HONEST, 2))
    with pytest.raises(ConfigError, match="a seed and a generator"):
        noise(HONEST, 2, seed=5, generator=torch.Generator())


def test_state_passes_from_call_to_call() -> None:
    state: dict[str, Tensor] = {}
    first = gy.attacks.Stale(delay=1)(HONEST, 2, step=0, state=state)
    second = gy.attacks.Stale(delay=1)(2 * HONEST, 2, step=1, state=state)
    assert torch.equal(first, second) and state


def test_a_misspelt_keyword_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown keyword 'rul' of attack 'little': did you mean 'rule'\?"):
        Little()(HONEST, 2, rul="krum")
    with pytest.raises(UnknownNameError, match=r"did you mean 'declared_f'\?"):
        Little()(HONEST, 2, declaredf=2)


def test_a_context_and_keywords_are_an_error() -> None:
    with pytest.raises(ConfigError, match="is given a context and the keywords step"):
        Little()(HONEST, 2, AttackContext(declared_f=2), step=3)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("name", ATTACKS)
def test_a_list_of_gradients_is_as_good_as_a_tensor(name: str, kind: type) -> None:
    gradients = kind(row.clone() for row in HONEST)
    rows = ATTACKS[name]()(gradients, 3, **KNOWN)
    assert same(rows, ATTACKS[name]()(HONEST, 3, **KNOWN))
    assert all(torch.equal(gradient, row) for gradient, row in zip(gradients, HONEST, strict=True))


@dataclasses.dataclass(frozen=True)
class InPlace(Attack):
    """An attack of a third party that writes to the honest rows."""

    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        honest.mul_(-1)
        return honest[:f]


def test_a_third_partys_attack_cannot_change_the_honest_rows() -> None:
    before = HONEST.clone()
    gradients = list(HONEST.clone())
    assert torch.equal(InPlace()(HONEST, 2), -before[:2]) and torch.equal(HONEST, before)
    InPlace()(gradients, 2)
    assert torch.equal(torch.stack(gradients), before)


def test_wrong_input_is_a_gyroscope_error() -> None:
    for honest, f in ((HONEST, 0), (HONEST, 1.5), ([], 1), ([1.0, 2.0], 1), ([HONEST[0], HONEST[1, :3]], 1)):
        with pytest.raises(GyroscopeError):
            Little()(honest, f)  # type: ignore[arg-type]


def test_the_rows_of_an_attack_alone_fit_a_rule() -> None:
    rows = torch.cat([HONEST, gy.attacks.Empire()(HONEST, 3)])
    assert Median(f=3)(rows).vector.isfinite().all()
