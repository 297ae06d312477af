"""`RobustOptimizer`: any optimizer, fed with what a robust rule makes of all ranks' gradients, without a DDP.

gradient -> clipping -> momentum at the workers -> exchange -> rule -> parameter.grad -> the optimizer
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import flat_parameters, matrix
from gyroscope.distributed.collectives import Exchange
from gyroscope.distributed.sharded_aggregator import ShardedAggregator
from gyroscope.momentum import BASIC_PLACEMENTS, WorkerMomentum, check_placement
from gyroscope.rules import Rule


class ExchangingOptimizer(torch.optim.Optimizer):
    """What `RobustOptimizer` and `RobustSGD` share: the exchange of gradients, momentum, and their state."""

    last_weight: Tensor | None = None
    """Each rank's share in the last step, (n,), float64: a rank that keeps getting 0 is suspect. None before the first
    step, and for rules without such shares (Median)."""

    _constructed = False

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        rule: Rule | str,
        f: int,
        clip: float,
        momentum: str,
        mu: float,
        nesterov: bool,
        dampening: float,
        process_group: dist.ProcessGroup | None,
        seed: int,
    ) -> None:
        check_placement(momentum, mu, nesterov, BASIC_PLACEMENTS)
        params = _parameters(params)
        self._exchange = Exchange(process_group)
        self._aggregator = ShardedAggregator(
            self._exchange, rule, f, momentum=momentum, mu=mu, nesterov=nesterov, seed=seed
        )
        self.rule, self.momentum = self._aggregator.rule, momentum
        self._worker_momentum = None
        if momentum == "workers":
            self._worker_momentum = WorkerMomentum(mu, nesterov=nesterov, dampening=dampening)
        self._accumulator = self._worker_momentum or self._aggregator.after_rule
        self._settings = (
            f"{self.rule} f={f} seed={seed} clip={clip} momentum={momentum} mu={mu} nesterov={nesterov} "
            f"dampening={dampening}"
        )
        self.clip = number("clip", clip)
        if self.clip == 0:
            raise ConfigError("clip must be above 0 (a gradient of length 0 teaches nothing), got 0")
        super().__init__(params, defaults)
        self._constructed = True
        self._make_equal([parameter for group in self.param_groups for parameter in group["params"]])
        self._lay_out()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters. A collective: all ranks must add the same group at the same time."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for name in self.defaults:
            number(name, group[name])
        if self._constructed:
            self._make_equal(group["params"])
            self._lay_out()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Exchange gradients and update the parameters. A collective: all ranks must call it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if list(map(id, self._parameters)) != list(map(id, self._trainable())):  # some were frozen, or are no longer
            self._lay_out()
        self._write_gradients()
        row = self._row.unsqueeze(0)
        if self.clip < math.inf:
            matrix.shift_and_clip(row, None, self.clip)
        sent = row[0] if self._worker_momentum is None else self._worker_momentum.update(row[0])
        update = self._aggregator.step(sent.unsqueeze(0))
        self.last_weight = update.weight
        self._apply(update.vector)
        return loss

    def _apply(self, vector: Tensor) -> None:
        """Update the parameters by the rule's result."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, for this rank alone."""
        aggregator = self._aggregator.state_dict()  # its momentum is in `self.state`, as usual
        own = {"rank": self._exchange.rank, "steps": aggregator["rounds"], "rule": aggregator["rule"]}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that the same rank saved. The model's state dict holds the parameters.

        Raises:
            ConfigError: the state is another rank's, or of another placement of momentum or another model.
        """
        rank = state_dict.get("rank", self._exchange.rank)
        if self._worker_momentum is not None and rank != self._exchange.rank:
            raise ConfigError(
                f"rank {self._exchange.rank} cannot continue from the state of rank {rank}: each rank has its own "
                "momentum. Save optimizer.state_dict() on every rank, in a file per rank, and load it on the same rank"
            )
        wanted = [self.momentum] if self._accumulator else []
        for number, saved in state_dict["state"].items():
            if sorted(saved) != wanted:
                raise ConfigError(
                    f"the saved state of parameter {number} holds {sorted(saved)}, but momentum at "
                    f"{self.momentum!r} needs {wanted}: load it into an optimizer with the same momentum, or load the "
                    "model alone and begin with no momentum"
                )
        super().load_state_dict(state_dict)
        self._lay_out()
        rule = {name: value.to(self._row.device, copy=True) for name, value in state_dict.get("rule", {}).items()}
        self._aggregator.load_rule_state(state_dict.get("steps", 0), rule)

    def _write_gradients(self) -> None:
        """Write this rank's gradient as one row."""
        for parameter, piece, _ in self._pieces():
            gradient = parameter.grad
            if gradient is None:
                piece.zero_()
            else:
                piece.copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def _trainable(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]

    def _pieces(self, vector: Tensor | None = None) -> Iterable[tuple[Tensor, Tensor, dict[str, Any]]]:
        """Return each trainable parameter, its piece of a vector (without one, of the row), and its group."""
        groups = [group for group in self.param_groups for parameter in group["params"] if parameter.requires_grad]
        pieces = flat_parameters.split_like((self._row if vector is None else vector)[: self._width], self._parameters)
        return zip(self._parameters, pieces, groups, strict=True)

    def _lay_out(self) -> None:
        """Lay out the row and the momentum for the trainable parameters.

        `self.state` holds views of the momentum, so that a state dict is as usual; what it held before is carried over.
        """
        self._parameters = parameters = self._trainable()
        if not parameters:
            raise ConfigError("there are no parameters to train: none of those given requires a gradient")
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        if len(kinds) > 1 or not parameters[0].is_floating_point():
            raise ConfigError(
                "the parameters must share one floating-point type and one device, got "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
                + ": move the model with model.to(...)"
            )
        self._width = sum(parameter.numel() for parameter in parameters)
        self._aggregator.width = self._width
        self._aggregator.load_rule_state(self._aggregator.rounds, {})  # the old one was of other columns
        self._row = parameters[0].new_zeros(self._exchange.padded(self._width), requires_grad=False)
        if self._accumulator is None:
            return
        self._accumulator.buffer = torch.zeros_like(self._row)
        for parameter, piece, _ in self._pieces(self._accumulator.buffer):
            saved = self.state[parameter].get(self.momentum)
            if saved is not None and saved.shape != piece.shape:
                raise ConfigError(
                    f"the saved momentum has the shape {tuple(saved.shape)}, its parameter {tuple(piece.shape)}: it is "
                    "of another model"
                )
            if saved is not None:
                piece.copy_(saved)
            self.state[parameter][self.momentum] = piece

    @torch.no_grad()
    def _make_equal(self, parameters: list[Tensor]) -> None:
        """Check that all ranks have the same parameters and settings, then copy the values of rank 0 to all."""
        shapes = [tuple(parameter.shape) for parameter in parameters]
        count, size = len(parameters), sum(parameter.numel() for parameter in parameters)
        mine = torch.tensor([count, size, _digest(str(shapes)), _digest(self._settings)], device=parameters[0].device)
        first, *others = self._exchange.rows(mine).tolist()
        for rank, other in enumerate(others, start=1):
            if first[:3] != other[:3]:
                raise ConfigError(
                    f"the ranks have different models: rank 0 has {first[0]} tensors with {first[1]} parameters, "
                    f"rank {rank} has {other[0]} with {other[1]}"
                    + (", of other shapes" if first[:2] == other[:2] else "")
                    + ". Build the same model on every rank"
                )
            if first != other:
                raise ConfigError(
                    f"ranks 0 and {rank} have different settings; this rank has {self._settings}. Give every "
                    "rank the same"
                )
        for parameter in parameters:
            values = parameter.contiguous()
            self._exchange.take_from_first(values)
            parameter.copy_(values)


