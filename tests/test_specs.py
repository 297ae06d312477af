"""Specs such as `krum:m=1` and schedules such as `0.01,1500:0.001`: there and back, and every way to get them wrong."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import ATTACK_SPECS, RULE_SPECS

from gyroscope import attacks, rules
from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, GyroscopeError, UnknownNameError
from gyroscope.attacks import ATTACKS
from gyroscope.experiments import grid
from gyroscope.rules import RULES
from gyroscope.runs.config import Config
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards

TABLES: dict[str, Any] = {"rule": (RULES, rules), "attack": (ATTACKS, attacks)}
ENTRIES = [(kind, name) for kind, (table, _) in TABLES.items() for name in table]
by_entry = pytest.mark.parametrize(("kind", "name"), ENTRIES, ids=[name for _, name in ENTRIES])

numbers = st.integers(-10, 60) | st.floats(allow_nan=False, allow_infinity=False)
values = numbers | st.booleans() | st.none() | st.sampled_from(["auto", "lower", "mean", "n-f-2", "n-f-1"])


# ---------------------------------------------------------------------------------------- there and back


@by_entry
@given(data=st.data())
def test_the_text_of_anything_builds_it_again(kind: str, name: str, data: st.DataObject) -> None:
    table, module = TABLES[kind]
    fields = [field.name for field in dataclasses.fields(table[name]) if field.init]
    chosen = data.draw(st.lists(st.sampled_from(fields), unique=True)) if fields else []
    parameters = {}
    for key in chosen:  # a value that this parameter takes: most are refused, so several are tried
        for value in data.draw(st.lists(values, min_size=8, max_size=8)):
            try:
                table[name](**{key: value})
            except (GyroscopeError, TypeError):
                continue
            parameters[key] = value
            break
    try:
        thing = table[name](**parameters)
    except GyroscopeError:
        assume(False)
    assert module.parse(str(thing)) == thing == module.make(name, **parameters)
    assert str(module.parse(str(thing))) == str(thing)


@pytest.mark.parametrize("spec", RULE_SPECS)
def test_rule_specs_are_short(spec: str) -> None:
    assert str(rules.parse(spec)).partition(":")[0] == spec.partition(":")[0]
    assert rules.parse(str(rules.parse(spec))) == rules.parse(spec)


@pytest.mark.parametrize("spec", ATTACK_SPECS)
def test_attack_specs_survive_the_round_trip(spec: str) -> None:
    assert attacks.parse(str(attacks.parse(spec))) == attacks.parse(spec)


@by_entry
def test_defaults_are_not_spelled_out(kind: str, name: str) -> None:
    table, module = TABLES[kind]
    assert str(table[name]()) == name and module.parse(name) == table[name]()


def test_specs_by_hand() -> None:
    assert rules.parse("krum:m=1") == rules.make("krum", m=1) == rules.Krum(m=1)
    assert str(rules.Krum(m=1)) == "krum:m=1"
    assert str(rules.Bulyan(rescore=True, slack=0)) == "bulyan:rescore=true,slack=0"
    assert rules.parse(" bulyan: rescore = true , m = none ") == rules.Bulyan(rescore=True)
    assert attacks.parse("little:factor=auto") == attacks.Little(factor="auto")
    assert attacks.parse("sign-flip:scale=2").scale == 2  # type: ignore[attr-defined]
    assert rules.parse("krum:") == rules.Krum()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-3", -3),
        ("1.5", 1.5),
        ("1e-7", 1e-7),
        ("true", True),
        ("False", False),
        ("none", None),
        ("auto", "auto"),
        ("n-f-1", "n-f-1"),
        ("", ""),
    ],
)
def test_values_have_the_type_that_they_look_like(text: str, value: object) -> None:
    parsed = registry.parse_value(text)
    assert parsed == value and type(parsed) is type(value)


# ------------------------------------------------------------------------------------------------ mistakes


@by_entry
def test_a_misspelt_name_is_answered_with_the_nearest(kind: str, name: str) -> None:
    _, module = TABLES[kind]
    with pytest.raises(UnknownNameError, match=rf"unknown {kind} '{name}x': did you mean '{name}'\?.* Known: "):
        module.parse(name + "x")


@pytest.mark.parametrize(
    ("alias", "name"),
    [("alie", "little"), ("LIE", "little"), ("ALittleIsEnough", "little"), ("ipm", "empire"), ("FoE", "empire"),
     ("sf", "sign-flip"), ("SignFlipping", "sign-flip"), ("labelflip", "label-flip"), ("label_flipping", "label-flip"),
     ("minmax", "min-max"), ("Min_Sum", "min-sum"), ("fang-tm", "fang-trimmed-mean"), ("FangKrum", "fang-krum"),
     ("ROP", "coupled"), ("PoisonedFL", "persistent"),
     ("multi-krum", "krum"), ("MultiKrum", "krum"), ("rfa", "geometric-median"), ("gm", "geometric-median"),
     ("GeoMed", "geometric-median"), ("GeometricMedian", "geometric-median"), ("tm", "trimmed-mean"),
     ("cwtm", "trimmed-mean"), ("TrMean", "trimmed-mean"), ("cwmed", "median"), ("comed", "median"), ("CM", "median"),
     ("cc", "centered-clipping"), ("CClip", "centered-clipping"), ("FedAvg", "average"),
     ("NNM+cwtm", "nnm+trimmed-mean"), ("NearestNeighborMixing+ARC+cc", "nnm+arc+centered-clipping"),
     ("random:cwmed/rfa", "random:median/geometric-median"),
     ("stranger:attacks=alie/foe", "stranger:attacks=(little/empire)"),
     ("alternate:attack=(ALIE:factor=2),period=5", "alternate:attack=(little:factor=2),period=5")],
)  # fmt: skip
def test_the_names_of_the_literature_are_understood(alias: str, name: str) -> None:
    parse = attacks.parse if name.partition(":")[0] in ATTACKS else rules.parse
    assert parse(alias) == parse(name) and str(parse(alias)) == str(parse(name)) == name


@pytest.mark.parametrize(
    ("alias", "name", "parse"),
    [("FashionMNIST", "fashion-mnist", tasks.parse), ("fmnist", "fashion-mnist", tasks.parse),
     ("CIFAR-10:width=0.25", "cifar10:width=0.25", tasks.parse), ("extreme_niid", "sorted", shards.parse),
     ("gamma_similarity_niid:gamma=0.3", "similarity:gamma=0.3", shards.parse),
     ("dirichlet_niid:alpha=0.1", "dirichlet:alpha=0.1", shards.parse)],
)  # fmt: skip
def test_so_are_those_of_tasks_and_shardings(alias: str, name: str, parse: Any) -> None:
    assert parse(alias) == parse(name) and str(parse(alias)) == name


def test_a_run_has_one_name_whatever_its_configuration_calls_things() -> None:
    written = Config(task="Digits", rule="NNM+cwtm", attack="ALIE", shards="extreme-niid", byzantine=3, workers=11)
    plain = Config(rule="nnm+trimmed-mean", attack="little", shards="sorted", byzantine=3, workers=11)
    assert written.resolve() == plain.resolve()
    assert grid.fingerprint(written) == grid.fingerprint(plain)


def test_no_alias_means_two_things() -> None:
    for table in (RULES, rules.PREAGGREGATIONS, ATTACKS, tasks.TASKS, shards.SHARDINGS):
        names = [*table, *(alias for kind in table.values() for alias in kind.aliases)]
        plain = {name.replace("-", "").replace("_", "") for name in names}
        assert len(names) == len(plain) and all(name == name.lower() for name in names)
    with pytest.raises(UnknownNameError, match="did you mean 'alie'"):
        attacks.parse("aile")


def test_a_name_with_several_endings_is_answered_with_all_of_them() -> None:
    """Fang et al. made one attack on Krum and another on trimmed means: which one is meant is the user's to say."""
    with pytest.raises(UnknownNameError, match="did you mean 'fang-krum' or 'fang-trimmed-mean'"):
        attacks.parse("Fang")


