"""Decorators that compile functions with numba, without the GIL, and cache the machine code on disk where possible."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from gyroscope._linalg._kernels.compiled.whole_kernels import KernelCompiler

# numba's own types are partial and change with its version: for the type checker it is untyped.
numba: Any = importlib.import_module("numba")
extending: Any = importlib.import_module("numba.extending")
caching: Any = importlib.import_module("numba.core.caching")
event: Any = importlib.import_module("numba.core.event")
nrt: Any = importlib.import_module("numba.core.runtime")

Function = TypeVar("Function", bound=Callable[..., Any])

_KNOWN = (0, 62) <= numba.version_info[:2] <= (0, 68)
"""Whether this numba is one whose internals were tested, 0.62 to 0.68: with others kernels take longer to compile and
to load."""

_OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def helper(function: Function) -> Function:
    """Compile a function that only kernels call, as part of them. Python cannot call it."""
    return numba.njit(**_OPTIONS, no_cpython_wrapper=True)(function)  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or load the machine code that an earlier process cached.

    numba's cache is __pycache__ beside the source, else the user's cache folder, or NUMBA_CACHE_DIR. It would notice
    changes in the function's own file only, so the cached name contains a digest of all the sources.
    """
    _KERNELS.add(function)
    function.__qualname__ = f"{function.__qualname__}_{_DIGEST}"
    compiled = numba.njit(**_OPTIONS, **({"pipeline_class": KernelCompiler} if _KNOWN else {}))(function)
    with contextlib.suppress(RuntimeError):  # no folder is writable: every process compiles for itself
        if _KNOWN:
            compiled._cache = _Cache(function)
        else:
            compiled.enable_caching()
    return compiled  # type: ignore[no-any-return]


class _CachedCode(caching.CompileResultCacheImpl):  # type: ignore[misc]
    """What the cache keeps of a compiled kernel."""

    def reduce(self, compiled: Any) -> Any:
        """Leave out the environments of inlined functions that the machine code does not refer to any more.

        To restore one, numba imports the module of the function: SciPy's linear algebra for the sum of an array.
        """
        *parts, environments = super().reduce(compiled)
        code = compiled.library.get_llvm_str()
        return *parts, tuple(each for each in environments if code.count(each.env_name) > 1)  # more than declared


class _Cache(caching.FunctionCache):  # type: ignore[misc]
    """Machine code on disk, loaded without the modules that numba needs to compile (0.3 s, half of it for SciPy)."""

    _impl_class = _CachedCode

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load a kernel. numba's own method does the same after `target_context.refresh()`, which imports them all."""
        nrt.rtsys.initialize(target_context)  # memory management, which kernels with work space call
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


class _Announcer(event.Listener):  # type: ignore[misc]
    """Say which kernel is being compiled: it takes a second or more, once, and then nothing for a long time.

    Of several ranks on a machine, which wait for each other anyway, the first one says so.
    """

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        if function in _KERNELS and os.environ.get("LOCAL_RANK", "0") == "0":
            print(
                f"gyroscope: compiling the kernel `{function.__name__}` for later runs, too",
                file=sys.stderr,
                flush=True,
            )

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
