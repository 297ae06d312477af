"""When not to look for garbage.

Python looks for objects that only refer to each other each time that enough new ones exist. While modules are imported
and functions compiled, nearly all of them stay: torch's modules alone cost a quarter of a second of vain searches.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Do not look for garbage within this block, nor in other threads meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
