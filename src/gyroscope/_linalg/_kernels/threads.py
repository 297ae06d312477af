"""Run a kernel on as many threads as torch uses.

The kernels release the GIL, so any threads can call them. torch's own are the best: they are awake just after a torch
operation, and a second set of threads would compete with them for the cores. So this module calls the OpenMP library
that torch uses. Where there is none, and in a forked child (which has lost its parent's threads, unnoticed by OpenMP),
it uses a pool of Python threads.

Where results of pieces are added up, the pieces must not depend on the number of threads: then the sum does not either.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pathlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_PIECE = 1 << 18
"""Matrix elements per piece: some 100 microseconds of work, where handing it to a thread costs ten."""

_SHARES = 4
"""Parts into which each thread's work is divided, so that a thread takes over work from one that is slowed down."""

_forked = False


def pieces(n: int, d: int, multiple: int, most: int = 256) -> Any:
    """Split the columns of an (n, d) matrix into pieces; return the starts of all pieces and the end of the last one.

    All pieces but the last are a multiple of `multiple` wide. Their number depends on the shape only and is a power of
    two, so that the usual numbers of threads get equally many.
    """
    count = 1 << (max(1, min(most, n * d // _PIECE)) - 1).bit_length()
    width = max(1, -(-d // (count * multiple)) * multiple)
    return np.array([*range(0, d, width), d], dtype=np.int64)


def spread(work: Callable[..., object], count: int, *arguments: Any) -> None:
    """Call work(*arguments, begin, end) for ranges that together are 0, ..., count - 1, on this and other threads.

    Every call costs some microseconds: a single thread gets the whole range at once, others get _SHARES parts each.
    """
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        work(*arguments, 0, count)
        return
    step = -(-count // (threads * _SHARES))
    numbers = itertools.count(0, step)  # next() is atomic: each thread takes the next part when it is done
    failures: list[BaseException] = []

    def share() -> None:
        try:
            while not failures and (number := next(numbers)) < count:
                work(*arguments, number, min(number + step, count))
        except BaseException as failure:  # the calling thread raises it again
            failures.append(failure)

    parallel = _openmp()
    if parallel is not None and not _forked:
        parallel(share, threads)
    else:
        _by_pool(share, threads)
    if failures:
        raise failures[0]


def spread_pieces(work: Callable[..., object], bounds: Any, *arguments: Any) -> None:
    """Call work(*arguments, begin, end) for ranges of columns that begin and end at the bounds of `pieces`."""
    spread(lambda first, last: work(*arguments, bounds[first], bounds[last]), len(bounds) - 1)


def spread_rows(work: Callable[..., object], n: int, d: int, *arguments: Any) -> None:
    """Call work(*arguments, begin, end) for ranges of the rows of an (n, d) matrix: all at once if it is not large."""
    if is_large(n, d):
        spread(work, n, *arguments)
    else:
        work(*arguments, 0, n)


def is_large(n: int, d: int) -> bool:
    """Return whether it is worth while to share work on an (n, d) matrix among threads."""
    return n * d >= 2 * _PIECE


@functools.cache
def _openmp() -> Callable[[Callable[[], None], int], None] | None:
    """Return a function that calls another one in each thread of torch's OpenMP team."""
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            # torch's library resolves the symbols of those it links to. All OpenMP libraries but Microsoft's have this
            # GNU entry point.
            entry: Any = ctypes.CDLL(str(libraries / name)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        entry.argtypes = [kind, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        entry.restype = None

        def parallel(share: Callable[[], None], threads: int, entry: Any = entry, kind: Any = kind) -> None:
            entry(kind(lambda _: share()), None, threads, 0)

        return parallel
    return None


def _by_pool(share: Callable[[], None], threads: int) -> None:
    others: list[Future[None]] = []
    for _ in range(threads - 1):
        try:
            others.append(_threads().submit(share))
        except RuntimeError:  # the interpreter is shutting down: the calling thread does all the work
            break
    share()
    for other in others:
        # A call that has not begun by now, because other callers use the pool, has nothing left to do.
        if not other.cancel():
            other.result()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gyroscope-kernel")


def _after_fork() -> None:
    """Start anew in a forked child: its parent's threads are gone."""
    global _forked
    _forked = True
    _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
