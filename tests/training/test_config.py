"""The configuration: TOML and back, defaults of the task, and mistakes that are named before anything is written."""

from __future__ import annotations

import dataclasses
import inspect
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gyroscope as gy
from gyroscope import attacks, rules
from gyroscope._core.errors import ConfigError, InfeasibleError, UnknownNameError
from gyroscope.runs.schedule import Schedule
from gyroscope.simulation import tasks
from gyroscope.simulation.data import shards


@given(
    st.builds(
        gy.Config,
        steps=st.none() | st.integers(1, 10**6),
        seed=st.integers(-(2**62), 2**62),
        mu=st.none() | st.floats(0, 0.999),
        clip=st.none() | st.floats(1e-6, math.inf),
        l2=st.none() | st.floats(0, 1e6),
        nesterov=st.booleans(),
        data_dir=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        lr=st.none() | st.sampled_from(["0.5", "0.01,1500:0.001"]),
        byzantine=st.integers(0, 9),
    )
)
def test_a_configuration_reads_back_equal(config: gy.Config) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(config.to_toml(), encoding="utf-8")
        assert gy.Config.load(path) == config


@pytest.mark.parametrize("name", tasks.TASKS)
def test_what_is_left_out_comes_from_the_task(name: str) -> None:
    config = gy.Config(task=name).resolve()
    for field in dataclasses.fields(tasks.Defaults):
        assert getattr(config, field.name) == getattr(tasks.TASKS[name].defaults, field.name)
    assert gy.Config(task=name, steps=7, mu=0.5).resolve().steps == 7


