"""Rules and attacks of third parties: what they cannot break, and the errors that their mistakes cause."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from gyroscope import Config, attacks, rules, train
from gyroscope._core.errors import ConfigError, InfeasibleError
from gyroscope.cli import main

HERE = __name__


@dataclasses.dataclass(frozen=True)
class InPlace(attacks.Attack):
    def rows(self, honest: Tensor, f: int, context: attacks.AttackContext) -> Tensor:
        honest.mul_(-1)
        return honest[:f]


@dataclasses.dataclass(frozen=True)
class OnACopy(attacks.Attack):
    def rows(self, honest: Tensor, f: int, context: attacks.AttackContext) -> Tensor:
        return -honest[:f]


@dataclasses.dataclass(frozen=True)
class OneVector(attacks.Attack):
    def rows(self, honest: Tensor, f: int, context: attacks.AttackContext) -> Tensor:
        return honest[0]


@dataclasses.dataclass(frozen=True)
class Bare(rules.Rule):
    def min_workers(self, f: int) -> int:
        return 2 * f + 1

    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rows.mean(dim=0)  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Scalar(Bare):
    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rules.Aggregate(rows.mean(), None)


@dataclasses.dataclass(frozen=True)
class OfTorch(Bare):
    extra: int = 0
    share: float = 0.5
    strict: bool = False
    tag: str = ""
    bound: float | None = 1.0

    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rules.Aggregate(rows @ rows, None)


@dataclasses.dataclass(frozen=True)
class Careless(attacks.Attack):
    def rows(self, honest: Tensor, f: int, context: attacks.AttackContext) -> Tensor:
        return context.state["never written"]


@dataclasses.dataclass(frozen=True)
class Broken(Bare):
    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        raise ArithmeticError("bad weather")


@dataclasses.dataclass(frozen=True)
class Boundless(rules.Rule):
    def aggregate(self, rows: Tensor, f: int) -> rules.Aggregate:
        return rules.Aggregate(rows[0].clone(), None)


class Undecorated(Bare):
    extra: int = 0
    name = "undecorated"
    unsupported: ClassVar = {"ties": "no reason"}


class Respelt(rules.Krum):
    m: int | None = 1


class Inherited(Bare):
    name: str = "inherited"  # type: ignore[misc]  # says no more than its base, so nothing is wrong


class UndecoratedStage(rules.Preaggregation):
    extra: int = 0

    def prepare(self, rows: Tensor, f: int, context: rules.RuleContext) -> rules.Prepared:
        return rules.Prepared(rows.clone(), None)


@dataclasses.dataclass(frozen=True)
class Harmless(attacks.Attack):
    pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Boundless, "the rule Boundless is not complete: it must implement min_workers(self, f)"),
        (rules.Rule, "the rule Rule is not complete: it must implement aggregate(self, rows, f)"),
        (Harmless, "the attack Harmless is not complete: it must implement rows(self, honest, f, context)"),
        (Undecorated, "the rule Undecorated has parameters (extra), but is no dataclass: write "
         "@dataclasses.dataclass(frozen=True) above the class"),
        (Respelt, "the rule Respelt has parameters (m)"),
        (UndecoratedStage, "the pre-aggregation UndecoratedStage has parameters (extra)"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)  # fmt: skip
def test_an_incomplete_class_is_an_error_that_says_what_to_write(kind: type, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        kind()
    assert words in str(caught.value)


def test_a_spec_of_an_incomplete_class_is_the_same_error() -> None:
    with pytest.raises(ConfigError, match="must implement min_workers"):
        rules.parse(f"{HERE}:Boundless")
    with pytest.raises(ConfigError, match=r"@dataclasses\.dataclass\(frozen=True\)"):
        rules.parse(f"{HERE}:Undecorated:extra=1")
    assert Inherited().min_workers(2) == 5


class Constructed(rules.Median):
    def __init__(self, tau: float = 1.0) -> None:
        super().__init__()


def test_a_parameter_of_an_own_constructor_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(ConfigError, match=r"takes tau in its own __init__: make it a field of a dataclass"):
        rules.parse(f"{HERE}:Constructed:tau=2")
    assert rules.parse(f"{HERE}:Constructed").min_workers(2) == 5


def test_the_error_says_how_to_freeze_a_dataclass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["import dataclasses", "from gyroscope import rules", "@dataclasses.dataclass", "class Mine(rules.Median):",
             "    extra: int = 0"]  # fmt: skip
    (tmp_path / "thawed_rules.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"write @dataclasses\.dataclass\(frozen=True\) above the class"):
        rules.parse("thawed_rules:Mine")


@pytest.mark.parametrize("momentum", ["workers", "server", "none"])
def test_an_attack_that_works_in_place_changes_nothing_that_honest_workers_send(momentum: str) -> None:
    common = {"rule": "median", "byzantine": 1, "momentum": momentum, "steps": 5}
    careless, careful = (train(Config(attack=f"{HERE}:{kind}", **common)) for kind in ("InPlace", "OnACopy"))
    assert careless.tables == careful.tables


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attack": f"{HERE}:OneVector", "byzantine": 5}, "must return f = 5 rows of d = 7510 values, got (7510,)"),
        ({"rule": f"{HERE}:Bare"}, "must return rules.Aggregate(vector, weight)"),
        ({"rule": f"{HERE}:Scalar"}, "got a vector of shape ()"),
    ],
)
def test_a_wrong_result_is_explained(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        train(Config(steps=2, **changes))  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_a_rule_that_says_little_of_itself_still_says_what_it_needs() -> None:
    with pytest.raises(InfeasibleError, match="Bare needs at least 5 workers for f = 2, got n = 3: lower f to 1"):
        Bare()(torch.randn(3, 4), f=2)


def test_an_error_in_the_middle_is_on_record(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        train(Config(rule=f"{HERE}:Broken", steps=3), out=tmp_path / "run")
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status == {"status": "failed", "step": 0, "reason": "ArithmeticError: bad weather"}


@pytest.mark.parametrize(
    ("options", "last"),
    [
        (["--rule", f"{HERE}:Broken"], f"the rule {HERE}:Broken raised this ArithmeticError"),
        (["--rule", f"{HERE}:OfTorch:extra=2"], f"the rule {HERE}:OfTorch:extra=2 raised this RuntimeError"),
        (["--attack", f"{HERE}:Careless", "--byzantine", "1"], f"the attack {HERE}:Careless raised this KeyError"),
    ],
)
def test_the_last_line_names_whose_code_raised(
    options: list[str], last: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["train", "--steps", "2", "--quiet", "--out", str(tmp_path / "run"), *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and last in said.splitlines()[-1]


def test_a_bug_of_gyroscope_s_own_is_no_fault_of_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyroscope.rules.base.check_f", lambda f: {}["lost"])  # `Rule` calls it
    with pytest.raises(KeyError, match="lost"):
        main(["train", "--steps", "2", "--quiet", "--out", str(tmp_path / "run"), "--rule", f"{HERE}:OfTorch"])


@pytest.mark.parametrize(
    ("parameter", "words"),
    [
        ("extra=2.5", "must be a whole number, got 2.5"),
        ("extra=true", "must be a whole number, got True"),
        ("share=much", "must be a number, got 'much'"),
        ("strict=1", "must be true or false, got 1"),
    ],
)
def test_a_parameter_has_the_plain_type_that_its_field_says(parameter: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"the {parameter.partition('=')[0]} of the rule '{HERE}:OfTorch' {words}"):
        rules.parse(f"{HERE}:OfTorch:{parameter}")
    given = rules.parse(f"{HERE}:OfTorch:extra=2,share=1,strict=true,tag=5,bound=none")
    assert given == OfTorch(extra=2, share=1, strict=True, tag=5, bound=None)  # type: ignore[arg-type]


def test_make_reads_a_spec_too() -> None:
    assert rules.make("krum:m=1") == rules.make("krum", m=1) == rules.Krum(m=1)
    assert attacks.make("little:factor=2") == attacks.Little(factor=2)
