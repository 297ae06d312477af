"""How the system is asked for memory: what one round frees is kept for the next, and large tables get large pages."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

from torch import Tensor

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 1 << 30
_LINE = 64
"""Bytes of a cache line."""


def keep_freed_memory() -> None:
    """Tell the C library not to give freed memory back to the system, for as long as this process lives.

    glibc gives large pieces back at once, and the system hands them out again page by page, each wiped. With a million
    parameters, whose vectors are such pieces, that took a third of the server's time in a round. Other C libraries do
    as they like.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, _LARGE)
        mallopt(_MMAP_THRESHOLD, _LARGE)


def table(n: int, d: int, like: Tensor) -> Tensor:
    """A new (n, d) matrix of zeros, each row of which begins with a cache line of its own.

    Rows are an odd number of lines apart: of an even number, those of many workers would share few places in the cache.
    """
    if like.device.type != "cpu":
        return like.new_zeros(n, d)
    line = _LINE // like.element_size()
    whole = prefer_large_pages(like.new_empty(n, (-(-d // line) | 1) * line))
    return whole.zero_()[:, :d]  # all of it: a checkpoint holds what lies between the rows, too


def prefer_large_pages(fresh: Tensor) -> Tensor:
    """Ask for pages of megabytes for a tensor that nobody has written to yet; returns it.

    Rows of a large matrix lie on pages far apart, and a processor remembers the addresses of some sixty: with pages of
    4 kB it must look them up time and again. Systems that know no such pages do without.
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