def test_the_tasks_have_the_paper_s_settings() -> None:
    mnist, cifar = gy.Config(task="mnist").resolve(), gy.Config(task="cifar10").resolve()
    assert (mnist.workers, mnist.batch, mnist.clip, mnist.l2, mnist.mu, mnist.steps, mnist.evaluate_every) == (
        51, 83, 2, 1e-4, 0.9, 300, 5,
    )  # fmt: skip
    assert (cifar.workers, cifar.batch, cifar.clip, cifar.mu, cifar.steps, cifar.evaluate_every, cifar.lr) == (
        25, 50, 5, 0.99, 3000, 100, "0.01,1500:0.001",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"attack": "little"}, "nobody to carry it out"),
        ({"byzantine": 3}, "choose an attack"),
        ({"attack": "little", "byzantine": 23}, "must be honest"),
        ({"mu": 1.0}, "below 1"),
        ({"mu": -0.1}, "at least 0"),
        ({"momentum": "none", "nesterov": True}, "needs a momentum"),
        ({"rule": "krum:m=99"}, "at most"),
        ({"rule": "krum:m=many"}, "whole number"),
        ({"rule": "krum:m"}, "key=value"),
        ({"attack": "little:factor=much", "byzantine": 1}, "factor"),
        ({"task": "cifar10:width=0"}, "width"),
        ({"task": "custom"}, "only in Python"),
    ],
)
def test_what_does_not_fit_together_is_a_config_error(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        gy.Config(**values).resolve()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"steps": 0}, "at least 1"),
        ({"batch": -1}, "at least 1"),
        ({"byzantine": -1}, "at least 0"),
        ({"clip": 0}, "positive"),
        ({"clip": math.nan}, "nan"),
        ({"l2": -1}, "at least 0"),
        ({"l2": math.inf}, "finite"),
        ({"seed": "1"}, "whole number"),
        ({"seed": 1.5}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"nesterov": 1}, "true or false"),
        ({"rule": 3}, "text"),
        ({"mu": "0.9"}, "a number"),
        ({"mu": [0.9]}, "a number"),
        ({"task": None}, "text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_a_config_error_that_names_the_key(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        gy.Config(**values)  # type: ignore[arg-type]
    assert next(iter(values)) in str(raised.value)


@pytest.mark.parametrize(
    ("values", "near"),
    [
        ({"rule": "krun"}, "krum"),
        ({"rule": "krum:neighbors=n-f-1"}, "neighbours"),
        ({"attack": "litle", "byzantine": 1}, "little"),
        ({"attack": "little:faktor=2", "byzantine": 1}, "factor"),
        ({"task": "minst"}, "mnist"),
        ({"task": "cifar10:widht=1"}, "width"),
        ({"momentum": "worker"}, "workers"),
        ({"l2_form": "half_squared"}, "half-squared"),
    ],
)
def test_an_unknown_name_gets_the_nearest_one_suggested(values: dict[str, object], near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{near}'"):
        gy.Config(**values).resolve()  # type: ignore[arg-type]


def test_an_unknown_key_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'byzantine'"):
        gy.Config.from_mapping({"byzantin": 3})


def test_an_unknown_keyword_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match="unknown configuration key 'byzantin': did you mean 'byzantine'"):
        gy.Config(byzantin=2)  # type: ignore[call-arg]
    assert list(inspect.signature(gy.Config).parameters)[:2] == ["task", "steps"], "help still shows the fields"


@pytest.mark.parametrize(
    ("values", "spec"),
    [
        ({"rule": rules.Krum(m=1)}, "krum:m=1"),
        ({"rule": rules.NNM() >> rules.Bucketing(s=3) >> rules.Median()}, "nnm+bucketing:s=3+median"),
        ({"attack": attacks.Alternate(attacks.Little(factor=2), 5)}, "alternate:attack=(little:factor=2),period=5"),
        ({"shards": shards.Dirichlet(alpha=0.1)}, "dirichlet:alpha=0.1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_objects_become_their_specs(values: dict[str, object], spec: str) -> None:
    config = gy.Config(**values)  # type: ignore[arg-type]
    assert [getattr(config, name) for name in values] == [spec]
    assert config == gy.Config.from_mapping({next(iter(values)): spec})


def test_an_object_that_no_spec_builds_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Local(rules.Median):
        pass

    with pytest.raises(ConfigError, match=r"rule .*Local\(even='lower'\) cannot be written down.* my_module:MyClass"):
        gy.Config(rule=Local())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"attack must be a spec or an object, got a class: write Little\(\)"):
        gy.Config(attack=attacks.Little)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "f", "says"),
    [("krum", 11, "lower f to 10"), ("bulyan", 6, "lower f to 5"), ("median", 12, "lower f to 11")],
)
def test_an_infeasible_number_is_an_error_before_anything_is_written(
    tmp_path: Path, rule: str, f: int, says: str
) -> None:
    with pytest.raises(InfeasibleError, match=says):
        gy.train(gy.Config(rule=rule, declared_byzantine=f), out=tmp_path / "deep" / "run")
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-1", "nan", "inf", "0.1,", "0.1,0.2", "5:0.1", "0.1,5:0.2,5:0.3", "0.1,9:0.2,5:0.3",
             "0.1,5:", "0.1,:0.2", "0.1,2.5:0.2", "0.1;5:0.2", "0.1,0:0.2", "0.1,-5:0.2"]
)  # fmt: skip
def test_a_bad_schedule_is_a_config_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        gy.Config(lr=text)
    assert repr(text) in str(raised.value)


def test_a_schedule_changes_at_its_steps() -> None:
    schedule = Schedule.parse(" 0.5, 10:0.1 ,20:0.02")
    assert [schedule.at(step) for step in (0, 9, 10, 19, 20, 999)] == [0.5, 0.5, 0.1, 0.1, 0.02, 0.02]


@given(st.floats(1e-30, 1e6))
def test_a_rate_given_as_a_number_keeps_its_value(rate: float) -> None:
    assert Schedule.parse(gy.Config(lr=rate).lr).at(0) == rate  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["gyroscope.attacks:Little", "os.path:sep", "no.such.module:Thing", ".x:y"])
def test_an_import_path_that_leads_to_no_rule_is_an_error_of_ours(spec: str) -> None:
    with pytest.raises(gy.GyroscopeError):
        gy.Config(rule=spec).resolve()
