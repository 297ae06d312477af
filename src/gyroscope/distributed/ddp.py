"""`gy.ddp`: robust aggregation in a DistributedDataParallel model, with whichever optimizer the user has.

gradient -> momentum at the worker -> exchange -> rule -> parameter.grad, the same on all ranks -> the user's optimizer
"""

from __future__ import annotations

import math
import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import flat_parameters
from gyroscope.distributed.collectives import Exchange
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.distributed.sharded_aggregator import ShardedAggregator
from gyroscope.momentum import WorkerMomentum
from gyroscope.rules import Rule

Scope = Literal["model", "bucket"]


def ddp(
    model: DistributedDataParallel,
    rule: Rule | str = "median",
    f: int = 1,
    *,
    mu: float = 0.9,
    dampening: float | None = None,
    scope: Scope = "model",
    seed: int = 0,
) -> RobustDDP:
    """Aggregate the gradients of a DistributedDataParallel model by a robust rule, in place of the mean.

        model = DistributedDataParallel(model)
        job = gy.ddp(model, rule="median", f=1)  # the one changed line
        optimizer = torch.optim.AdamW(model.parameters(), betas=(0.0, 0.999))

    Args:
        model: the wrapped model, the same on every rank. It must have no communication hook yet.
        rule: a rule or its spec, feasible for f of all ranks. It must not need a trusted gradient.
        f: how many ranks may have wrong gradients.
        mu: the factor of the momentum that each rank computes before the exchange; 0 for none. The optimizer should
            then have none of its own: betas=(0, ...) or momentum=0.
        dampening: how much of each gradient the momentum leaves out; by default mu, so that a row is an average of
            gradients and keeps their scale.
        scope: what a rule that compares whole rows compares: "model", whole gradients, which is what is proven of
            these rules; or "bucket", each of DDP's buckets by itself, during the backward pass and without a proof.
            Rules that read columns always work bucket by bucket, because for them both are the same.
        seed: of a rule that draws at random; the same on every rank.

    Returns:
        The job: verdicts on the ranks, and a state to save.

    Raises:
        InfeasibleError: the rule cannot tolerate f of that many ranks.
        ConfigError: the model is not a DistributedDataParallel, or a value is out of range.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"gy.ddp needs a torch.nn.parallel.DistributedDataParallel model, got {type(model).__name__}: wrap it "
            "first, or use gy.RobustSGD for a model as it is"
        )
    if scope not in ("model", "bucket"):
        raise ConfigError(f"scope must be 'model' or 'bucket', got {scope!r}")
    job = RobustDDP(model, rule, f, mu, mu if dampening is None else dampening, scope, seed)
    # torch checks a hook's annotations, and does not know those that are strings, as here.
    model.register_comm_hook(job, lambda job, bucket: job.take(bucket))
    return job


class RobustDDP:
    """What `gy.ddp` registers: the exchange of a model's gradients, and what it has seen of the ranks.

    **It withstands** up to f ranks whose *gradients* are wrong, whatever the cause: see `RobustSGD`, whose limits hold
    here, too. When more than f ranks send garbage, `loss.backward()` raises an error that names them, on every rank,
    before anything is updated.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        rule: Rule | str,
        f: int,
        mu: float,
        dampening: float,
        scope: Scope,
        seed: int,
    ) -> None:
        self.exchange = Exchange(model.process_group)
        self.aggregator = ShardedAggregator(self.exchange, rule, f, momentum="workers", seed=seed)
        self.rule, self.f, self.mu, self.dampening = self.aggregator.rule, f, mu, dampening
        self.by_bucket = self.rule.reads == "columns" or scope == "bucket"
        if self.by_bucket and self.rule.uses:
            raise ConfigError(
                f"the rule {self.rule} remembers whole rows, so it cannot work bucket by bucket: use scope='model'"
            )
        self.verdicts = RankVerdicts(self.exchange.n, f)
        self._device = next(model.module.parameters()).device
        self._names = {each: name for name, each in model.module.named_parameters() if each.requires_grad}
        self._momenta: dict[tuple[Tensor, ...], WorkerMomentum] = {}
        """The momentum of the parameters that are exchanged together; DDP rebuilds its buckets after the first step."""
        self._carried: dict[Tensor, Tensor] = {}
        """Momentum of parameters that no bucket has yet: from a saved state, or from buckets that are no more."""
        self._waiting: list[_Bucket] = []
        self._seen = _StepSeen()
        self._worker: _Worker | None = None
        if mu > 0:
            _warn_of_second_momentum(self._names)

    @property
    def last_weight(self) -> Tensor | None:
        """Each rank's share in the last step, (n,), float64; None for rules without such shares (Median)."""
        return self.verdicts.weight

    def report(self) -> str:
        """Return one line for a log, the same on every rank: how many ranks are ok, and which are not."""
        return self.verdicts.report()

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket of gradients from DDP; the future gets what all ranks make of it."""
        # DDP's object is no longer valid when this method has returned.
        taken = _Bucket(bucket.buffer(), tuple(bucket.parameters()), Future())
        last = bucket.is_last()
        self._waiting.append(taken)
        if self.by_bucket or last:
            buckets, self._waiting = self._waiting, []
            if taken.buffer.is_cuda:  # the stream orders the work, and a thread would have another one
                self._answer(buckets, last)
            else:
                if self._worker is None:
                    self._worker = _Worker()
                self._worker.put(lambda: self._answer(buckets, last))
        return taken.future

    @torch.no_grad()
    def _answer(self, buckets: Sequence[_Bucket], last: bool) -> None:
        """Aggregate these buckets together, and give each its share of the result."""
        try:
            order = buckets[0].parameters if self.by_bucket else tuple(self._names)
            gradients = {each: piece for bucket in buckets for each, piece in bucket.pieces().items()}
            row = self._row([gradients[each] for each in order])
            sent = self._momentum_of(order, row).update(row) if self.mu > 0 else row
            self.aggregator.width = sum(piece.numel() for piece in gradients.values())
            update = self.aggregator.step(sent.unsqueeze(0))
            self._seen.add(sent, update.vector, update.weight)
            if last:
                self._judge()
        except BaseException as problem:  # the backward pass raises it
            for bucket in buckets:
                bucket.future.set_exception(problem)  # type: ignore[arg-type]
            return
        results = _pieces(order, update.vector)
        for bucket in buckets:
            bucket.future.set_result(torch.cat([results[each].reshape(-1) for each in bucket.parameters]))

    def _row(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the gradients as one row, padded so that each rank gets an equal share of the columns."""
        kinds = {(piece.dtype, piece.device) for piece in pieces}
        if len(kinds) > 1:
            raise ConfigError(
                "the parameters must share one floating-point type and one device, got "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            )
        width = sum(piece.numel() for piece in pieces)
        row = pieces[0].new_zeros(self.exchange.padded(width))
        torch.cat([piece.reshape(-1) for piece in pieces], out=row[:width])
        return row

    def _momentum_of(self, parameters: tuple[Tensor, ...], row: Tensor) -> WorkerMomentum:
        """Return the momentum of parameters that are exchanged together. DDP may rebuild its buckets."""
        if parameters not in self._momenta:
            members = set(parameters)
            for key in [key for key in self._momenta if not members.isdisjoint(key)]:
                self._carried.update(_pieces(key, self._momenta.pop(key).buffer))
            fresh = WorkerMomentum(self.mu, dampening=self.dampening)
            if not self._carried.keys().isdisjoint(members):
                fresh.buffer = torch.zeros_like(row)
                for parameter, piece in _pieces(parameters, fresh.buffer).items():
                    if parameter in self._carried:
                        piece.copy_(self._carried.pop(parameter))
            self._momenta[parameters] = fresh
        return self._momenta[parameters]

    def _judge(self) -> None:
        """Tell all ranks what was seen of this one's row, and form the verdicts, the same on every rank."""
        mine, weight = self._seen.end()
        rows = self.exchange.rows(mine.to(self._device))
        self.verdicts.take([Seen(bool(finite), float(distance)) for finite, distance in rows.tolist()], weight)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: momentum by the names of parameters, the rule's state, the verdicts.

        Names begin with the rank, so that `torch.distributed.checkpoint` keeps every rank's momentum.
        """
        by_parameter = dict(self._carried)
        for key, kept in self._momenta.items():
            by_parameter.update(_pieces(key, kept.buffer))
        momentum = {self._names[parameter]: piece.clone() for parameter, piece in by_parameter.items()}
        aggregator = self.aggregator.state_dict()
        return {
            f"rank{self.exchange.rank}": {
                "momentum": momentum,
                "rounds": torch.tensor(aggregator["rounds"]),
                "rule": aggregator["rule"],
                "verdicts": self.verdicts.state_dict(),
            }
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same rank.

        Raises:
            ConfigError: the state is another rank's, or of another model.
        """
        name = f"rank{self.exchange.rank}"
        if name not in state:
            raise ConfigError(
                f"rank {self.exchange.rank} cannot continue from the state of {', '.join(state)}: each rank has its "
                "own momentum. Save job.state_dict() on every rank, and load it on the same rank"
            )
        own, parameters = state[name], {name: parameter for parameter, name in self._names.items()}
        for key, value in own["momentum"].items():
            if key not in parameters or parameters[key].shape != value.shape:
                raise ConfigError(
                    f"the saved momentum of {key!r} with the shape {tuple(value.shape)} is of another model"
                )
        self._momenta = {}
        self._carried = {parameters[key]: value.clone() for key, value in own["momentum"].items()}
        self.aggregator.load_rule_state(int(own["rounds"]), dict(own["rule"]))
        self.verdicts.load_state_dict(own["verdicts"])


