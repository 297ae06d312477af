"""The types that a field of a configuration may have, as its annotation names them."""

from __future__ import annotations

import os
from typing import Any

import torch

from gyroscope._core.errors import ConfigError

_TYPES = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "str": (str, "text"),
    "bool": (bool, "true or false"),
}


def plain(value: Any) -> Any:
    """Return NumPy's numbers, paths and torch's devices as Python's numbers and text; anything else as it is."""
    if isinstance(value, (os.PathLike, torch.device)):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


def typed(name: str, annotation: str, value: Any) -> Any:
    """Return the value as the type that the annotation names first; raise a ConfigError where it is another."""
    wanted, *others = annotation.split(" | ")
    if value is None and "None" in others:
        return None
    kind, words = _TYPES[wanted]
    if kind is float and type(value) is int:
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or value != value:
        also = " or a number" if kind is str and "float" in others else ""
        shown = repr(value) if len(repr(value)) < 100 else f"a {type(value).__name__}"
        raise ConfigError(f"{name} must be {words}{also}, got {shown}")
    return value
