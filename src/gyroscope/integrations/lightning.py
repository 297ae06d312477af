"""Robust training with Lightning: a strategy that registers gy.ddp on the model that Lightning wraps.

Lightning's own option `ddp_comm_hook` is silently ignored unless the model is on a CUDA device.
"""

from __future__ import annotations

import functools
import io
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._core.optional import extra
from gyroscope.distributed.robust_ddp import RobustDDP, Scope, ddp
from gyroscope.rules import Rule

with extra("lightning", "gyroscope.integrations.lightning"):
    from lightning.pytorch.strategies import DDPStrategy

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY = "gyroscope"
"""Where a checkpoint has the job's state."""


class RobustDDPStrategy(DDPStrategy):
    """Lightning's DDPStrategy, with a robust rule in the place of the mean of all gradients.

        trainer = Trainer(accelerator="cpu", devices=4, strategy=RobustDDPStrategy(rule="median", f=1))

    A checkpoint also holds the job's state, so that a resumed run goes on with the same bits. Rank 0 collects it from
    all ranks: each has a momentum as large as the model. A checkpoint from another number of ranks, or from another
    strategy, has no momentum that fits: the run then warns and begins without, for some steps.

    Lightning itself waits for all ranks, at checkpoints and when it ends: expect a lost rank to end the run.
    """

    job: RobustDDP | None = None
    """Verdicts on the ranks, and a state to save; None before `fit`."""

    def __init__(
        self,
        rule: Rule | str = "median",
        f: int = 1,
        *,
        mu: float = 0.9,
        dampening: float | None = None,
        scope: Scope = "model",
        seed: int = 0,
        patience: float = 30.0,
        save_momentum: bool = True,
        **options: Any,
    ) -> None:
        """Remember what to register.

        Args:
            rule: a rule or its spec, feasible for f of all ranks.
            f: how many ranks may have wrong gradients.
            mu: as for `gy.ddp`, like the next four.
            dampening: how much of each gradient the momentum leaves out.
            scope: what a rule that compares whole rows compares.
            seed: of a rule that draws at random.
            patience: how many seconds a rank may be silent.
            save_momentum: whether checkpoints hold the job's state. Without it a resumed run begins without momentum.
            options: of `DDPStrategy`, and of the DistributedDataParallel.
        """
        super().__init__(**options)
        self._register = functools.partial(
            ddp, rule=rule, f=f, mu=mu, dampening=dampening, scope=scope, seed=seed, patience=patience
        )
        self._save_momentum = save_momentum

    def configure_ddp(self) -> None:
        """Wrap the model as Lightning does, then register gy.ddp on it, on whichever device it is.

        Raises:
            InfeasibleError: the rule cannot tolerate f of that many ranks.
            ConfigError: a value is out of range, or Lightning scales gradients (16-mixed).
        """
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise ConfigError(
                "gy.ddp cannot work with a gradient scaler, got precision 16-mixed: the scale changes from step to "
                "step, and momentum would add up gradients of different scales. Use bf16-mixed"
            )
        super().configure_ddp()
        self.job = self._register(self.model)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Add the state of all ranks to a checkpoint that training can resume from. All ranks call it."""
        if self._save_momentum and self.job is not None and "optimizer_states" in checkpoint:
            checkpoint[KEY] = _from_all_ranks(self.job.state_dict(), self.root_device)
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Load the optimizers' states, and this rank's of the job. (The model was loaded before it was wrapped.)"""
        super().load_optimizer_state_dict(checkpoint)
        saved = checkpoint.get(KEY, {})
        if self.job is not None and len(saved) == self.job.exchange.n:
            self.job.load_state_dict(saved)
        else:
            warnings.warn(
                f"the checkpoint has the momentum of {len(saved)} ranks: all ranks begin without, for some steps",
                stacklevel=2,
            )


def _from_all_ranks(state: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the states of all ranks on rank 0, and this rank's on others. What travels is read with weights_only."""
    if dist.get_rank() > 0:
        data = io.BytesIO()
        torch.save(state, data)
        values = torch.frombuffer(data.getbuffer(), dtype=torch.uint8).to(device)
        dist.send(torch.tensor([len(values)], device=device), 0)
        dist.send(values, 0)
        return state
    for rank in range(1, dist.get_world_size()):
        values = _received(rank, int(_received(rank, 1, torch.int64, device)), torch.uint8, device)
        state.update(torch.load(io.BytesIO(values.cpu().numpy().tobytes()), map_location="cpu", weights_only=True))
    return state


def _received(rank: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    values = torch.empty(size, dtype=dtype, device=device)
    dist.recv(values, rank)
    return values
