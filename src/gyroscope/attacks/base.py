"""What every attack is: a small frozen dataclass that turns the honest rows into f Byzantine ones."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from gyroscope._core import registry
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import matrix
from gyroscope._linalg.moments import CachedMoments
from gyroscope.rules import Rule, RuleContext

_Self = TypeVar("_Self", bound="Attack")


class Notes(MutableMapping[str, Tensor]):
    """A part of somebody's notes that belongs to one attack inside another: its names begin with a prefix there."""

    def __init__(self, whole: MutableMapping[str, Tensor], prefix: str) -> None:
        self.whole, self.prefix = whole, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self.whole[self.prefix + name]

    def __setitem__(self, name: str, note: Tensor) -> None:
        self.whole[self.prefix + name] = note

    def __delitem__(self, name: str) -> None:
        del self.whole[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return iter([name[len(self.prefix) :] for name in self.whole if name.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclasses.dataclass(frozen=True)
class AttackContext:
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
    momentum: str = "none"
    """Where momentum is computed; at the workers, the honest rows have it in them already."""
    rule_context: RuleContext = dataclasses.field(default_factory=RuleContext)
    """What the rule will know besides the rows, its memory and its randomness of this step included."""
    state: MutableMapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """The adversary's own notes: named tensors that it may write, and finds again in the next round."""
    moments: CachedMoments | None = None
    """The honest rows once more, with their moments: whoever measures the round needs them, too."""
    compute_gradients: Callable[[bool], Tensor] | None = None
    """How `own_gradients` are computed, where the Byzantine workers have data."""
    preview: Callable[[Tensor], Tensor] | None = None
    """What the server does to all n rows before the rule sees them, where it does: accumulate them, for example."""
    server: int = 0
    """To which server these rows go: a worker may tell each another story."""
    servers: int = 1

    def outcome(self, rows: Tensor) -> Tensor:
        """What the server will make of these n rows: the whole configured rule, as it will be applied."""
        return self.rule(self.shown(rows), self.declared_f, self.rule_context).vector

    def shown(self, rows: Tensor) -> Tensor:
        """What the rule will be shown of these n rows."""
        return rows if self.preview is None else self.preview(rows)

    def own_gradients(self, flipped: bool = False) -> Tensor:
        """(f, d): what the Byzantine workers would send if they followed the protocol, each at data of its own.

        Gradients are clipped, and accumulated where momentum is at the workers: then ask in every round, because a
        round without asking leaves no trace in the momentum. They are computed when first asked for.
        flipped: at wrong labels, C-1-y instead of y.
        """
        if self.compute_gradients is None:
            raise ConfigError(
                "this attack needs gradients at the Byzantine workers' own data, and here they have none: in a "
                "training run they do; elsewhere give the context `compute_gradients`, a function from `flipped` to "
                "f rows"
            )
        return self.compute_gradients(flipped)

    def inside(self, name: str) -> AttackContext:
        """The same context for an attack inside another one, which keeps its notes apart under this name."""
        return dataclasses.replace(self, state=Notes(self.state, f"{name}/"))


@dataclasses.dataclass(frozen=True)
class Attack(ABC):
    """A behaviour of the f Byzantine workers, who collude and see everything.

    Call the object, not `rows`: `attack(honest, f, context)` gives (f, d), in the honest rows' dtype and on their
    device. Equal rows may share memory (stride 0): copy before writing.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = "-"
    finite: ClassVar[bool] = True
    """Whether finite honest rows give finite Byzantine ones."""

    def __new__(cls: type[_Self], *_: Any, **__: Any) -> _Self:
        registry.check_class("attack", cls)
        return super().__new__(cls)

    def __call__(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        honest = matrix.check(honest)
        if isinstance(f, bool) or not isinstance(f, int) or f < 1:
            raise ConfigError(f"an attack needs at least one Byzantine worker, got f = {f!r}")
        # Ours leave the honest rows alone. Somebody else's may work in place, and must not change what they send.
        ours = type(self).__module__.startswith("gyroscope.")
        rows = self.rows(honest if ours else honest.clone(), f, context)
        if not isinstance(rows, Tensor) or rows.shape != (f, honest.shape[1]):
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ConfigError(
                f"the attack {type(self).__name__} must return f = {f} rows of d = {honest.shape[1]} values, "
                f"got {got}: gyroscope.attacks.base.repeat(vector, f) makes f rows of one vector"
            )
        return rows.to(dtype=honest.dtype, device=honest.device)

    def __str__(self) -> str:
        """The spec on the command line and in a configuration that builds this attack: `little:factor=2`."""
        return registry.text(self)

    def check_feasible(self, n: int, f: int) -> None:
        """Raise before training starts if f Byzantine workers among n cannot do this."""
        return

    @abstractmethod
    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        """The algorithm, on checked input."""


def repeat(vector: Tensor, f: int) -> Tensor:
    """All f Byzantine workers send the same vector; it is stored once."""
    return vector.unsqueeze(0).expand(f, -1)
