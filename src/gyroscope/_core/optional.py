"""Packages that not every installation has: the extras of pyproject.toml, and an error that says what to install."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from gyroscope._core.errors import MissingExtraError

LAB = (
    "cryptography",
    "matplotlib",
    "pandas",
    "plotly",
    "platformdirs",
    "requests",
    "rich",
    "scipy",
    "sklearn",
    "tomli_w",
)
"""The modules of the extra `lab`."""


@contextlib.contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Import optional packages inside this block: a missing one is an error that names the extra to install.

        with extra("lab", "the table of a result"):
            import pandas

    Args:
        name: The extra of pyproject.toml that holds the packages.
        purpose: What they are needed for; the error begins with it.

    Raises:
        MissingExtraError: A package cannot be imported.
    """
    try:
        yield
    except ImportError as problem:
        missing = isinstance(problem, ModuleNotFoundError) and problem.name
        state = f"the package {problem.name}, which is not installed" if missing else f"a package ({problem})"
        raise MissingExtraError(f"{purpose} needs {state}: pip install 'gyroscope[{name}]'") from problem


def require_lab(purpose: str) -> None:
    """Raise a MissingExtraError unless all of the extra `lab` is installed. Nothing is imported."""
    missing = [name for name in LAB if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"{purpose} needs packages that are not installed ({', '.join(missing)}): pip install 'gyroscope[lab]'"
        )


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: The text is not TOML.
        MissingExtraError: Python 3.10 has no parser of its own, and tomli is not installed.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        with extra("lab", "reading TOML with Python 3.10"):
            import tomli as tomllib
    parsed: dict[str, Any] = tomllib.loads(text)
    return parsed


def format_toml(values: Mapping[str, Any]) -> str:
    """Write TOML that `parse_toml` reads back."""
    with extra("lab", "writing a configuration file"):
        import tomli_w
    return tomli_w.dumps(values)
