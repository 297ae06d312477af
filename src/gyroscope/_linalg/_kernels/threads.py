"""Spread pieces of work over as many threads as torch uses.

The kernels hold no interpreter lock, so any threads that call them do. The best ones are torch's own: they are awake
just after a torch operation, sit on cores of their own, and one set of threads cannot crowd out the other. So we
call the OpenMP library that torch itself uses. Where there is none, and in a forked child, which has lost its
parent's threads (and OpenMP does not notice), a pool of Python threads takes their place.

Where the results of pieces are added up, which pieces there are must not depend on the number of threads: then no
result does either.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pathlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

_PIECE = 1 << 18
"""Matrix elements that are worth a piece of their own: some 100 microseconds of work, and ten to hand it out."""

_SHARES = 4
"""Into which each thread's work is divided: who is done first, because another program slows the others, takes more."""

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None
_forked = False


def pieces(n: int, d: int, multiple: int, most: int = 256) -> Any:
    """Where pieces of the columns of an (n, d) matrix begin, and where the last one ends: all but that one a multiple
    of `multiple` wide. The shape alone decides.

    Their number is a power of two, so that a usual number of threads has the same number of pieces each.
    """
    count = 1 << (max(1, min(most, n * d // _PIECE)) - 1).bit_length()
    width = max(1, -(-d // (count * multiple)) * multiple)
    return np.array([*range(0, d, width), d], dtype=np.int64)


def spread(work: Callable[[int, int], object], count: int) -> None:
    """Call work(begin, end) for ranges that together are 0, ..., count - 1, on the calling thread and on others beside
    it. Every call costs some microseconds: a thread by itself gets all at once, else each gets some _SHARES."""
    threads = min(torch.get_num_threads(), count)
    if threads <= 1:
        work(0, count)
        return
    step = -(-count // (threads * _SHARES))
    numbers = itertools.count(0, step)  # its next() is atomic, so each thread takes what is next when it is done
    failures: list[BaseException] = []

    def share() -> None:
        try:
            while not failures and (number := next(numbers)) < count:
                work(number, min(number + step, count))
        except BaseException as failure:  # raised again in the calling thread
            failures.append(failure)

    parallel = _openmp()
    if parallel is not None and not _forked:
        parallel(share, threads)
    else:
        _by_pool(share, threads)
    if failures:
        raise failures[0]


def spread_rows(work: Callable[[int, int], object], n: int, d: int) -> None:
    """Call work(begin, end) for ranges of the rows of an (n, d) matrix: all at once if it is small."""
    if n * d < 2 * _PIECE:
        work(0, n)
    else:
        spread(work, n)


@functools.cache
def _openmp() -> Callable[[Callable[[], None], int], None] | None:
    """A function that calls another in each thread of torch's OpenMP team."""
    libraries = pathlib.Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:
            # What torch links to is found through it. All OpenMP libraries but Microsoft's have this GNU entry.
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
        except RuntimeError:  # the interpreter is shutting down: this thread does all the work
            break
    share()
    for other in others:
        # What has not begun by now, because others use the threads, has nothing left to do.
        if not other.cancel():
            other.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gyroscope-kernel")
        return _pool


def _after_fork() -> None:
    """The child has none of its parent's threads, and one of them may have held the lock."""
    global _pool, _lock, _forked
    _pool, _lock, _forked = None, threading.Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
