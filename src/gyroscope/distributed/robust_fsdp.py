"""`gy.fsdp`: robust aggregation in a model that `fully_shard` has sharded, with whichever optimizer the user has.

Every rank a worker:       gradient -> exchange of columns -> each worker's momentum, kept by columns -> rule -> shard
Every replica a worker:    gradient of the replica, sharded -> momentum -> exchange between replicas -> rule -> shard
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from gyroscope import rules
from gyroscope._core.errors import ConfigError
from gyroscope._linalg import distances
from gyroscope.distributed.collectives import Exchange
from gyroscope.distributed.rank_verdicts import RankVerdicts, Seen
from gyroscope.momentum import WorkerMomentum
from gyroscope.rules import Rule


def fsdp(
    model: nn.Module,
    rule: Rule | str = "median",
    f: int = 1,
    *,
    mu: float = 0.9,
    dampening: float | None = None,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
) -> RobustFSDP:
    """Aggregate the gradients of a `fully_shard`-ed model by a robust rule, in place of the mean.

    FSDP reduces the gradients of each sharded unit (each module given to `fully_shard`) during the backward pass, and
    so a rule that compares whole rows compares those of each unit by itself. What is proven of whole gradients is not
    proven of that; rules that read columns (median, trimmed-mean) are the same either way.

    Memory: a rank keeps as many values of momentum as the model has parameters where every rank is a worker, and only
    those of its shard where the replicas are.

    Args:
        model: the model, sharded along one dimension; with replicas, along the one inside a replica.
        rule: a rule or its spec that reads columns or distances, feasible for f of all workers.
        f: how many workers may have wrong gradients.
        mu: the factor of each worker's momentum before the rule; 0 for none. The optimizer should have none of its own.
        dampening: how much of each gradient the momentum leaves out; by default mu, so that rows keep their scale.
        replicas: the ranks that hold the same shard in every replica, if the replicas are the workers.

    Returns:
        The job: verdicts on the workers, and a state to save.

    Raises:
        InfeasibleError: the rule cannot tolerate f of that many workers.
        ConfigError: nothing in the model is sharded, or the rule reads whole rows.

    Example:
        One rank, to show the calls; with more of them f is 1 or more.

        >>> import torch
        >>> import gyroscope as gy
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> model = torch.nn.Linear(2, 1)
        >>> mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        >>> _ = torch.distributed.fsdp.fully_shard(model, mesh=mesh)
        >>> job = gy.fsdp(model, rule="median", f=0)  # every rank is a worker
        >>> model(torch.ones(4, 2)).square().mean().backward()
        >>> torch.distributed.destroy_process_group()

        With replicas of four ranks each, every replica is a worker: `mesh = init_device_mesh("cuda", (8, 4),
        mesh_dim_names=("replicate", "shard"))`, `fully_shard(model, mesh=mesh["shard"])` and
        `gy.fsdp(model, f=2, replicas=mesh["replicate"])`.
    """
    units = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not units:
        raise ConfigError("gy.fsdp needs a sharded model: call torch.distributed.fsdp.fully_shard(model) first")
    group = replicas.get_group() if isinstance(replicas, DeviceMesh) else replicas
    return RobustFSDP(units, rule, f, mu, mu if dampening is None else dampening, group)


class RobustFSDP:
    """What `gy.fsdp` registers on each unit: the exchange of gradients, and what it has seen of the workers."""

    def __init__(
        self,
        units: Sequence[FSDPModule],
        rule: Rule | str,
        f: int,
        mu: float,
        dampening: float,
        replicas: dist.ProcessGroup | None,
    ) -> None:
        self.rule, self.f = rules.parse(rule), f
        if self.rule.reads == "rows":
            raise ConfigError(
                f"the rule {self.rule} reads whole rows, and no rank of a sharded model has one: use a rule that reads "
                "columns or distances, such as median, trimmed-mean, krum or nnm+median"
            )
        groups = [_shard_group(unit) for unit in units]
        self.workers = Exchange(replicas if replicas is not None else groups[0])
        self.rule.check_feasible(self.workers.n, f)
        self.verdicts = RankVerdicts(self.workers.n, f)
        self._momenta = [WorkerMomentum(mu, dampening=dampening) if mu > 0 else None for _ in units]
        for number, (unit, group) in enumerate(zip(units, groups, strict=True)):
            if replicas is None:
                unit.set_custom_reduce_scatter(_ReduceScatter(self, number))
                unit.set_gradient_divide_factor(1.0)  # the rule's result has the scale of one gradient
                unit.set_force_sum_reduction_for_comms(True)
            else:
                unit.set_all_reduce_hook(_between_replicas(self, number, Exchange(group)))

    def report(self) -> str:
        """Return one line for a log: how many workers are ok, and which are not. Each unit counts as a step."""
        return self.verdicts.report()

    def between_ranks(self, number: int, gradient: Tensor) -> Tensor:
        """Return this rank's shard of what the rule makes of all ranks' gradients of a unit."""
        momentum = self._momenta[number]
        rows = self.workers.columns(gradient)
        rows = rows if momentum is None else momentum.update(rows)
        return self._aggregate(rows, self.workers)

    def between_replicas(self, number: int, shard: Tensor, inside: Exchange) -> Tensor:
        """Return what the rule makes of all replicas' gradients of a unit, in the columns of this shard."""
        momentum = self._momenta[number]
        sent = shard if momentum is None else momentum.update(shard)
        return self._aggregate(self.workers.rows(sent), inside)

    def _aggregate(self, rows: Tensor, holders: Exchange) -> Tensor:
        """Apply the rule to the columns of this shard; the `holders` have the other columns of the same rows."""
        table = None
        if self.rule.reads == "distances":
            table = holders.total(distances.squared_distances(rows))
        aggregate = self.rule.on_columns(rows, self.f, table)
        known = aggregate.vector.nan_to_num(0.0, 0.0, 0.0)  # it must not make rows look not finite that are
        away = torch.linalg.vector_norm(rows - known, dim=1, dtype=torch.float64).square()
        squared = holders.rows(away).sum(dim=0)
        self.verdicts.take([Seen(value < torch.inf, value**0.5) for value in squared.tolist()], aggregate.weight)
        return aggregate.vector

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state. Names begin with the rank, so that a distributed checkpoint keeps all of them."""
        momenta = {str(i): each.state_dict() for i, each in enumerate(self._momenta) if each is not None}
        return {f"rank{dist.get_rank()}": {"momentum": momenta, "verdicts": self.verdicts.state_dict()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned on the same rank.

        Raises:
            ConfigError: the state is another rank's.
        """
        name = f"rank{dist.get_rank()}"
        if name not in state:
            raise ConfigError(f"{name} cannot continue from the state of {', '.join(state)}: each rank has its own")
        for number, saved in state[name]["momentum"].items():
            momentum = self._momenta[int(number)]
            if momentum is not None:
                momentum.load_state_dict(saved)
        self.verdicts.load_state_dict(state[name]["verdicts"])


def _shard_group(unit: FSDPModule) -> dist.ProcessGroup:
    """Return the ranks among which a unit is sharded."""
    parameter = next(iter(unit.parameters()))  # type: ignore[attr-defined]
    mesh: DeviceMesh = parameter.device_mesh
    if mesh.ndim != 1:
        raise ConfigError(
            f"the model is sharded over a mesh of {mesh.ndim} dimensions, in which FSDP itself averages over the "
            "replicas: shard it along the inner one, fully_shard(model, mesh=mesh['shard']), and give the outer one, "
            "gy.fsdp(model, replicas=mesh['replicate'])"
        )
    return mesh.get_group()


class _ReduceScatter(ReduceScatter):
    """FSDP's reduce-scatter of one unit, by the rule."""

    def __init__(self, job: RobustFSDP, number: int) -> None:
        self.job, self.number = job, number

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        output_tensor.copy_(self.job.between_ranks(self.number, input_tensor))


def _between_replicas(job: RobustFSDP, number: int, inside: Exchange) -> Any:
    def hook(reduced: Tensor) -> None:
        reduced.copy_(job.between_replicas(number, reduced, inside))

    return hook