def _parameters(params: Iterable[Any]) -> list[Any]:
    """Return parameters or groups as a list, or raise where there are none."""
    listed = [] if isinstance(params, (torch.nn.Module, Tensor, str)) else list(params)
    if not listed or not all(isinstance(each, (Tensor, dict, tuple)) for each in listed):
        got = type(params).__name__ if not listed else type(listed[0]).__name__
        raise ConfigError(
            f"an optimizer needs a model's parameters, at least one: pass model.parameters(), got a {got}"
        )
    return listed


def number(name: str, value: Any) -> float:
    """Return a number of at least 0, or raise. (A learning rate may be a tensor, as elsewhere in torch.)"""
    if isinstance(value, (bool, str)) or not float(value) >= 0:
        raise ConfigError(f"{name} must be a number of at least 0, got {value!r}")
    return value  # type: ignore[no-any-return]


def _digest(text: str) -> int:
    """Return a number that two different texts do not share."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


class RobustOptimizer(ExchangingOptimizer):
    """Exchange gradients between ranks, aggregate them by a robust rule, and let any optimizer take the step.

    For a model as it is, not in a DDP; for one in a DDP there is `gy.ddp`. What it withstands, and what not, is what
    `RobustSGD` withstands. After a step `parameter.grad` holds the rule's result, the same on all ranks. Schedulers and
    `zero_grad` work on it as on the inner optimizer. The inner optimizer should have no momentum of its own.

    Example:
        One rank, to show the calls. `torchrun` starts as many as you like, and then f is 1 or more.

        >>> import torch
        >>> import gyroscope as gy
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> inner = torch.optim.AdamW(model.parameters(), betas=(0.0, 0.999))
        >>> optimizer = gy.RobustOptimizer(inner, rule="median", f=0)
        >>> model(torch.ones(4, 2)).square().mean().backward()
        >>> optimizer.step()
        >>> torch.distributed.destroy_process_group()
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        rule: Rule | str,
        f: int,
        clip: float = math.inf,
        momentum: str = "workers",
        mu: float = 0.9,
        dampening: float | None = None,
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
    ) -> None:
        """Check that all ranks agree, and copy rank 0's parameters to all.

        Args:
            optimizer: the optimizer that takes the steps, the same on every rank.
            rule: a rule or its spec, feasible for f of all ranks. It must not need a trusted gradient.
            f: how many ranks may have wrong gradients.
            clip: the largest Euclidean norm of a rank's gradient, over all parameters together.
            momentum: "workers", or "none" where the optimizer's own momentum is wanted.
            mu: the momentum factor, 0 <= mu < 1.
            dampening: how much of each gradient the momentum leaves out; by default mu, so that a row is an average of
                gradients and keeps their scale.
            process_group: the ranks that take part, if not all.
            seed: of a rule that draws at random; the same on every rank.

        Raises:
            InfeasibleError: the rule cannot tolerate f of that many ranks.
            ConfigError: a value is out of range, or the ranks' models or settings differ.
            ExchangeError: a rank has ended or hangs.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ConfigError(
                f"an optimizer of torch is needed, such as torch.optim.AdamW(model.parameters()), got {optimizer!r}"
            )
        if momentum == "server":
            raise ConfigError("momentum at the server is the optimizer's own here: use momentum='none'")
        self.optimizer = optimizer
        # The groups are the optimizer's own dictionaries, so a scheduler changes both.
        super().__init__(
            optimizer.param_groups, {}, rule, f, clip, momentum, mu, False, mu if dampening is None else dampening,
            process_group, seed,
        )  # fmt: skip

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters. A collective: all ranks must add the same group at the same time."""
        if self._constructed:
            self.optimizer.add_param_group(param_group)
            param_group = self.optimizer.param_groups[-1]
        super().add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank and of the inner optimizer."""
        return {**super().state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that the same rank saved. The model's state dict holds the parameters."""
        self.optimizer.load_state_dict(state_dict["optimizer"])
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "optimizer"})
        self.param_groups[:] = self.optimizer.param_groups

    def _apply(self, vector: Tensor) -> None:
        for parameter, piece, _ in self._pieces(vector):
            parameter.grad = piece.clone()
        self.optimizer.step()