@pytest.mark.parametrize("spec", ["non-iid", "Non_IID", "noniid:alpha=0.1"])
def test_the_opposite_of_a_name_is_not_answered_with_it(spec: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        shards.parse(spec)
    assert "did you mean" not in str(caught.value) and "dirichlet" in str(caught.value)


def test_a_misspelt_parameter_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'rescor' .*did you mean 'rescore'\?"):
        rules.parse("bulyan:rescor=true")
    with pytest.raises(UnknownNameError, match="Known: f"):
        rules.parse("average:m=1")
    with pytest.raises(UnknownNameError, match="it takes none"):
        attacks.parse("zero:m=1")
    with pytest.raises(UnknownNameError, match=r"did you mean 'factor'\?"):
        attacks.make("little", facto=1)


@pytest.mark.parametrize("spec", ["krum:m", "krum:=1", "krum:m=1,squared", "krum:1", "krum:m:1"])
def test_an_unreadable_parameter_is_a_config_error(spec: str) -> None:
    with pytest.raises(ConfigError, match="name:key=value"):
        rules.parse(spec)


@pytest.mark.parametrize("spec", ["krum:m=", "krum:m=x", "krum:m=1.5", "krum:m=true", "median:even=", "bulyan:slack=1"])
def test_a_value_of_the_wrong_kind_is_a_config_error(spec: str) -> None:
    with pytest.raises(ConfigError):
        rules.parse(spec)


@pytest.mark.parametrize("spec", ["little:factor=none", "little:factor=nan", "empire:factor=x", "gaussian:std=0"])
def test_an_attack_with_a_wrong_value_is_a_config_error(spec: str) -> None:
    with pytest.raises(ConfigError):
        attacks.parse(spec)


def test_a_parameter_given_twice_is_a_config_error() -> None:
    """One of both would be dropped in silence."""
    with pytest.raises(ConfigError, match="m"):
        rules.parse("krum:m=1,m=2")


@pytest.mark.parametrize("spec", ["", " ", ":", ":m=1"], ids=repr)
def test_a_spec_without_a_name_is_unknown(spec: str) -> None:
    with pytest.raises(UnknownNameError):
        rules.parse(spec)


# ------------------------------------------------------------------------------------------- import paths

THIRD_PARTY = '''
import dataclasses
from gyroscope.attacks import Attack
from gyroscope.rules import Aggregate, Rule

@dataclasses.dataclass(frozen=True)
class First(Rule):
    """The first row, times a factor."""

    factor: float = 1.0
    name = "first"
    summary = needs = paper = "-"

    def min_workers(self, f):
        return 1

    def aggregate(self, rows, f):
        return Aggregate(rows[0] * self.factor, None)

@dataclasses.dataclass(frozen=True)
class Ones(Attack):
    value: float = 1.0
    name = "ones"
    summary = "-"

    def rows(self, honest, f, context):
        return honest.new_full((f, honest.shape[1]), self.value)

def lasts(factor=1.0):
    return First(factor=factor)

NOTHING = 3
'''

_numbers = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The dotted name of a third party's module, new for each test so that no import is remembered."""
    package = f"third_party_{next(_numbers)}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "mine.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(tmp_path)
    return f"{package}.mine"


@pytest.fixture
def flat_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A single file beside the user's script: a name without a dot."""
    name = f"flat_third_party_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_third_partys_rule_is_found_by_its_import_path(module: str) -> None:
    rule = rules.parse(f"{module}:First:factor=2")
    assert rule(torch.ones(3, 2), 0).vector.tolist() == [2.0, 2.0]
    assert rules.make(f"{module}:First", factor=2) == rule
    assert rules.parse(str(rule)) == rule
    assert str(rules.parse(f"{module}:First")) == f"{module}:First"


def test_a_third_partys_attack_is_found_by_its_import_path(module: str) -> None:
    attack = attacks.parse(f"{module}:Ones:value=4")
    assert attack(torch.zeros(3, 2), 2).tolist() == [[4.0, 4.0]] * 2
    assert attacks.parse(str(attack)) == attack


def test_a_function_that_builds_a_rule_will_do(module: str) -> None:
    assert rules.parse(f"{module}:lasts:factor=3") == rules.parse(f"{module}:First:factor=3")
    with pytest.raises(ConfigError, match="cannot build rule"):
        rules.parse(f"{module}:lasts:fcator=3")


def test_a_third_partys_parameters_are_checked_too(module: str) -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'factor'\?"):
        rules.parse(f"{module}:First:facto=2")


def test_a_module_without_a_package_round_trips(flat_module: str) -> None:
    rule = rules.make(f"{flat_module}:First", factor=2.0)
    assert rules.parse(str(rule)) == rule


@pytest.mark.parametrize("path", ["nobodys.module:Rule", "./rules.py:Rule", ".relative:Rule", "torch.nn:NoSuchThing"])
def test_an_import_path_that_leads_nowhere_is_a_config_error(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot import rule"):
        rules.parse(path)


@pytest.mark.parametrize("attribute", ["NOTHING", "Ones", "dataclasses"])
def test_an_import_path_to_something_else_than_a_rule_is_a_config_error(module: str, attribute: str) -> None:
    with pytest.raises(ConfigError):
        rules.parse(f"{module}:{attribute}")


# ----------------------------------------------------------------------------------------------- schedules


def test_a_constant_schedule() -> None:
    for text in ("0.5", " 0.5 ", 0.5, "5e-1"):
        schedule = Schedule.parse(text)
        assert schedule.pieces == ((0, 0.5),) and schedule.at(0) == schedule.at(10**9) == 0.5
    assert Schedule.parse(1).at(0) == 1


def test_a_schedule_with_steps() -> None:
    schedule = Schedule.parse("0.01, 1500:0.001 ,2000:1e-4")
    assert schedule.pieces == ((0, 0.01), (1500, 0.001), (2000, 0.0001))
    steps = [0, 1, 1499, 1500, 1501, 1999, 2000, 10**6]
    assert [schedule.at(step) for step in steps] == [0.01, 0.01, 0.01, 0.001, 0.001, 0.001, 0.0001, 0.0001]
    assert str(schedule) == "0.01,1500:0.001,2000:0.0001"


@given(
    first=st.floats(1e-9, 1e3),
    rest=st.dictionaries(st.integers(1, 10**6), st.floats(1e-9, 1e3), max_size=4),
)
def test_the_text_of_a_schedule_reads_back_exactly(first: float, rest: dict[int, float]) -> None:
    schedule = Schedule(((0, first), *sorted(rest.items())))
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "fast",
        "0.1,",
        ",0.1",
        "0.1,0.2",  # which step?
        "0:0.1",  # the first piece has no step
        "5:0.1",
        "0.1,0:0.2",
        "0.1,-5:0.2",
        "0.1,10:0.2,10:0.3",  # steps must grow
        "0.1,10:0.2,5:0.3",
        "0.1,1.5:0.2",
        "0.1,x:0.2",
        "0.1,:0.2",
        "0.1,10:",
        "0.1,10:x",
        "0.1,5:10:0.2",
        "0",
        "-0.1",
        "0.1,10:0",
        "nan",
        "inf",
        "0.1;10:0.2",
        "True",
    ],
    ids=repr,
)
def test_a_schedule_that_cannot_be_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError):
        Schedule.parse(text)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, True], ids=repr)
