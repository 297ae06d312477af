"""One error type per kind of mistake. Each message names the cause, the value, the bound and a remedy.

Everything here is a `GyroscopeError`: the command line prints its message in one piece and exits with code 2, without a
traceback, because the reader can mend it. Any other exception is a bug, keeps its traceback and ends with code 1. The
bug is in Gyroscope, or in a rule, attack or task of your own, which the last line then names.

Example:
    >>> import gyroscope as gy
    >>> try:
    ...     gy.Config(rule="krum", workers=8, declared_byzantine=3).resolve()
    ... except gy.errors.InfeasibleError as problem:
    ...     print("needs n >= 2f + 3" in str(problem))
    True
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_NEAR, _NEAR_IF_SHORT, _SHORT = 0.6, 0.5, 3
"""How alike a misspelt name must be to what was meant; one wrong letter of two is half of it."""


class GyroscopeError(Exception):
    """A mistake or a circumstance that the user can mend. Every error that Gyroscope raises on purpose is one.

    Example:
        >>> import gyroscope as gy
        >>> try:
        ...     gy.Config(rule="krumm").resolve()
        ... except gy.GyroscopeError as problem:
        ...     print(str(problem).partition(" Known")[0])
        unknown rule 'krumm': did you mean 'krum'?
    """


class InfeasibleError(GyroscopeError, ValueError):
    """The rule cannot tolerate that many Byzantine workers among that many workers."""


class UnknownNameError(GyroscopeError, LookupError):
    """A rule, attack, task, placement, key or parameter that does not exist."""

    def __init__(
        self, kind: str, name: str, known: Iterable[str], of: str = "", also: Iterable[str] = (), remedy: str = ""
    ) -> None:
        """Suggest the nearest name, or one that is known `also`, or all that begin with it; list the known ones."""
        choices = sorted(known)
        begun = [choice for choice in choices if choice.startswith(f"{name.lower()}-")]
        near = begun if len(begun) > 1 else [nearest(name, [*choices, *also])]
        hint = f"did you mean {either([repr(one) for one in near])}? " if near[0] else ""
        listing = ", ".join(choices) if choices else "it takes none"
        super().__init__(f"unknown {kind} {name!r}{of and f' of {of}'}: {hint}Known: {listing}{remedy}")


class ConfigError(GyroscopeError, ValueError):
    """A configuration value out of range, of the wrong type, or at odds with another one."""


class RowsError(GyroscopeError, ValueError):
    """Rows that are not an (n, d) floating-point tensor."""


class DataError(GyroscopeError):
    """A data set that cannot be found, fetched, or trusted."""


class RunDirectoryError(GyroscopeError):
    """A run directory that exists already, is missing, in use, or cannot be resumed."""


class StorageError(GyroscopeError, OSError):
    """The disk refused a write (full, read-only, quota)."""

    def __str__(self) -> str:  # OSError would print only its errno pair
        return str(self.args[0]) if self.args else ""


class LinkError(GyroscopeError):
    """A server that cannot be reached or does not speak this language, or a worker's number that is taken."""


class CertificateError(GyroscopeError):
    """A key, a certificate or a list of revoked ones that is missing, exists already, or cannot be used."""


class ExchangeError(GyroscopeError, RuntimeError):
    """Ranks that cannot exchange their rows, because one has ended or hangs; or more than f that sent garbage."""


class RoundAbandonedError(GyroscopeError):
    """A round that cannot be played now: the run stops with a checkpoint. An empty message: because it was asked to."""


class MissingExtraError(GyroscopeError, ImportError):
    """An optional dependency is asked for but not installed."""


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the known name that a misspelt one means; empty if none is alike, and for `non-iid` never `iid`."""
    plain = name.lower().replace("-", "").replace("_", "")
    known = [one for one in known if plain != f"non{one}"]
    cutoff = _NEAR if len(name) > _SHORT else _NEAR_IF_SHORT
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), "")


def either(remedies: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    *others, last = remedies
    return f"{', '.join(others)} or {last}" if others else last
