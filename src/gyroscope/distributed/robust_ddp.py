"""`gy.ddp`: robust aggregation in a DistributedDataParallel model, with whichever optimizer the user has.

gradient -> momentum at the worker -> exchange -> rule -> parameter.grad, the same on all ranks -> the user's optimizer
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed.distributed_c10d import _get_default_store
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gyroscope import rules
from gyroscope._core.errors import ConfigError, ExchangeError
from gyroscope.distributed.bucket_momentum import BucketMomentum
from gyroscope.distributed.collectives import Exchange, PrefixStore
from gyroscope.distributed.elastic_exchange import ElasticExchange, Ranks, Standing
from gyroscope.distributed.gradient_buckets import ExchangedPart, GradientBucket
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.distributed.second_momentum import warn_of_second_momentum
from gyroscope.distributed.sharded_aggregator import ShardedAggregator
from gyroscope.momentum import BASIC_PLACEMENTS, check_placement
from gyroscope.rules import Rule, RuleState

Scope = Literal["model", "bucket"]
_LOOK_EVERY = 0.2
"""Seconds between two looks for ranks that want to join."""


def ddp(
    model: DistributedDataParallel,
    rule: Rule | str = "median",
    f: int = 1,
    *,
    mu: float = 0.9,
    dampening: float | None = None,
    scope: Scope = "model",
    seed: int = 0,
    patience: float = 30.0,
    ranks: Ranks | None = None,
) -> RobustDDP:
    """Aggregate the gradients of a DistributedDataParallel model by a robust rule, in place of the mean.

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
            Rules that read columns work bucket by bucket in any case, because for them both are the same; with `ranks`
            everything waits for the last bucket.
        seed: of a rule that draws at random; the same on every rank.
        patience: how many seconds a rank may be silent until the others go on without it; longer than a step takes.
            (With gloo. With NCCL a lost rank ends the job.)
        ranks: who takes part, if not the model's process group: for jobs whose ranks may be started again. The model
            is then in a DistributedDataParallel of one rank, and each rank calls `job.enter` and `job.admit`.

    Returns:
        The job: verdicts on the ranks, and a state to save.

    Raises:
        InfeasibleError: the rule cannot tolerate f of that many ranks.
        ConfigError: the model is not a DistributedDataParallel, or a value is out of range.

    Example:
        One rank, to show the calls. `torchrun` starts as many as you like, and then f is 1 or more.

        >>> import torch
        >>> import gyroscope as gy
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
        >>> job = gy.ddp(model, rule="median", f=0)  # the one changed line
        >>> optimizer = torch.optim.AdamW(model.parameters(), betas=(0.0, 0.999))
        >>> model(torch.ones(4, 2)).square().mean().backward()
        >>> optimizer.step()
        >>> torch.distributed.destroy_process_group()
    """
    if not isinstance(model, DistributedDataParallel):
        raise ConfigError(
            f"gy.ddp needs a torch.nn.parallel.DistributedDataParallel model, got {type(model).__name__}: wrap it "
            "first, or use gy.RobustSGD for a model as it is"
        )
    if scope not in ("model", "bucket"):
        raise ConfigError(f"scope must be 'model' or 'bucket', got {scope!r}")
    check_placement("workers", mu, False, BASIC_PLACEMENTS)
    if isinstance(patience, str) or not 0 < patience < math.inf:
        raise ConfigError(f"patience must be a positive, finite number of seconds, got {patience!r}")
    if getattr(model, "_comm_hooks", None):
        raise ConfigError(
            "the model has a communication hook already, and DistributedDataParallel takes one: call gy.ddp once for "
            "each model, and register no other hook"
        )
    job = RobustDDP(model, rule, f, mu, mu if dampening is None else dampening, scope, seed, patience, ranks)
    model.broadcast_buffers = False  # one rank's statistics, NaN perhaps, would overwrite everyone's
    # torch checks a hook's annotations, and does not know those that are strings, as here.
    model.register_comm_hook(job, lambda job, bucket: job.take(bucket))
    return job


class RobustDDP:
    """What `gy.ddp` registers: the exchange of a model's gradients, and what it has seen of the ranks.

    **It withstands** up to f ranks whose *gradients* are wrong, whatever the cause: see `RobustSGD`, whose limits hold
    here, too, but for one: a rank that dies or hangs is missing from then on. The others notice, agree on who is left,
    and go on from the same parameters; the missing rank counts among the f. When more than f ranks are missing or send
    garbage, `loss.backward()` raises an error that names them, on every rank, before anything is updated.

    Buffers such as batch-norm's running statistics stay each rank's own.
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
        patience: float,
        ranks: Ranks | None,
    ) -> None:
        self.rule = rules.parse(rule)
        self.f, self.mu = f, mu
        # DDP orders parameters anew after a rank's first step: one that has just been started again has another order.
        self.by_bucket = ranks is None and (self.rule.reads == "columns" or scope == "bucket")
        if scope == "bucket" and ranks is not None:
            raise ConfigError("ranks that may be started again have other buckets than the others: use scope='model'")
        if self.by_bucket and self.rule.uses:
            raise ConfigError(
                f"the rule {self.rule} remembers whole rows, so it cannot work bucket by bucket: use scope='model'"
            )
        # Before ranks connect: one that gives up at once would look lost to the others.
        self.rule.check_feasible(ranks.n if ranks else dist.get_world_size(model.process_group), f)
        self.exchange = ElasticExchange(ranks, patience) if ranks else _exchange(model.process_group, patience)
        self.aggregator = ShardedAggregator(self.exchange, self.rule, f, momentum="workers", seed=seed, watch=True)
        self.verdicts = RankVerdicts(self.exchange.n, f)
        self._device: torch.device = next(model.module.parameters()).device
        self._module = model.module
        self._restartable, self._looked = ranks is not None, -math.inf
        self._requests = 0
        """How many requests to join there have been, as all ranks know."""
        self._joining = False
        """Whether this rank was started again and does not have what the others have yet."""
        self._last_result: Tensor | None = None
        """The last part's result of the step before, for ranks that lost the end of that step."""
        self._last_problem = ""
        """What the end of that step raised."""
        self._names = {each: name for name, each in model.module.named_parameters() if each.requires_grad}
        self._momentum = BucketMomentum(mu, dampening)
        self._waiting: list[GradientBucket] = []
        self._parts: list[ExchangedPart] = []
        self._problem: BaseException | None = None
        self._before: tuple[int, RuleState] | None = None
        """The rule's rounds and state at the beginning of the step, to do it again."""
        # One thread, so that all ranks exchange their buckets in the same order. The interpreter waits for it at exit.
        self._thread = ThreadPoolExecutor(1, "gyroscope-ddp")
        if mu > 0:
            warn_of_second_momentum(self._names)

    @property
    def last_weight(self) -> Tensor | None:
        """Each rank's share in the last step, (n,), float64; None for rules without such shares (Median)."""
        return self.verdicts.weight

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return self._device

    def report(self) -> str:
        """Return one line for a log, the same on every rank: how many ranks are ok, and which are not."""
        return self.verdicts.report()

    def take(self, bucket: GradBucket) -> Future[Tensor]:
        """Take a bucket of gradients from DDP; the future gets what all ranks make of it."""
        # DDP's object is no longer valid when this method has returned.
        taken = GradientBucket(bucket.buffer(), tuple(bucket.parameters()), Future())
        last = bucket.is_last()
        if last:
            # DDP queues its own end after this; what a callback queues comes after both.
            _at_the_end_of_backward(lambda: _at_the_end_of_backward(self._raise_problem))
        self._waiting.append(taken)
        if self.by_bucket or last:
            buckets, self._waiting = self._waiting, []
            if taken.buffer.is_cuda:  # the stream orders the work, and a thread would have another one
                self._answer(buckets, last)
            else:
                self._thread.submit(self._answer, buckets, last)
        return taken.future

    def _raise_problem(self) -> None:
        """Raise what the exchange of this step has raised, after DDP has taken the results, which are NaN then."""
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    @torch.no_grad()
    def _answer(self, buckets: Sequence[GradientBucket], last: bool) -> None:
        """Aggregate these buckets together; with the last ones of a step, give all of them the results."""
        try:
            if self._problem is not None:
                raise self._problem  # an earlier bucket of this step has failed
            order, row = self._row(buckets)
            sent = self._momentum.update(order, row) if self.mu > 0 else row
            self._parts.append(ExchangedPart(order, sent, buckets))
            self._exchange_parts(last)
        except BaseException as problem:  # the backward pass raises it at its end
            self._problem = self._problem or problem
        if self._problem is not None:
            for bucket in {id(each): each for part in self._parts for each in part.buckets}.values() or buckets:
                if not bucket.future.done():
                    bucket.future.set_result(torch.full_like(bucket.buffer, torch.nan))
            self._parts, self._before = [], None
            return
        if last:
            finished, self._parts = self._parts, []
            for part in finished:
                part.hand_out()

    def _row(self, buckets: Sequence[GradientBucket]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the parameters of these buckets, and their gradients in that order as one row.

        DDP orders them anew after the first step. What a rule remembers of rows, and what ranks that are started again
        exchange with others, has the order of the model.
        """
        if len(buckets) == 1 and not self.rule.uses and not self._restartable:
            return buckets[0].parameters, buckets[0].buffer
        kinds = {(bucket.buffer.dtype, bucket.buffer.device) for bucket in buckets}
        if len(kinds) > 1:
            raise ConfigError(
                "the parameters must share one floating-point type and one device, got "
                + ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            )
        gradients = {each: piece for bucket in buckets for each, piece in bucket.pieces().items()}
        order = tuple(self._names)
        return order, torch.cat([gradients[each].reshape(-1) for each in order])

    def _exchange_parts(self, last: bool) -> None:
        """Exchange the parts of this step that have no result yet. After a loss, do all of them again without the lost.

        The last exchange of a step may succeed for some ranks and fail for others. Those that have finished the step
        then give its end to those that have not.
        """
        before = (
            (self.aggregator.rounds, self.aggregator.rule_context().state) if self._before is None else self._before
        )
        self._before = None if last else before
        while True:
            try:
                for part in self._parts:
                    if part.result is None:
                        self._exchange_part(part)
                break
            except ExchangeError:
                if not isinstance(self.exchange, ElasticExchange):
                    raise
                if self._regroup(self.exchange):
                    if self._last_problem:
                        raise self._on_this_rank(self._last_problem) from None
                    return
                self.aggregator.load_rule_state(*before)
                for part in self._parts:
                    part.result = None
        if last:
            self._last_result = self._parts[-1].result
            notices = [part.notice for part in self._parts if part.notice is not None]
            squared = torch.stack(notices).sum(dim=0).tolist()[:-1]
            self._requests = int(notices[-1][-1])
            weights = [part.weight for part in self._parts if part.weight is not None]
            seen = [
                Seen(distance < math.inf, math.sqrt(distance), rank not in self.exchange.members)
                for rank, distance in enumerate(squared)
            ]
            self._last_problem = ""
            try:
                self.verdicts.take(seen, torch.stack(weights).mean(dim=0) if weights else None)
            except ExchangeError as problem:
                self._last_problem = str(problem)
                raise self._on_this_rank(self._last_problem) from None

    def _on_this_rank(self, problem: str) -> ExchangeError:
        """Return an error that says whose it is: with `ranks` torch takes every rank for its rank 0."""
        return ExchangeError(f"rank {self.exchange.rank}: {problem}")

    def _exchange_part(self, part: ExchangedPart) -> None:
        width = self.aggregator.width = len(part.sent)
        padding = self.exchange.padded(width) - width
        row = torch.nn.functional.pad(part.sent, (0, padding)) if padding else part.sent
        self._look_for_requests()
        update = self.aggregator.step(row.unsqueeze(0))
        part.result, part.weight, part.notice = update.vector[:width], update.weight, self.aggregator.notice

    def _look_for_requests(self) -> None:
        """Let the first rank tell the others how many requests to join there have been."""
        exchange, now = self.exchange, time.monotonic()
        if not (self._restartable and isinstance(exchange, ElasticExchange) and now > self._looked + _LOOK_EVERY):
            return
        if exchange.rank == exchange.members[0]:
            self._looked, self.aggregator.news = now, exchange.requests()

    def _regroup(self, exchange: ElasticExchange, stateful: Mapping[str, Any] | None = None) -> bool:
        """Go on without the ranks that are lost, and with those that join.

        All that regroup do the same: who has finished a step gives its end to those that have not, then a rank that is
        between two steps gives everything to those that join.

        Args:
            exchange: between the ranks.
            stateful: as for `enter`, if this rank is between two steps.

        Returns:
            Whether this rank was given the end of its step by another.
        """
        given = False
        while True:
            finished, least = (-1, 1) if self._joining else (self.verdicts.steps, exchange.n - self.f)
            standing = exchange.regroup(finished, least, hosts=stateful is not None and not self._joining)
            try:
                if standing.behind < standing.ahead:
                    given |= self._share_end(exchange, standing)
                if standing.host >= 0:
                    self._share_everything(exchange, standing.host, stateful or {})
            except ExchangeError:  # one more was lost: `regroup` ends this when too few are left
                continue
            return given

    def _share_end(self, exchange: ElasticExchange, standing: Standing) -> bool:
        """Give or take the end of a step; return whether this rank took it."""
        wanted = not self._joining and self.verdicts.steps < standing.ahead
        end = {"requests": self._requests, "result": self._last_result, "problem": self._last_problem}
        given = exchange.given_by(standing.giver, {**self._alike(), **end}, wanted)
        if wanted:
            self._load_alike(given)
            self._requests, self._last_problem = given["requests"], given["problem"]
            self._last_result = self._parts[-1].result = given["result"].to(self._device)
        return wanted

    def _share_everything(self, exchange: ElasticExchange, host: int, stateful: Mapping[str, Any]) -> None:
        """Give or take all that a rank needs that has just joined."""
        mine: dict[str, Any] = {}
        if exchange.rank == host:
            states = {name: each.state_dict() for name, each in stateful.items()}
            mine = {**self._alike(), "model": self._module.state_dict(), "stateful": states}
        given = exchange.given_by(host, mine, self._joining)
        if self._joining:
            self._module.load_state_dict(given["model"])
            self._load_alike(given)
            for name, each in stateful.items():
                each.load_state_dict(given["stateful"][name])
            self._requests, self._joining = exchange.admitted, False

    def enter(self, seconds: float = 600.0, **stateful: Any) -> int:
        """Begin, or go on where the others are, if this rank has been started again.

        Args:
            seconds: how long to wait until the others let this rank in.
            stateful: what else all ranks have alike, by any name: optimizer=optimizer, schedule=schedule.

        Returns:
            How many steps the job has finished: 0 at its beginning.
        """
        exchange = self.exchange
        if not isinstance(exchange, ElasticExchange):
            return self.verdicts.steps
        if exchange.start > 1:
            self._joining = True
            exchange.join(seconds)
            self._regroup(exchange, stateful)
            if self._joining:
                raise ExchangeError(f"the others could not let rank {exchange.rank} in: start it again")
        else:
            for value in self._module.state_dict().values():
                exchange.take_from_first(value)
        return self.verdicts.steps

    def admit(self, **stateful: Any) -> None:
        """Let in ranks that have been started again. All ranks call it at the end of every step, after the optimizer.

        Args:
            stateful: as for `enter`.
        """
        exchange = self.exchange
        if isinstance(exchange, ElasticExchange) and self._requests > exchange.admitted:
            exchange.invite(self._requests)
            self._regroup(exchange, stateful)

    def _alike(self) -> dict[str, Any]:
        """Return what all ranks know alike after a step, but for the parameters."""
        state = self.aggregator.state_dict()
        return {"rule": state["rule"], "rounds": state["rounds"], "verdicts": self.verdicts.state_dict()}

    def _load_alike(self, given: Mapping[str, Any]) -> None:
        rule = {name: value.to(self._device) for name, value in given["rule"].items()}
        self.aggregator.load_rule_state(given["rounds"], rule)
        self.verdicts.load_state_dict(given["verdicts"])

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: momentum by the names of parameters, the rule's state, the verdicts.

        Names begin with the rank, so that `torch.distributed.checkpoint` keeps every rank's momentum.
        """
        by_parameter = self._momentum.by_parameter()
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
        self._momentum.load({parameters[key]: value.clone() for key, value in own["momentum"].items()})
        rule = {key: value.to(self._device) for key, value in own["rule"].items()}
        self.aggregator.load_rule_state(int(own["rounds"]), rule)
        self.verdicts.load_state_dict(own["verdicts"])


def _exchange(group: dist.ProcessGroup, patience: float) -> Exchange:
    """Return the exchange between the ranks of DDP's group: with gloo, one that survives the loss of ranks."""
    if dist.get_backend(group) != "gloo":
        return Exchange(group)
    names = f"gyroscope/{group.group_name}/{next(_JOBS)}"
    ranks = Ranks(PrefixStore(names, _get_default_store()), dist.get_rank(group), dist.get_world_size(group))
    return ElasticExchange(ranks, patience)


_JOBS = itertools.count()


def _at_the_end_of_backward(function: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(function)