def test_a_number_that_is_no_learning_rate_is_a_config_error(value: float) -> None:
    with pytest.raises(ConfigError):
        Schedule.parse(value)


def test_the_error_names_the_piece() -> None:
    with pytest.raises(ConfigError, match=r"cannot read '10:x' in the schedule '0.1,10:x'"):
        Schedule.parse("0.1,10:x")
    with pytest.raises(ConfigError, match=r"'5:0.3' is out of place"):
        Schedule.parse("0.1,10:0.2,5:0.3")


# ---------------------------------------------------------------------------------- specs inside of specs


def test_a_value_in_parentheses_keeps_its_commas() -> None:
    assert registry.split("a:x=(b:y=1,z=2),w=3") == ("a", {"x": "(b:y=1,z=2)", "w": 3})
    assert registry.split("a:x=(b:y=(c:z=1,v=2),u=3)") == ("a", {"x": "(b:y=(c:z=1,v=2),u=3)"})


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("b", ["b"]),
        ("(b)", ["b"]),
        ("(b:y=1,z=2)", ["b:y=1,z=2"]),
        ("b/c:x=1", ["b", "c:x=1"]),
        ("(b / c)", ["b", "c"]),
        ("(a)/(b)", ["(a)", "(b)"]),
        ("(b:x=(c/d)/e)", ["b:x=(c/d)", "e"]),
        ("my.module:Rule:x=1", ["my.module:Rule:x=1"]),
    ],
)
def test_specs_inside_of_a_value(text: str, pieces: list[str]) -> None:
    assert registry.inner(text) == pieces


