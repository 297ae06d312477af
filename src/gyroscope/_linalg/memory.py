"""Memory allocation: keep freed memory in the process, align rows to cache lines, use huge pages for large matrices."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 1 << 30
_LINE = 64
"""Bytes per cache line."""


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the rest of this process instead of returning it to the system.

    glibc returns large allocations at once, and the kernel then maps and zeroes every page of the next one. With a
    million parameters per vector that took a third of the server's time in a round. Other C libraries are left alone.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _LARGE)
        mallopt(_MMAP_THRESHOLD, _LARGE)


def table(n: int, d: int, like: Tensor) -> Tensor:
    """Return a new (n, d) matrix of zeros, each row of which begins at a cache line.

    The row stride is an odd number of cache lines: with an even one, the rows of many workers would compete for few
    cache sets.
    """
    if like.device.type != "cpu":
        return like.new_zeros(n, d)
    line = _LINE // like.element_size()
    whole = prefer_large_pages(like.new_empty(n, (-(-d // line) | 1) * line))
    return whole.zero_()[:, :d]  # also between the rows: checkpoints store it


def prefer_large_pages(fresh: Tensor) -> Tensor:
    """Request huge pages for a tensor that has not been written to yet; return the tensor.

    The rows of a large matrix are on different pages, and the TLB of a core has some sixty entries: with pages of 4 kB
    every few columns would miss it. Systems without huge pages are left alone.
    """
    if fresh.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return fresh
    page = mmap.PAGESIZE
    begin = -(-fresh.data_ptr() // page) * page
    length = (fresh.data_ptr() + fresh.numel() * fresh.element_size() - begin) // page * page
    if length > 0:
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return fresh
