"""Text from strangers, made fit for a log or a table."""

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
