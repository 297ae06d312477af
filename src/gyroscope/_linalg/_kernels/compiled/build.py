"""Decorators that compile functions with numba, without the GIL, and cache the machine code on disk where possible."""

from __future__ import annotations

import hashlib
import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

# numba's own types are partial and change with its version: for the type checker it is untyped.
numba: Any = importlib.import_module("numba")
extending: Any = importlib.import_module("numba.extending")
event: Any = importlib.import_module("numba.core.event")

Function = TypeVar("Function", bound=Callable[..., Any])


def helper(function: Function) -> Function:
    """Compile a function that only kernels call, as part of them."""
    return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or load the machine code that an earlier process cached.

    numba's cache is __pycache__ beside the source, else the user's cache folder, or NUMBA_CACHE_DIR. It would notice
    changes in the function's own file only, so the cached name contains a digest of all the sources.
    """
    _KERNELS.add(function)
    function.__qualname__ = f"{function.__qualname__}_{_DIGEST}"
    try:
        return numba.njit(nogil=True, error_model="numpy", cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder is writable: every process compiles for itself
        return helper(function)


class _Announcer(event.Listener):  # type: ignore[misc]
    """Say which kernel is being compiled: it takes a second or more, once, and then nothing for a long time."""

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function in _KERNELS:
            print(f"gyroscope: compiling the kernel `{function.__name__}`, once", file=sys.stderr, flush=True)

    def on_end(self, event: Any) -> None:
        pass


_KERNELS: set[Callable[..., Any]] = set()
event.register("numba:compile", _Announcer())


def _digest() -> str:
    content = hashlib.sha256()
    folder = pathlib.Path(__file__).parent
    for path in [folder.parent / "sorting_networks.py", *sorted(folder.glob("*.py"))]:
        content.update(path.read_bytes())
    return content.hexdigest()[:12]


_DIGEST = _digest()
