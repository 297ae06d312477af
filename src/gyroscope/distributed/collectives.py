"""What the ranks of a process group do together: a few collectives on flat tensors, on CPUs (gloo) or GPUs (NCCL).

Every method of `Exchange` is a collective: all ranks must call it, in the same order, with tensors of the same size,
type and kind of device. None of them pickles anything: what comes from another rank is numbers and nothing else. Where
a rank has ended or hangs, the others get an ExchangeError, at the latest at the process group's timeout (so it is
with gloo; NCCL has a watchdog of its own).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope._core.errors import ConfigError, ExchangeError
from gyroscope._core.sanitize import of_gloo


class Exchange:
    """The ranks of a process group (the default group if none is given)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_available():
            raise ConfigError("this build of torch has no torch.distributed: install one that has (torch.org)")
        if not dist.is_initialized():
            raise ConfigError(
                "torch.distributed is not initialised: call torch.distributed.init_process_group('gloo') first (or "
                "'nccl' for GPUs), and start the script with `torchrun --nproc-per-node N script.py`"
            )
        self.group = group
        self.n = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        if self.rank < 0:
            raise ConfigError("this rank is not in the process group given: only its members may take part")

    def padded(self, d: int) -> int:
        """The smallest multiple of the number of ranks that holds d columns."""
        return -(-d // self.n) * self.n

    def columns(self, row: Tensor) -> Tensor:
        """From my whole row to all ranks' rows in my share of the columns: (n * k,) -> (n, k)."""
        received = torch.empty_like(row)
        with self._together():
            dist.all_to_all_single(received, row, group=self.group)
        return received.view(self.n, -1)

    def joined(self, piece: Tensor) -> Tensor:
        """All ranks' pieces, one after the other: (k,) -> (n * k,). The same bits on every rank."""
        # The same function under a new name, since the old one warns. And gloo wants the result flat.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        everyone = piece.new_empty(self.n * piece.numel())
        with self._together():
            gather(everyone, piece.contiguous(), group=self.group)
        return everyone

    def rows(self, row: Tensor) -> Tensor:
        """All ranks' whole rows: (d,) -> (n, d)."""
        return self.joined(row).view(self.n, -1)

    def total(self, table: Tensor) -> Tensor:
        """The sum of all ranks' (n, n) tables. The same bits on every rank.

        Rank i alone adds up row i, in the order of the ranks, and all others receive what it found. (An all_reduce may
        add in another order on each rank, and one last bit decides which of two equal rows a rule selects.)
        """
        parts = self.columns(table.reshape(-1))
        mine = parts[0].clone()
        for part in parts[1:]:
            mine += part
        return self.rows(mine)

    def take_from_first(self, values: Tensor) -> None:
        """Overwrite the values with those of the first rank."""
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        with self._together():
            dist.broadcast(values, first, group=self.group)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """gloo's errors name addresses and lines of its source: add what they mean, and what to do."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise  # says what it is
        except RuntimeError as problem:
            raise ExchangeError(
                f"rank {self.rank} of {self.n} cannot exchange with the others: a rank has ended, hangs, or takes "
                f"longer than the process group's timeout ({of_gloo(problem)}). What to do: find that rank (it says "
                "nothing, or its own error is the first one in the logs), then start all ranks again from what they "
                "saved. Where ranks are only slow, give them more time: init_process_group(..., timeout=...)"
            ) from problem
