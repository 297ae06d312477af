"""What every attack is: a small frozen dataclass that turns the honest rows into f Byzantine ones."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gyroscope import rows as rows_module
from gyroscope import specs
from gyroscope.errors import ConfigError
from gyroscope.rules import Context, Rule
from gyroscope.statistics import Described


@dataclasses.dataclass(frozen=True)
class View:
    """What an omniscient adversary knows besides the honest rows. It cannot change any of it but its own notes."""

    rule: Rule
    """The configured rule, with its parameters."""
    declared_f: int
    """How many Byzantine workers the rule is told to tolerate."""
    generator: torch.Generator
    """The adversary's own randomness for this step."""
    step: int = 0
    parameters: Tensor | None = None
    """The model's parameters, as one vector."""
    placement: str = "none"
    """Where momentum is computed; at the workers, the honest rows have it in them already."""
    context: Context = dataclasses.field(default_factory=Context)
    """What the rule will know besides the rows, its memory and its randomness of this step included."""
    memory: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    """The adversary's own notes: named tensors that it may write, and finds again in the next round."""
    honest: Described | None = None
    """The honest rows once more, with their moments: whoever measures the round needs them, too."""
    server: int = 0
    """To which server these rows go: a worker may tell each another story."""
    servers: int = 1

    def outcome(self, rows: Tensor) -> Tensor:
        """What the server will make of these n rows: the whole configured rule, as it will be applied."""
        return self.rule(rows, self.declared_f, self.context).vector


@dataclasses.dataclass(frozen=True)
class Attack(ABC):
    """A behaviour of the f Byzantine workers, who collude and see everything.

    Call the object, not `rows`: `attack(honest, f, view)` gives (f, d), in the honest rows' dtype and on their device.
    Equal rows may share memory (stride 0): copy before writing.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = "-"

    def __call__(self, honest: Tensor, f: int, view: View) -> Tensor:
        honest = rows_module.check(honest)
        if isinstance(f, bool) or not isinstance(f, int) or f < 1:
            raise ConfigError(f"an attack needs at least one Byzantine worker, got f = {f!r}")
        # Ours leave the honest rows alone. Somebody else's may work in place, and must not change what they send.
        ours = type(self).__module__.startswith("gyroscope.")
        rows = self.rows(honest if ours else honest.clone(), f, view)
        if not isinstance(rows, Tensor) or rows.shape != (f, honest.shape[1]):
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ConfigError(
                f"the attack {type(self).__name__} must return f = {f} rows of d = {honest.shape[1]} values, "
                f"got {got}: gyroscope.attacks.base.repeat(vector, f) makes f rows of one vector"
            )
        return rows.to(dtype=honest.dtype, device=honest.device)

    def __str__(self) -> str:
        """The spec on the command line and in a configuration that builds this attack: `little:factor=2`."""
        return specs.text(self)

    @abstractmethod
    def rows(self, honest: Tensor, f: int, view: View) -> Tensor:
        """The algorithm, on checked input."""


def repeat(vector: Tensor, f: int) -> Tensor:
    """All f Byzantine workers send the same vector; it is stored once."""
    return vector.unsqueeze(0).expand(f, -1)
