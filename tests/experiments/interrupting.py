"""For processes that a test interrupts."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Undo what a shell does to background processes, a whole test run for one: they ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
