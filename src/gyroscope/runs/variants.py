"""Kinds of runs that other packages add: a configuration with more fields, and the class of such a run.

A package lists its variants under the entry point `gyroscope.variants`; ours are in `gyroscope.research`. `gyroscope
train`, TOML files and run directories then know their fields, while the core knows none of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gyroscope._core.errors import ConfigError
from gyroscope._core.registry import installed
from gyroscope.momentum import PLACEMENTS, Placement
from gyroscope.runs.config import Config

if TYPE_CHECKING:
    from gyroscope.runs.training import Run


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of run: chosen where one of its fields is set, or one of its placements of momentum is named."""

    name: str
    config: type[Config]
    run: type[Run]

    def extra_fields(self) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields that `Config` does not have."""
        known = {field.name for field in dataclasses.fields(Config)}
        return {field.name: field for field in dataclasses.fields(self.config) if field.name not in known}

    def extra_placements(self) -> dict[str, Placement]:
        """Return the placements of momentum that `Config` does not have."""
        return {name: kind for name, kind in self.config.placements.items() if name not in PLACEMENTS}

    def used(self, values: Mapping[str, Any]) -> list[str]:
        """Return those of the values, as text, that only this kind of run has."""
        fields = self.extra_fields().items()
        used = [name for name, field in fields if name in values and values[name] != field.default]
        at = values.get("momentum")
        return used or ([f"momentum = {at!r}"] if at in self.extra_placements() else [])


@functools.cache
def variants() -> tuple[Variant, ...]:
    """Return the variants that installed packages list, by name."""
    return tuple(point.load() for _, point in sorted(installed("variant").items()))


def config_class(default: type[Config], values: Mapping[str, Any]) -> tuple[type[Config], dict[str, Any]]:
    """Return the class of configuration that has these values, and those of the values that it knows.

    Keys of other variants are dropped where they hold that variant's default, as the files of 0.1 do. Values that
    belong to two variants at once are a ConfigError.
    """
    asked = [variant for variant in variants() if variant.used(values)] if default is Config else []
    if len(asked) > 1:
        raise ConfigError(
            f"{' and '.join(variant.name for variant in asked)} are two kinds of runs that have no form together: "
            + " or ".join(f"leave out {', '.join(variant.used(values))}" for variant in asked)
        )
    kind = asked[0].config if asked else default
    known = {field.name for field in dataclasses.fields(kind)}
    unused = {name: field.default for variant in variants() for name, field in variant.extra_fields().items()}
    return kind, {
        name: value for name, value in values.items() if name in known or name not in unused or value != unused[name]
    }


def run_class(config: Config) -> type[Run]:
    """Return the class that runs a configuration."""
    from gyroscope.runs.training import Run

    return next((variant.run for variant in variants() if isinstance(config, variant.config)), Run)
