"""What the links to workers report to the run."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Joined(NamedTuple):
    """A worker has a link, and waits for parameters."""

    worker: int
    who: str


class Answered(NamedTuple):
    """The values that were asked for have come, in the format of the rows. They stay until the worker is asked again.

    Where they are the momentum that a worker continues with, they stay until the next but one answer.
    """

    worker: int
    step: int
    loss: float
    values: Tensor


class Rejected(NamedTuple):
    """A worker sent something that is no answer to what it was asked. Its link goes on."""

    worker: int
    why: str
    logged: bool = False
    """Whether the log has a line on this worker already, since its last good row."""


class Lost(NamedTuple):
    """A worker's link is gone; the worker may join again."""

    worker: int
    why: str
    rejected: bool = False
    """Whether the server closed it because of what the worker sent."""


class Refused(NamedTuple):
    """Somebody could not join."""

    who: str
    why: str
    worker: int | None = None
    """The number that was claimed, where there was one."""


LinkEvent = Joined | Answered | Rejected | Lost | Refused