@pytest.mark.parametrize("spec", ["a:x=(b", "a:x=b)", "a:x=)b(", "a:x=(b,y=1"])
def test_parentheses_that_do_not_match_are_an_error(spec: str) -> None:
    with pytest.raises(ConfigError, match="parentheses"):
        registry.split(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "alternate:attack=zero",
        "alternate:attack=nan,period=3",
        "alternate:attack=(little:factor=2,sign=1),period=3",
        "rare:attack=(alternate:attack=(little:factor=auto),period=3)",
        "stranger:attacks=(little:factor=2,sign=1/stranger:attacks=(inf/zero)/empire)",
    ],
)
def test_an_attack_inside_another_is_written_as_it_is_read(spec: str) -> None:
    assert str(attacks.parse(spec)) == spec


def test_parentheses_may_be_left_out_around_the_last_value_without_a_comma() -> None:
    plain = attacks.parse("alternate:period=3,attack=little:factor=2")
    assert str(plain) == "alternate:attack=(little:factor=2),period=3"
    assert str(attacks.parse("stranger:attacks=little:factor=2/nan")) == "stranger:attacks=(little:factor=2/nan)"


@pytest.mark.parametrize("rest", ["period=3", "sign=1"])
def test_whose_a_parameter_is_must_be_clear(rest: str) -> None:
    """It could be the inner attack's or the outer one's."""
    with pytest.raises(ConfigError, match="not clear whose") as caught:
        attacks.parse(f"alternate:attack=little:factor=2,{rest}")
    assert f"whose {rest} is" in str(caught.value)
    assert f"'alternate:attack=(little:factor=2),{rest}'" in str(caught.value)
    assert attacks.parse("alternate:attack=little,period=3") == attacks.Alternate(attacks.Little(), 3)
