"""From `krum:m=1` on the command line to `Krum(m=1)`, and back.

Rules, attacks and tasks are frozen dataclasses listed by name in an explicit table. A *spec* is the text form of one:
`name`, or `name:key=value,key=value`, or `my_package.my_module:MyRule:key=value` for one that is in no table.

A value may be a spec itself, and in parentheses if it has parameters: `alternate:attack=(little:factor=2),period=5`.
Several are divided by slashes: `stranger:attacks=(little:factor=2/empire/zero)`. A shell wants parentheses in quotes;
they may be left out around the last value if it holds no comma: `alternate:period=5,attack=little:factor=2`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from gyroscope._core.errors import ConfigError, UnknownNameError

T = TypeVar("T")
Factory = Callable[..., T]


def parse_value(text: str) -> int | float | bool | str | None:
    """`1` -> 1, `1.5` -> 1.5, `true` -> True, `none` -> None; anything else stays text."""
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def split(spec: str) -> tuple[str, dict[str, Any]]:
    """The name in a spec and its parameters."""
    name, _, rest = spec.strip().partition(":")
    attribute, _, parameters_of_import = rest.partition(":")
    if attribute.isidentifier():  # an import path, my_package.my_module:MyRule
        name, rest = f"{name}:{attribute}", parameters_of_import
    parameters: dict[str, Any] = {}
    items = [part for part in (part.strip() for part in split_outside(rest, ",", spec)) if part]
    for place, item in enumerate(items):
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"cannot read {item!r} in {spec!r}: parameters are written name:key=value,key=value")
        if place + 1 < len(items) and len(split_outside(value, "=")) > 1:
            clear = [*items[:place], f"{key}=({value})", *items[place + 1 :]]
            raise ConfigError(
                f"in {spec!r} it is not clear whose {items[place + 1]} is: put all that belongs to {key} in "
                f"parentheses, as in '{name}:{','.join(clear)}' (a shell wants the quotes)"
            )
        key = key.strip().replace("-", "_")
        if key in parameters:
            raise ConfigError(f"{key} stands twice in {spec!r}")
        parameters[key] = parse_value(value.strip())
    return name, parameters


def split_outside(text: str, separator: str, spec: str = "") -> list[str]:
    """The pieces between separators, of which those within parentheses do not count."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            break
        if character == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    if depth != 0:
        raise ConfigError(f"the parentheses in {spec or text!r} do not match")
    return pieces


def inner(text: str) -> list[str]:
    """The specs that a value consists of, without the parentheses around it: one, or several divided by slashes."""
    text = text.strip()
    pieces = split_outside(text, "/")
    if len(pieces) == 1 and text.startswith("(") and text.endswith(")"):
        pieces = split_outside(text[1:-1], "/", text)
    return [piece.strip() for piece in pieces]


def make(kind: str, base: type, table: Mapping[str, Factory[T]], name: str, parameters: Mapping[str, Any]) -> T:
    """Build the named entry of a table, of an installed package's entry point, or of an importable module."""
    factory = table.get(name) or _third_party(kind, table, name)
    if isinstance(factory, type) and issubclass(factory, base):
        check_class(kind, factory)
    known = _parameters(factory)
    for key in parameters:
        if known is not None and key not in known:
            raise UnknownNameError("parameter", key, known, of=f"{kind} {name!r}")
    try:
        made = factory(**parameters)
    except TypeError as problem:
        remedy = (
            "" if isinstance(factory, type) else f" ({name!r} is no class: write one, derived from {base.__qualname__})"
        )
        raise ConfigError(f"cannot build {kind} {name!r} from {dict(parameters)}: {problem}{remedy}") from problem
    if not isinstance(made, base):
        raise ConfigError(
            f"{name!r} is no {kind}: it makes a {type(made).__name__}, not derived from gyroscope's {base.__qualname__}"
        )
    return made


def text(thing: Any) -> str:
    """The shortest spec that builds the same rule, attack or task again."""
    kind = type(thing)
    # Whatever is not ours is found by its import path: its name may be in nobody's table.
    name = kind.name if kind.__module__.startswith("gyroscope.") else f"{kind.__module__}:{kind.__qualname__}"
    changed = [
        f"{field.name}={value_text(getattr(thing, field.name))}"
        for field in dataclasses.fields(thing)
        if field.init and getattr(thing, field.name) != field.default
    ]
    return name + (":" + ",".join(changed) if changed else "")


def value_text(value: object) -> str:
    """A parameter's value as it stands in a spec."""
    if isinstance(value, tuple):
        return "(" + "/".join(map(str, value)) + ")"
    if dataclasses.is_dataclass(value):
        spec = str(value)
        return f"({spec})" if "=" in spec else spec
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def check_class(kind: str, cls: type) -> None:
    """An error that says what somebody's own class lacks, where Python would say only that it cannot build it."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        wanted = (f"{name}({', '.join(inspect.signature(getattr(cls, name)).parameters)})" for name in missing)
        raise ConfigError(f"the {kind} {cls.__name__} is not complete: it must implement {' and '.join(wanted)}")
    if "__dataclass_fields__" in vars(cls):
        return
    known = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    facts = {name for base in cls.__mro__[1:] for name in vars(base)} - known  # of the class, such as its `name`
    types = {name: str(annotation) for name, annotation in inspect.get_annotations(cls).items()}
    fields = [name for name, annotation in types.items() if "ClassVar" not in annotation and name not in facts]
    if fields:
        raise ConfigError(
            f"the {kind} {cls.__name__} has parameters ({', '.join(fields)}), but nobody made a dataclass of it: write "
            "@dataclasses.dataclass(frozen=True) above the class"
        )


def _parameters(factory: Factory[T]) -> list[str] | None:
    if dataclasses.is_dataclass(factory):
        return [field.name for field in dataclasses.fields(factory) if field.init]
    return None


def installed(kind: str) -> dict[str, EntryPoint]:
    """What installed packages have listed under the entry point of this kind, by name."""
    return {point.name: point for point in entry_points(group=f"gyroscope.{kind}s")}


def _third_party(kind: str, table: Mapping[str, Factory[T]], name: str) -> Factory[T]:
    points = installed(kind)
    module_name, _, attribute = name.partition(":")
    if name not in points and not attribute:
        raise UnknownNameError(kind, name, [*table, *points])
    try:
        factory: Factory[T] = (
            points[name].load() if name in points else getattr(importlib.import_module(module_name), attribute)
        )
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        remedy = "import paths are written package.module:Class, parameters name:key=value"
        if "frozen" in str(problem):
            remedy = f"a {kind} is a frozen dataclass: write @dataclasses.dataclass(frozen=True) above the class"
        elif name in points:
            remedy = f"it is listed by an installed package as {points[name].value}"
        raise ConfigError(f"cannot import {kind} {name!r}: {problem} ({remedy})") from problem
    return factory
