"""The base class of every attack: a frozen dataclass that turns the honest rows into f Byzantine ones."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from gyroscope import rules
from gyroscope._core import registry
from gyroscope._core.errors import ConfigError, UnknownNameError
from gyroscope._linalg import matrix
from gyroscope._linalg.moments import CachedMoments
from gyroscope.rules import Rule, RuleContext


class MissingKnowledgeError(ConfigError):
    """An attack needs a part of its `AttackContext` that it was not given. `Attack.__call__` adds the attack's name."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"this attack {problem}")
        self.problem = problem


class ScopedState(MutableMapping[str, Tensor]):
    """The state of an attack inside another one: the part of the outer state whose names begin with a prefix."""

    def __init__(self, whole: MutableMapping[str, Tensor], prefix: str) -> None:
        self.whole, self.prefix = whole, prefix

    def __getitem__(self, name: str) -> Tensor:
        return self.whole[self.prefix + name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self.whole[self.prefix + name] = value

    def __delitem__(self, name: str) -> None:
        del self.whole[self.prefix + name]

    def __iter__(self) -> Iterator[str]:
        return iter([name[len(self.prefix) :] for name in self.whole if name.startswith(self.prefix)])

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackContext:
    """What an omniscient adversary knows besides the honest rows. It can change nothing of it but its own state."""

    declared_f: int
    """How many Byzantine workers the rule is told to tolerate."""
    rule: Rule | None = None
    """The configured rule, with its parameters."""
    generator: torch.Generator = dataclasses.field(default_factory=_seeded)
    """The adversary's own randomness for this step."""
    step: int = 0
    parameters: Tensor | None = None
    """The model's parameters, as one vector."""
    momentum: str = "none"
    """Where momentum is computed; if at the workers, the honest rows already include it."""
    rule_context: RuleContext = dataclasses.field(default_factory=RuleContext)
    """What the rule will know besides the rows, including its state and its randomness of this step."""
    state: MutableMapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """The adversary's own state: named tensors that it may write, and that the next round passes again."""
    moments: CachedMoments | None = None
    """The honest rows with their moments, which the metrics of the round need, too."""
    compute_gradients: Callable[[bool], Tensor] | None = None
    """How `own_gradients` are computed, if the Byzantine workers have data: a function from `flipped` to f rows."""
    preview: Callable[[Tensor], Tensor] | None = None
    """What the server does to all n rows before the rule sees them, if anything: accumulate them, for example."""
    server: int = 0
    """The server to which these rows go: a worker may send each server other rows."""
    servers: int = 1

    def outcome(self, rows: Tensor) -> Tensor:
        """Return what the server will make of these n rows: the whole configured rule, as it will be applied."""
        if self.rule is None:
            raise MissingKnowledgeError(
                "searches for the rows that do most damage to a rule, and no rule is given: call "
                "attack(honest, f, rule='krum')"
            )
        return self.rule(self.shown(rows), self.declared_f, self.rule_context).vector

    def shown(self, rows: Tensor) -> Tensor:
        """Return what the rule will see of these n rows."""
        return rows if self.preview is None else self.preview(rows)

    def own_gradients(self, flipped: bool = False) -> Tensor:
        """Return (f, d): what the Byzantine workers would send if they followed the protocol, each at its own data.

        Gradients are clipped, and accumulated if momentum is at the workers: then call this in every round, because
        the momentum misses a round without a call. They are computed at the first call.

        Args:
            flipped: Compute them at wrong labels, C-1-y instead of y.
        """
        if self.compute_gradients is None:
            raise MissingKnowledgeError(
                "needs gradients at the Byzantine workers' own data, and no compute_gradients is given: call "
                "attack(honest, f, compute_gradients=function), where function(flipped) returns f rows (a training run "
                "computes them)"
            )
        return self.compute_gradients(flipped)

    def within(self, name: str) -> AttackContext:
        """Return the context for an attack inside another one, whose state is kept apart under this name."""
        return dataclasses.replace(self, state=ScopedState(self.state, f"{name}/"))

    def uniform(self, *shape: int) -> Tensor:
        """Draw float64 numbers in [0, 1) from the adversary's generator, on its device."""
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64, device=self.generator.device)

    def signs(self, like: Tensor) -> Tensor:
        """Draw 1 or -1 for each value of a vector, in its dtype and on its device."""
        return self.uniform(len(like)).sub_(0.5).sign_().to(like)


