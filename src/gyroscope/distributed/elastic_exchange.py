"""`ElasticExchange`: collectives between ranks of which some may die or hang. Who is left agrees, and goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope._core.errors import ExchangeError
from gyroscope.distributed.collectives import Exchange, PrefixStore, ProcessGroupGloo, Store

_ATTEMPTS = 5
"""How often the ranks that are left try to form a group."""
_POLL = 0.02


class Ranks(NamedTuple):
    """Who takes part in a job whose ranks may be lost and started again: `gy.ddp(model, ranks=Ranks(...))`."""

    store: Store
    """Through which ranks agree, such as a `torch.distributed.TCPStore`: in a process that outlives all ranks."""
    rank: int
    n: int


class ElasticExchange(Exchange):
    """Ranks that exchange rows through gloo, of which some may be lost on the way, and come back.

    Rows have the same number n of ranks in every step. A rank that is missing has a row of NaN, which a rule leaves
    out and counts among its f.

    How they agree: a rank whose collective failed reports to the store how many steps it has finished. The first one
    to report waits for the others, at most `patience` seconds, and writes down who is there; these connect anew. A rank
    that comes later is left out. When it is started again, it asks to `join`, and the others `admit` it between two
    steps.
    """

    def __init__(self, ranks: Ranks, patience: float) -> None:
        self.store, self.rank, self.n = ranks
        self.patience = patience
        self.members = list(range(self.n))
        """The ranks that take part, in order."""
        self.generation = 0
        self._gloo: Any = None
        self.admitted = 0
        """How many requests to join were answered."""
        with self._reaching_the_store():
            self.start = self.store.add(f"starts{self.rank}", 1)
        """How often this rank has been started; after the first time it has to join."""
        if self.start == 1:
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
        self.take_from(self.members[0], values)

    def take_from(self, rank: int, values: Tensor) -> None:
        """Overwrite the values with those of a rank."""
        with self._explained():
            self._gloo.broadcast(values, self.members.index(rank)).wait()

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
            self._gloo = None  # closes the connections, so that those who still wait for this rank notice at once
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

    # -- coming back -------------------------------------------------------------------------------------------------

    def requests(self) -> int:
        """Return how many requests to join there have been."""
        with self._reaching_the_store():
            return self.store.add("joins", 0)

    def admit(self, requests: int, finished: int, least: int) -> int:
        """Let in the ranks that have asked to join. All members call it after the same step.

        Returns:
            The rank from which those let in take everything that they need.
        """
        giver, joining = self.members[0], set[int]()
        answer = f"{self.generation};{','.join(map(str, self.members))};{requests}"
        with self._reaching_the_store():
            for number in range(self.admitted, requests):
                request = self.store.get(f"join{number + 1}").decode()
                self.store.set(f"admitted{request}", answer)
                joining.add(int(request.partition(".")[0]))
        self.admitted = requests
        self.members = sorted({*self.members, *joining})
        self.regroup(finished, least)
        return giver

    def join(self, seconds: float) -> int:
        """Ask the others to let this rank in, and wait until they do; return the rank from which to take everything."""
        request = f"{self.rank}.{self.start}"
        with self._reaching_the_store():
            self.store.set(f"join{self.store.add('joins', 1)}", request)
            self.store.wait([f"admitted{request}"], timedelta(seconds=seconds))
            generation, members, admitted = self.store.get(f"admitted{request}").decode().split(";")
        known = [int(rank) for rank in members.split(",")]
        self.generation, self.admitted = int(generation), int(admitted)
        self.members = sorted({*known, self.rank})
        self.regroup(-1, 1)
        return known[0]

    # -- the store ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reaching_the_store(self) -> Iterator[None]:
        """Explain where the store is gone."""
        try:
            yield
        except (RuntimeError, ConnectionError) as problem:
            raise ExchangeError(
                f"rank {self.rank} cannot reach the store through which ranks agree, or got no answer there "
                f"({problem}). What to do: start all ranks again from what they saved; a store in a process of its own "
                "survives the loss of rank 0"
            ) from problem

    def _agree(self, finished: int) -> tuple[list[int], int]:
        """Return who is left, and how many steps the one that is farthest has finished."""
        store = PrefixStore(f"generation{self.generation}", self.store)
        with self._reaching_the_store():
            store.set(f"finished{self.rank}", str(finished))
            if store.add("first", 1) == 1:
                reported = self._wait_for_reports(store)
                store.set("members", f"{','.join(map(str, sorted(reported)))};{max(reported.values())}")
            else:
                store.wait(["members"], timedelta(seconds=3 * self.patience))
            members, _, ahead = store.get("members").decode().partition(";")
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
        self._gloo = ProcessGroupGloo(prefix, mine, len(members), seconds)
        self.members = members
