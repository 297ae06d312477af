"""Learning-rate schedules as text: `0.5`, or `0.01,1500:0.001` for 0.01 and, from step 1500 on, 0.001."""

from __future__ import annotations

import dataclasses
import math

from gyroscope._core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A piecewise constant learning rate: (first step, value) pairs in ascending order, the first at step 0."""

    pieces: tuple[tuple[int, float], ...]

    def at(self, step: int) -> float:
        """Return the value in force at a step."""
        return next(value for first, value in reversed(self.pieces) if first <= step)

    def scaled(self, factor: float) -> Schedule:
        """Return the schedule with all values multiplied by a factor."""
        return Schedule(tuple((first, factor * value) for first, value in self.pieces))

    def __str__(self) -> str:
        return ",".join(repr(value) if first == 0 else f"{first}:{value!r}" for first, value in self.pieces)

    @classmethod
    def parse(cls, text: str | float) -> Schedule:
        """Read a schedule; raise a ConfigError that quotes the piece that is wrong."""
        how = "write a rate, or a rate and then step:rate pairs with growing steps, as in 0.01,1500:0.001"
        pieces: list[tuple[int, float]] = []
        for piece in map(str.strip, str(text).split(",")):
            first, colon, value = piece.rpartition(":")
            try:
                step, rate = int(first) if colon else 0, float(value)
            except ValueError:
                raise ConfigError(f"cannot read {piece!r} in the schedule {text!r}: {how}") from None
            if not (0 < rate < math.inf):
                raise ConfigError(f"a learning rate must be positive and finite, got {piece!r} in {text!r}")
            if bool(pieces) != bool(colon) or (pieces and step <= pieces[-1][0]):
                raise ConfigError(f"{piece!r} is out of place in the schedule {text!r}: {how}")
            pieces.append((step, rate))
        return cls(tuple(pieces))
