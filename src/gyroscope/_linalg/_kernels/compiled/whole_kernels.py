"""Optimise and emit machine code for whole kernels only.

numba does both for every function that a kernel calls, its own included, and then again for the kernel, into which they
are inlined: two thirds of the time of LLVM. Here the code of the functions is kept as it is until a kernel links it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from gyroscope._core.garbage import no_collection

compiler: Any = importlib.import_module("numba.core.compiler")
codegen: Any = importlib.import_module("numba.core.codegen")
lock: Any = importlib.import_module("numba.core.compiler_lock").global_compiler_lock
lookup_environment: Any = importlib.import_module("numba.core.environment").lookup_environment


class KernelCompiler(compiler.Compiler):  # type: ignore[misc]
    """Compile a kernel, and what it calls as parts of it. The caller holds numba's lock, as always."""

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Compile a function from its bytecode."""
        generator = self.state.targetctx.codegen()
        self.state.library = _Whole(generator, func.__qualname__)
        self.state.library.enable_object_caching()
        with _parts(generator), no_collection():
            return super().compile_extra(func)


@contextlib.contextmanager
def _parts(generator: Any) -> Iterator[None]:
    """Let numba make parts of all functions that it compiles within this block."""
    generator._library_class = _Part
    try:
        yield
    finally:
        del generator._library_class  # of this object: that of its class is back


class _Whole(codegen.JITCodeLibrary):  # type: ignore[misc]
    """A kernel, with everything that it calls."""

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:
            environment = lookup_environment(variable.name)  # of a part, which had no memory to put it in
            if environment is not None:
                self._codegen.set_env(variable.name, environment)


class _Part(codegen.JITCodeLibrary):  # type: ignore[misc]
    """A function that kernels call: neither optimised nor emitted, unless somebody asks for its address."""

    _emitted: Any = None

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> Any:
        """Return the address of a function's machine code, or 0 if it is not in this library."""
        self._ensure_finalized()
        if self._emitted is None:
            if not any(each.name == name and not each.is_declaration for each in self._final_module.functions):
                return 0  # as usual: there is no wrapper for calls from Python
            with lock:
                self._emitted = _Whole(self._codegen, self.name)
                self._emitted.add_llvm_module(self._final_module.clone())
                self._emitted.finalize()
        return self._emitted.get_pointer_to_function(name)

    @property
    def codegen(self) -> Any:
        """What numba tells the environment of a function to."""
        return self

    def set_env(self, name: str, environment: Any) -> None:
        """Do nothing: the library that is emitted sets the environments."""
