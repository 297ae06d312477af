"""Text from strangers and from libraries, made fit for a log, a table or a message."""

from __future__ import annotations

_LONGEST = 80


def quoted(thing: object) -> str:
    """The text in quotes: one line, printable, and too short to flood a log."""
    return repr(shortened(thing))


def shortened(thing: object, longest: int = _LONGEST) -> str:
    """The beginning of the text as one printable line."""
    start = str(thing)[: 4 * longest]
    text = "".join(letter if letter.isprintable() else " " for letter in start)
    text = " ".join(text.split())
    return text if len(text) <= longest else text[:longest] + "..."


def of_gloo(problem: BaseException) -> str:
    """What gloo says, without the place in its source at the beginning and the good wishes at the end."""
    lines = str(problem).splitlines() or [type(problem).__name__]
    return lines[0].rpartition("] ")[2].partition(". This is typically")[0][:200]