class _Bucket(NamedTuple):
    """Gradients that DDP hands over together, as one vector, and the future that gets their place taken."""

    buffer: Tensor
    parameters: tuple[Tensor, ...]
    future: Future[Tensor]

    def pieces(self) -> dict[Tensor, Tensor]:
        return _pieces(self.parameters, self.buffer)


def _pieces(parameters: Sequence[Tensor], vector: Tensor | None) -> dict[Tensor, Tensor]:
    """Return each parameter's piece of a vector, as a view; none of no vector."""
    if vector is None:
        return {}
    width = sum(parameter.numel() for parameter in parameters)
    return dict(zip(parameters, flat_parameters.split_like(vector[:width], list(parameters)), strict=True))


class _StepSeen:
    """What a step shows of this rank's row, added up over the buckets."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.finite, self.squared, self.weights = True, 0.0, list[Tensor]()

    def add(self, sent: Tensor, vector: Tensor, weight: Tensor | None) -> None:
        squared = float(torch.linalg.vector_norm(sent - vector, dtype=torch.float64)) ** 2
        self.finite = self.finite and math.isfinite(squared)
        self.squared += squared
        if weight is not None:
            self.weights.append(weight)

    def end(self) -> tuple[Tensor, Tensor | None]:
        """Return (finite, distance), and each rank's mean share; begin the next step."""
        seen = torch.tensor([self.finite, math.sqrt(self.squared) if self.finite else math.inf], dtype=torch.float64)
        weight = torch.stack(self.weights).mean(dim=0) if self.weights else None
        self._clear()
        return seen, weight


class _Worker:
    """A thread that does one thing after the other, so that all ranks exchange their buckets in the same order."""

    def __init__(self) -> None:
        self.tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="gyroscope-ddp", daemon=True).start()

    def put(self, task: Callable[[], None]) -> None:
        self.tasks.put(task)

    def _work(self) -> None:
        while True:
            self.tasks.get()()


def _warn_of_second_momentum(names: Mapping[Tensor, str]) -> None:
    """Warn once, at the first step of an optimizer that has a momentum of its own on the parameters."""

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        groups = [group for group in optimizer.param_groups if any(each in names for each in group["params"])]
        if not groups:
            return
        handle.remove()
        for group in groups:
            own = group.get("momentum") or (group.get("betas") or (0.0,))[0]
            if own:
                remedy = "betas=(0.0, ...)" if "betas" in group else "momentum=0"
                warnings.warn(
                    f"{type(optimizer).__name__} has a momentum of its own ({own}) besides the workers' (gy.ddp's mu): "
                    f"the second one smooths what the rule returns, and no measurement says that this is better. Give "
                    f"the optimizer {remedy}, or gy.ddp(mu=0)",
                    stacklevel=2,
                )
                return

    handle = register_optimizer_step_pre_hook(look)
