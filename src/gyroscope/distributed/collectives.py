"""`Exchange`: collectives on flat tensors between the ranks of a process group, on CPUs (gloo) or GPUs (NCCL).

Every method is a collective: all ranks must call it, in the same order, with tensors of the same size, dtype and kind
of device. None of them pickles anything: only numbers come from another rank. When a rank has ended or hangs, the
others get an ExchangeError, at the latest at the process group's timeout (with gloo; NCCL has its own watchdog).
"""

from __future__ import annotations

import atexit
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from gyroscope._core.errors import ConfigError, ExchangeError
from gyroscope._core.foreign_text import of_gloo

if TYPE_CHECKING:  # torch exports them, but does not tell the type checker so
    from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store
else:
    from torch.distributed import PrefixStore, ProcessGroupGloo, Store

__all__ = ["Exchange", "PrefixStore", "ProcessGroupGloo", "Store", "added_up"]  # three of them are torch's


_SMALL_BYTES = 1 << 20
"""What a rank may receive in one exchange rather than make two."""
_LAST_SECONDS = 0.1
"""For gloo's threads, at the exit of the process."""

# A thread of gloo frees the tensors of the last collective, and needs Python's lock for that. If the interpreter ends
# meanwhile, that aborts the process, and torchrun takes the rank for failed. This sleep gives the lock to the thread.
atexit.register(time.sleep, _LAST_SECONDS)


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
        self.members = list(range(self.n))
        """The ranks that take part, in order."""
        if self.rank < 0:
            raise ConfigError("this rank is not in the process group given: only its members may take part")

    def padded(self, d: int) -> int:
        """Return the smallest multiple of the number of ranks that holds d columns."""
        return -(-d // self.n) * self.n

    def columns(self, row: Tensor) -> Tensor:
        """Exchange this rank's whole row for all ranks' rows in its share of the columns: (n * k,) -> (n, k)."""
        received = torch.empty_like(row)
        with self._explained():
            dist.all_to_all_single(received, row, group=self.group)
        return received.view(self.n, -1)

    def joined(self, piece: Tensor) -> Tensor:
        """Return all ranks' pieces, concatenated: (k,) -> (n * k,). The same bits on every rank."""
        # torch renamed the function, and the old name warns. gloo needs a flat result.
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        everyone = piece.new_empty(self.n * piece.numel())
        with self._explained():
            gather(everyone, piece.contiguous(), group=self.group)
        return everyone

    def rows(self, row: Tensor) -> Tensor:
        """Return all ranks' whole rows: (d,) -> (n, d)."""
        return self.joined(row).view(self.n, -1)

    def total(self, table: Tensor) -> Tensor:
        """Return the sum of all ranks' tables. The same bits on every rank.

        All ranks add up in the order of the ranks: small tables each rank as a whole, of large ones each rank a part
        for all others. (An all_reduce may add in another order on each rank, and one last bit decides which of two
        equal rows a rule selects.)
        """
        if self.n * table.numel() * table.element_size() <= _SMALL_BYTES:  # one exchange, not two
            return added_up(self.rows(table.reshape(-1))).view_as(table)
        flat = torch.nn.functional.pad(table.reshape(-1), (0, self.padded(table.numel()) - table.numel()))
        mine = added_up(self.columns(flat))
        return self.joined(mine)[: table.numel()].view_as(table)

    def take_from_first(self, values: Tensor) -> None:
        """Overwrite the values with those of the first rank."""
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        with self._explained():
            dist.broadcast(values, first, group=self.group)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the meaning of gloo's errors, which name addresses and lines of its source, and a remedy."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise  # its message is clear
        except RuntimeError as problem:
            raise ExchangeError(
                f"rank {self.rank} of {self.n} cannot exchange with the others: a rank has ended, hangs, or takes "
                f"longer than the process group's timeout ({of_gloo(problem)}). What to do: find that rank (it says "
                "nothing, or its own error is the first one in the logs), then start all ranks again from what they "
                "saved. Where ranks are only slow, give them more time: init_process_group(..., timeout=...)"
            ) from problem


def added_up(parts: Tensor) -> Tensor:
    """Return the sum of the rows, in their order."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
