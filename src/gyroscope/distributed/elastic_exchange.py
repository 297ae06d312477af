"""`ElasticExchange`: collectives between ranks of which some may die or hang. Who is left agrees, and goes on."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gyroscope._core.errors import ExchangeError
from gyroscope.distributed.collectives import Exchange
from gyroscope.distributed.protocol import PrefixStore, ProcessGroupGloo, Store

_ATTEMPTS = 5
"""How often the ranks that are left try to form a group."""
_POLL = 0.02


class ElasticExchange(Exchange):
    """The ranks of a gloo process group, of which some may be lost on the way.

    Rows have the same number n of ranks in every step. A rank that is missing has a row of NaN, which a rule leaves
    out and counts among its f. The ranks need a store that outlives them: the one of `init_process_group` lives in rank
    0, unless it was started elsewhere and given as `init_process_group(store=...)`.

    How they agree: a rank whose collective failed reports to the store how many steps it has finished. The first one
    to report waits for the others, at most `patience` seconds, and writes down who is there; these connect anew. A rank
    that comes later is left out for good.
    """

    def __init__(self, group: ProcessGroup | None, store: Store, patience: float) -> None:
        super().__init__(group)
        self.store, self.patience = store, patience
        self.members = list(range(self.n))
        """The ranks that take part, in order."""
        self.generation = 0
        with self._explained():
            self._connect(self.members)

    def padded(self, d: int) -> int:
        return -(-d // len(self.members)) * len(self.members)

    def columns(self, row: Tensor) -> Tensor:
        received = torch.empty_like(row)
        with self._explained():
            self._gloo.alltoall_base(received, row, [], []).wait()
        return self._with_missing(received.view(len(self.members), -1))

    def joined(self, piece: Tensor) -> Tensor:
        return self._gathered(piece).view(-1)

    def rows(self, row: Tensor) -> Tensor:
        return self._with_missing(self._gathered(row))

    def total(self, table: Tensor) -> Tensor:
        parts = self._gathered(table.reshape(-1))
        whole = parts[0].clone()
        for part in parts[1:]:
            whole += part
        return whole.view_as(table)

    def take_from_first(self, values: Tensor) -> None:
        with self._explained():
            self._gloo.broadcast(values, 0).wait()

    def _gathered(self, piece: Tensor) -> Tensor:
        everyone = piece.new_empty(len(self.members), piece.numel())
        with self._explained():
            self._gloo.allgather(list(everyone), piece.contiguous()).wait()
        return everyone

    def _with_missing(self, rows: Tensor) -> Tensor:
        """Return (n, k): the members' rows in their places, NaN for the others."""
        if len(self.members) == self.n:
            return rows
        everyone = torch.full((self.n, rows.shape[1]), torch.nan, dtype=rows.dtype, device=rows.device)
        everyone[self.members] = rows
        return everyone

    # -- after a loss ------------------------------------------------------------------------------------------------

    def regroup(self, finished: int, least: int) -> bool:
        """Agree with the other ranks that are left on who they are, and connect anew.

        Args:
            finished: how many steps this rank has finished.
            least: how many ranks must be left.

        Returns:
            Whether another rank has finished a step more: then all had exchanged everything that it takes.

        Raises:
            ExchangeError: too few are left, the others have gone on without this rank, or the store is gone.
        """
        for _ in range(_ATTEMPTS):
            self.generation += 1
            members, ahead = self._agree(finished)
            if self.rank not in members:
                raise ExchangeError(
                    f"rank {self.rank} was silent for more than {self.patience:g} s, and the others have gone on "
                    f"without it (ranks {', '.join(map(str, members))}). What to do: start this rank again, or give "
                    "ranks more time: patience=..."
                )
            missing = [rank for rank in range(self.n) if rank not in members]
            if len(members) < least:
                raise ExchangeError(
                    f"{len(missing)} of {self.n} ranks are lost, and at least {least} must be left: ranks "
                    f"{', '.join(map(str, missing))} have ended or hang. Nothing was updated. What to do: start all "
                    "ranks again from what they saved"
                )
            try:
                self._connect(members)
            except RuntimeError:  # one more was lost meanwhile
                continue
            return ahead > finished
        raise ExchangeError(f"rank {self.rank} found no group after {_ATTEMPTS} attempts: ranks are lost too fast")

    def _agree(self, finished: int) -> tuple[list[int], int]:
        """Return who is left, and how many steps the one that is farthest has finished."""
        try:
            store = PrefixStore(f"generation{self.generation}", self.store)
            store.set(f"finished{self.rank}", str(finished))
            if store.add("first", 1) == 1:
                reported = self._wait_for_reports(store)
                text = f"{','.join(map(str, sorted(reported)))};{max(reported.values())}"
                store.set("members", text)
            else:
                store.wait(["members"], timedelta(seconds=3 * self.patience))
            members, _, ahead = store.get("members").decode().partition(";")
        except (RuntimeError, ConnectionError) as problem:
            raise ExchangeError(
                f"rank {self.rank} has lost the others and cannot reach the store, through which they agree on who is "
                f"left ({problem}). What to do: start all ranks again from what they saved; a store in a process of "
                "its own survives the loss of rank 0"
            ) from problem
        return [int(rank) for rank in members.split(",")], int(ahead)

    def _wait_for_reports(self, store: PrefixStore) -> dict[int, int]:
        end = time.monotonic() + self.patience
        while True:
            there = [rank for rank in self.members if store.check([f"finished{rank}"])]
            if len(there) == len(self.members) or time.monotonic() > end:
                return {rank: int(store.get(f"finished{rank}")) for rank in there}
            time.sleep(_POLL)

    def _connect(self, members: list[int]) -> None:
        prefix = PrefixStore(f"group{self.generation}", self.store)
        mine, seconds = members.index(self.rank), timedelta(seconds=self.patience)
        # torch.distributed's own functions know only groups that all ranks have made together.
        self._gloo: Any = ProcessGroupGloo(prefix, mine, len(members), seconds)
        self.members = members
