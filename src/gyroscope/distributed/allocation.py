"""Memory that one round frees is kept for the next."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 1 << 30


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