@dataclasses.dataclass(frozen=True)
class Attack(registry.Named):
    """What the f Byzantine workers send. They collude and see everything.

    A subclass implements `rows`; users call the object: `Little()(honest, f)`.
    """

    kind_in_errors = "attack"
    finite: ClassVar[bool] = True
    """Whether the Byzantine rows are finite if the honest rows are."""

    def __call__(
        self, honest: Tensor | Sequence[Tensor], f: int, context: AttackContext | None = None, **known: Any
    ) -> Tensor:
        """Return the f Byzantine rows.

        Args:
            honest: The honest rows: an (h, d) floating-point tensor, or a list or tuple of h vectors. It is never
                changed.
            f: How many workers are Byzantine.
            context: What the adversary knows besides the honest rows.
            known: The same as keywords, in place of a context: the fields of `AttackContext`, of which `rule` may be a
                spec (`rule="krum"`), and `seed` in place of `generator`. By default `declared_f` is f (or the rule's,
                if it was built with one), and the seed is 0.

        Returns:
            (f, d), in the honest rows' dtype and on their device. Equal rows may share memory (stride 0): copy before
            writing.

        Raises:
            ConfigError: The attack needs to know something that it is not given; the message names the keyword.
        """
        honest = matrix.check(honest)
        if isinstance(f, bool) or not isinstance(f, int) or f < 1:
            raise ConfigError(f"an attack needs at least one Byzantine worker, got f = {f!r}")
        if context is None:
            context = self._context(f, known)
        elif known:
            raise ConfigError(
                f"the attack {self} is given a context and the keywords {', '.join(known)}: put them into the context, "
                "or give keywords only"
            )
        # Attacks of this package never write to the honest rows. Those of others may, and get a copy.
        ours = type(self).__module__.startswith("gyroscope.")
        try:
            rows = self.rows(honest if ours else honest.clone(), f, context)
        except MissingKnowledgeError as missing:
            raise ConfigError(f"the attack {self} {missing.problem}") from None
        if not isinstance(rows, Tensor) or rows.shape != (f, honest.shape[1]):
            got = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ConfigError(
                f"the attack {type(self).__name__} must return f = {f} rows of d = {honest.shape[1]} values, "
                f"got {got}: gyroscope.attacks.base.repeat(vector, f) makes f rows of one vector"
            )
        return rows.to(dtype=honest.dtype, device=honest.device)

    def check_feasible(self, n: int, f: int) -> None:
        """Raise an error, before training starts, if f Byzantine workers among n cannot carry out the attack."""
        return

    @abstractmethod
    def rows(self, honest: Tensor, f: int, context: AttackContext) -> Tensor:
        """Run the algorithm on checked input."""

    def _context(self, f: int, known: dict[str, Any]) -> AttackContext:
        names = [*(field.name for field in dataclasses.fields(AttackContext)), "seed"]
        for name in known:
            if name not in names:
                raise UnknownNameError("keyword", name, names, of=f"attack {str(self)!r}")
        if "seed" in known:
            if "generator" in known:
                raise ConfigError(f"the attack {self} is given a seed and a generator: give one of the two")
            known["generator"] = _seeded(known.pop("seed"))
        rule = known.get("rule")
        if isinstance(rule, str):
            rule = known["rule"] = rules.parse(rule)
        if not isinstance(rule, Rule | None):
            raise ConfigError(f"the rule must be a spec, such as 'krum', or an object, such as Krum(), got {rule!r}")
        return AttackContext(**{"declared_f": f if rule is None or rule.f is None else rule.f, **known})


def repeat(vector: Tensor, f: int) -> Tensor:
    """Return f equal rows, stored once."""
    return vector.unsqueeze(0).expand(f, -1)


def to_unit_scale(rows: Tensor) -> tuple[Tensor, float]:
    """Return the rows in float64 divided by a power of two, and that power; the largest magnitude is then near 1.

    For attacks that compute with squares of distances: none overflows or vanishes, whatever the rows' own scale.
    Multiplying by the power is exact.
    """
    exponent = min(1023, math.frexp(float(rows.abs().max()))[1])
    # In two steps, because 2^-exponent by itself may be outside float64's range although the rows are not.
    half = exponent // 2
    return rows.to(torch.float64) * 2.0**-half * 2.0 ** (half - exponent), 2.0**exponent


def finite(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows in this dtype; values beyond its range become its largest number."""
    largest = torch.finfo(dtype).max
    return rows.clamp(-largest, largest).to(dtype)


def normalized(vector: Tensor) -> Tensor:
    """Return the vector at length 1; a vector of zeros stays zero."""
    length: Tensor = torch.linalg.vector_norm(vector, dim=-1, keepdim=True)
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)
