"""Spread pieces of work over as many threads as torch uses.

The kernels hold no interpreter lock, so plain Python threads do. (numba's own threading layers are either not safe to
call from several threads at once, or a second OpenMP beside torch's, or do not survive a fork.) Which pieces there
are must not depend on the number of threads: then no result does either.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

_PIECE = 1 << 17
"""Matrix elements that are worth a piece of their own: some 50 microseconds of work."""

_lock = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def pieces(n: int, d: int, multiple: int, most: int = 256) -> list[tuple[int, int]]:
    """Column ranges of an (n, d) matrix, all but the last a multiple of `multiple` wide. They depend on the shape only."""
    count = max(1, min(most, n * d // _PIECE))
    width = -(-d // (count * multiple)) * multiple
    return [(start, min(start + width, d)) for start in range(0, d, width)]


def spread(work: Callable[[int], object], count: int) -> None:
    """Call work(0), ..., work(count - 1), on the calling thread and on others beside it."""
    numbers = itertools.count()  # its next() is atomic

    def share() -> None:
        while (number := next(numbers)) < count:
            work(number)

    others: list[Future[None]] = []
    for _ in range(min(torch.get_num_threads(), count, os.cpu_count() or 1) - 1):
        try:
            others.append(_threads().submit(share))
        except RuntimeError:  # the interpreter is shutting down: this thread does all the work
            break
    try:
        share()
    finally:
        # What has not begun by now, because others use the threads, has nothing left to do.
        for other in others:
            if not other.cancel():
                other.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1), thread_name_prefix="gyroscope-kernel")
        return _pool


def _forget() -> None:
    """A forked child has none of its parent's threads, and a lock may have been held by one of them."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
