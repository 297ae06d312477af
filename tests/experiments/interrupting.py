"""For processes that a test interrupts."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """A shell starts what it puts in the background, a whole test run for one, such that it ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
