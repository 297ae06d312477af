"""How the kernels are compiled and kept: numba, without the interpreter's lock, on disk where there is a place for it."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def helper(function: Function) -> Function:
    """Compile a function that only kernels call: it becomes part of theirs."""
    return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or load what an earlier process compiled.

    numba keeps the result in __pycache__ beside the source, else in the user's cache folder, or where NUMBA_CACHE_DIR
    says. It would notice a change in the function's own file only, so the name that it files it under holds a digest
    of all the sources.
    """
    function.__qualname__ = f"{function.__qualname__}_{_DIGEST}"
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder can be written to: then every process compiles for itself
        return helper(function)


def _digest() -> str:
    content = hashlib.sha256()
    folder = pathlib.Path(__file__).parent
    for path in [folder.parent / "networks.py", *sorted(folder.glob("*.py"))]:
        content.update(path.read_bytes())
    return content.hexdigest()[:12]


_DIGEST = _digest()
