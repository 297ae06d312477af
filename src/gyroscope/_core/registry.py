"""Convert between specs, such as `krum:m=1`, and objects, such as `Krum(m=1)`.

Rules, attacks and tasks are frozen dataclasses that an explicit table lists by name. A *spec* is the text form of one:
`name`, or `name:key=value,key=value`, or `my_package.my_module:MyRule:key=value` for a class that is in no table.

A value may itself be a spec, in parentheses if it has parameters: `alternate:attack=(little:factor=2),period=5`.
Slashes separate several: `stranger:attacks=(little:factor=2/empire/zero)`. A shell needs quotes around parentheses;
they are optional around the last value if it has no comma: `alternate:period=5,attack=little:factor=2`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeVar

from gyroscope._core.errors import ConfigError, UnknownNameError, either

T = TypeVar("T")
_Self = TypeVar("_Self", bound="Named")
Factory = Callable[..., T]
_CHECK = "gyroscope"  # the key of a field's metadata under which its check is
_PLAIN: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
}
"""Annotations of fields without a check that `make` holds values against: what the error says, and the types."""


class Named(ABC):
    """What a spec can build: the base class of rules, pre-aggregations, attacks, shardings and tasks with a name."""

    kind_in_errors: ClassVar[str]
    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    """What papers and other libraries call it; configurations and results have its name."""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = "-"

    def __new__(cls: type[_Self], *_: Any, **__: Any) -> _Self:
        check_class(cls.kind_in_errors, cls)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_parameters(self)

    def __str__(self) -> str:
        """Return the spec that builds this object on the command line and in a configuration: `krum:m=1`."""
        return text(self)


def parse_value(text: str) -> int | float | bool | str | None:
    """Convert `1` to 1, `1.5` to 1.5, `true` to True and `none` to None; return other text as it is."""
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return convert(text)
    return text


def check_text(kind: str, spec: object) -> None:
    """Raise a ConfigError unless a spec is text."""
    if not isinstance(spec, str):
        remedy = f"write {spec.__name__}()" if isinstance(spec, type) else f"write its name, see gyroscope list {kind}s"
        raise ConfigError(f"a {kind} is given by its spec, a text, or as an object, got {spec!r}: {remedy}")


def split(spec: str) -> tuple[str, dict[str, Any]]:
    """Split a spec into its name and its parameters."""
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
                f"parentheses, as in '{name}:{','.join(clear)}' (a shell needs the quotes)"
            )
        key = key.strip().replace("-", "_")
        if key in parameters:
            raise ConfigError(f"{key} is given twice in {spec!r}: remove one of the two")
        parameters[key] = parse_value(value.strip())
    return name, parameters


def split_outside(text: str, separator: str, spec: str = "") -> list[str]:
    """Split a text at the separators that are not within parentheses."""
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
        raise ConfigError(f"the parentheses in {spec or text!r} do not match: close each one that is opened")
    return pieces


def inner(text: str) -> list[str]:
    """Return the specs in a value, without the parentheses around it: one, or several that slashes separate."""
    text = text.strip()
    pieces = split_outside(text, "/")
    if len(pieces) == 1 and text.startswith("(") and text.endswith(")"):
        pieces = split_outside(text[1:-1], "/", text)
    return [piece.strip() for piece in pieces]


def make(kind: str, base: type, table: Mapping[str, Factory[T]], name: str, parameters: Mapping[str, Any]) -> T:
    """Build the object that `name` refers to in a table, in an installed package's entry points, or in a module."""
    factory = table.get(unaliased(table, name)) or _third_party(kind, table, name)
    if isinstance(factory, type) and issubclass(factory, base):
        check_class(kind, factory)
    if dataclasses.is_dataclass(factory):
        known = [field.name for field in dataclasses.fields(factory) if field.init]
        for key in parameters:
            if key not in known and "__init__" in vars(factory) and "__dataclass_fields__" not in vars(factory):
                raise ConfigError(
                    f"the {kind} {name!r} takes {key} in its own __init__: make it a field of a dataclass, with "
                    f"@dataclasses.dataclass(frozen=True) above the class and {key}: float = 1.0 in it"
                )
            if key not in known:
                raise UnknownNameError("parameter", key, known, of=f"{kind} {name!r}")
        _check_plain(kind, name, factory, parameters)
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


def _check_plain(kind: str, name: str, factory: Any, parameters: Mapping[str, Any]) -> None:
    """Raise a ConfigError where a field says int, float or bool, has no check of its own, and is given another type."""
    for field in dataclasses.fields(factory):
        annotation = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        if field.name not in parameters or _CHECK in field.metadata or annotation not in _PLAIN:
            continue
        value, (words, types) = parameters[field.name], _PLAIN[annotation]
        if value != field.default and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            raise ConfigError(f"the {field.name} of the {kind} {name!r} must be {words}, got {value!r}")


def unaliased(table: Mapping[str, Any], name: str) -> str:
    """Return the name in the table that this name or alias means; the name itself where it means none.

    Capitals, hyphens and underscores make no difference: `GeometricMedian` is `geometric-median`.
    """
    for known, kind in table.items():
        if _plain(name) in map(_plain, (known, *getattr(kind, "aliases", ()))):
            return known
    return name


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def text(thing: Any) -> str:
    """Return the shortest spec that builds the same rule, attack or task."""
    kind = type(thing)
    # A class of another package is written as its import path: no table may list its name.
    name = kind.name if kind.__module__.startswith("gyroscope.") else f"{kind.__module__}:{kind.__qualname__}"
    changed = [
        f"{field.name}={value_text(getattr(thing, field.name))}"
        for field in dataclasses.fields(thing)
        if field.init and getattr(thing, field.name) != field.default
    ]
    return name + (":" + ",".join(changed) if changed else "")


def value_text(value: object) -> str:
    """Return a parameter's value as a spec writes it."""
    if isinstance(value, tuple):
        return "(" + "/".join(map(str, value)) + ")"
    if dataclasses.is_dataclass(value):
        spec = str(value)
        return f"({spec})" if "=" in spec else spec
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def check_class(kind: str, cls: type) -> None:
    """Raise an error that says what a class still needs, where Python would only say that it cannot build it."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        wanted = (f"{name}({', '.join(inspect.signature(getattr(cls, name)).parameters)})" for name in missing)
        raise ConfigError(f"the {kind} {cls.__name__} is not complete: it must implement {' and '.join(wanted)}")
    if "__dataclass_fields__" in vars(cls):
        return
    known = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)} - known  # class variables, such as `name`
    types = {name: str(annotation) for name, annotation in inspect.get_annotations(cls).items()}
    fields = [name for name, annotation in types.items() if "ClassVar" not in annotation and name not in inherited]
    if fields:
        raise ConfigError(
            f"the {kind} {cls.__name__} has parameters ({', '.join(fields)}), but is no dataclass: write "
            "@dataclasses.dataclass(frozen=True) above the class"
        )


def number(
    default: Any,
    words: str,
    valid: Callable[[Any], bool] = lambda _: True,
    *,
    whole: bool = False,
    or_one_of: Sequence[str] = (),
) -> Any:
    """Return a dataclass field for a finite number, which `check_parameters` checks.

    Args:
        default: The parameter's default, which is always allowed.
        words: What it must be, for the error: "a whole number of at least 1".
        valid: Whether a number is in range.
        whole: Refuse a number that is not an int.
        or_one_of: Words that are allowed in place of a number.
    """

    def allowed(value: Any) -> bool:
        if value is default or isinstance(value, str):
            return value is default or value in or_one_of
        kind = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        return kind and math.isfinite(value) and valid(value)

    return _checked_field(default, [words, *map(repr, or_one_of)], allowed)


def count(default: int | None, or_one_of: Sequence[str] = ()) -> Any:
    """Return a dataclass field for a whole number of at least 1."""
    return number(default, "a whole number of at least 1", lambda value: value >= 1, whole=True, or_one_of=or_one_of)


def positive(default: float | str, or_one_of: Sequence[str] = ()) -> Any:
    """Return a dataclass field for a positive number."""
    return number(default, "a positive, finite number", lambda value: value > 0, or_one_of=or_one_of)


def choice(default: Any, choices: Sequence[object]) -> Any:
    """Return a dataclass field for one of the choices, of the same type: True is not 1."""
    words = [str(one).lower() if isinstance(one, bool) else repr(one) for one in choices]
    return _checked_field(default, words, lambda value: any(type(value) is type(c) and value == c for c in choices))


def _checked_field(default: Any, words: Sequence[str], allowed: Callable[[Any], bool]) -> Any:
    return dataclasses.field(default=default, metadata={_CHECK: (either(words), allowed)})


def check_parameters(owner: Any) -> None:
    """Raise a `ConfigError` unless the parameters of a rule, pre-aggregation or attack are what their fields allow."""
    for field in dataclasses.fields(owner):
        value, (words, allowed) = getattr(owner, field.name), field.metadata.get(_CHECK, ("", lambda _: True))
        if not allowed(value):
            raise ConfigError(f"the {field.name} of {owner.name!r} must be {words}, got {value!r}")


def installed(kind: str) -> dict[str, EntryPoint]:
    """Return what installed packages list under the entry point of this kind, by name."""
    return {point.name: point for point in entry_points(group=f"gyroscope.{kind}s")}


def extended() -> bool:
    """Return whether an installed package other than this one adds to what can be named."""
    kinds = ("rule", "preaggregation", "attack", "sharding", "task", "variant")
    return any(not point.value.startswith("gyroscope.") for kind in kinds for point in installed(kind).values())


def _third_party(kind: str, table: Mapping[str, Factory[T]], name: str) -> Factory[T]:
    points = installed(kind)
    module_name, _, attribute = name.partition(":")
    if name not in points and not attribute:
        aliases = [alias for made in table.values() for alias in getattr(made, "aliases", ())]
        raise UnknownNameError(
            kind, name, [*table, *points], also=aliases, remedy="; or your own, as module:Class (my_module:MyClass)"
        )
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
