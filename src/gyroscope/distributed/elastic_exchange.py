"""`ElasticExchange`: collectives between ranks of which some may die or hang. Who is left agrees, and goes on."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope._core.errors import ExchangeError
from gyroscope.distributed.collectives import Exchange, PrefixStore, ProcessGroupGloo, Store, added_up

_ATTEMPTS = 5
"""How often the ranks that are left try to form a group."""
_POLL = 0.02

log = logging.getLogger("gyroscope")


class Ranks(NamedTuple):
    """Who takes part in a job whose ranks may be lost and started again: `gy.ddp(model, ranks=Ranks(...))`."""

    store: Store
    """Through which ranks agree, such as a `torch.distributed.TCPStore`: in a process that outlives all ranks. A store
    serves one job; for the next one give `torch.distributed.PrefixStore("another name", store)`."""
    rank: int
    """Which one this is, from 0."""
    n: int
    """How many there are, the missing ones included."""


class Standing(NamedTuple):
    """How far the ranks are that have regrouped, as all of them know it."""

    ahead: int
    """How many steps the farthest rank has finished."""
    behind: int
    """How many the last one has; those that have just joined do not count."""
    giver: int
    """A rank that is as far as the farthest, and has the end of that step."""
    host: int
    """A rank that gives everything to those that have just joined; -1 where nobody has."""
    admitted: int
    """How many requests to join were answered."""


class _Report(NamedTuple):
    """What a rank says of itself when it regroups."""

    finished: int
    """Steps; -1 for a rank that has just joined."""
    admitted: int
    hosts: bool
    """Whether it is between two steps, with all that those need who join."""


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
        return added_up(self._gathered(table.reshape(-1))).view_as(table)

    def take_from_first(self, values: Tensor) -> None:
        self.take_from(self.members[0], values)

    def take_from(self, rank: int, values: Tensor) -> None:
        """Overwrite the values with those of a rank."""
        with self._explained():
            self._gloo.broadcast(values, self.members.index(rank)).wait()

    def given_by(self, giver: int, values: Mapping[str, Any], wanted: bool) -> Any:
        """Return one rank's `values`, tensors on the CPU, numbers and text, on those that want them; None on others."""
        data = io.BytesIO()
        if self.rank == giver:
            torch.save(values, data)
        size = torch.tensor(len(data.getvalue()))
        self.take_from(giver, size)
        content = torch.frombuffer(bytearray(data.getvalue() or bytes(int(size))), dtype=torch.uint8)
        self.take_from(giver, content)
        return torch.load(io.BytesIO(content.numpy().tobytes()), "cpu", weights_only=True) if wanted else None

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

    def regroup(self, finished: int, least: int, hosts: bool = False) -> Standing:
        """Agree with the other ranks that are left on who they are, and connect anew.

        Args:
            finished: how many steps this rank has finished; -1 if it has just joined.
            least: how many ranks must be left.
            hosts: whether this rank can give everything to those that have just joined.

        Returns:
            How far all of them are: some may have finished the step whose last exchange failed for others.

        Raises:
            ExchangeError: too few are left, the others have gone on without this rank, or the store is gone.
        """
        for _ in range(_ATTEMPTS):
            self._gloo = None  # closes the connections, so that those who still wait for this rank notice at once
            self.generation += 1
            members, standing = self._agree(_Report(finished, self.admitted, hosts))
            if self.rank not in members:
                raise ExchangeError(
                    f"rank {self.rank} was silent for more than {self.patience:g} s, and the others have gone on "
                    f"without it (ranks {', '.join(map(str, members))}). What to do: start this rank again, or give "
                    "ranks more time: patience=..."
                )
            missing = [rank for rank in range(self.n) if rank not in members]
            if len(members) < least:
                raise ExchangeError(
                    f"rank {self.rank}: {len(missing)} of {self.n} ranks are lost, and at least {least} must be left: "
                    f"ranks {', '.join(map(str, missing))} have ended or hang. Nothing was updated. What to do: start "
                    "all ranks again from what they saved"
                )
            before = self.members
            try:
                self._connect(members)
            except RuntimeError:  # one more was lost meanwhile
                continue
            self._log(before, finished)
            self.admitted = standing.admitted
            return standing
        raise ExchangeError(f"rank {self.rank} found no group after {_ATTEMPTS} attempts: ranks are lost too fast")

    def _log(self, before: list[int], step: int) -> None:
        """Say who is lost and who is back; one rank speaks for all."""
        lost = [rank for rank in before if rank not in self.members]
        back = [rank for rank in self.members if rank not in before]
        if self.rank == min(rank for rank in self.members if rank not in back):
            for ranks, what in ((lost, f"lost, silent for {self.patience:g} s"), (back, "back")):
                if ranks:
                    log.warning("gyroscope: after step %d, %s: ranks %s", step, what, ", ".join(map(str, ranks)))

    # -- coming back -------------------------------------------------------------------------------------------------

    def requests(self) -> int:
        """Return how many requests to join there have been."""
        with self._reaching_the_store():
            return self.store.add("joins", 0)

    def invite(self, requests: int) -> None:
        """Let the ranks that have asked to join take part in the next regrouping. Members call it after a step."""
        answer = f"{self.generation};{','.join(map(str, self.members))};{requests}"
        with self._reaching_the_store():
            asked = [self.store.get(f"join{number + 1}").decode() for number in range(self.admitted, requests)]
            joining = ",".join(request.partition(".")[0] for request in asked)
            # Before this rank reports: whoever waits for its report also waits for those that it invites.
            PrefixStore(f"generation{self.generation + 1}", self.store).set("joining", joining)
            for request in asked:
                self.store.set(f"admitted{request}", answer)
        self.admitted = requests

    def join(self, seconds: float) -> None:
        """Ask the others to let this rank in, and wait until they do. Then it can `regroup` with them."""
        request = f"{self.rank}.{self.start}"
        log.warning(
            "gyroscope: rank %d was started before with this store: it waits up to %g s for the others to let it in. "
            "For a new job, give a store of its own, or torch.distributed.PrefixStore(name, store)",
            self.rank,
            seconds,
        )
        with self._reaching_the_store():
            self.store.set(f"join{self.store.add('joins', 1)}", request)
            self.store.wait([f"admitted{request}"], timedelta(seconds=seconds))
            generation, members, admitted = self.store.get(f"admitted{request}").decode().split(";")
        self.generation, self.admitted = int(generation), int(admitted)
        self.members = sorted({*map(int, members.split(",")), self.rank})

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

    def _agree(self, report: _Report) -> tuple[list[int], Standing]:
        """Return who is left, and how far they are."""
        store = PrefixStore(f"generation{self.generation}", self.store)
        with self._reaching_the_store():
            store.set(f"report{self.rank}", ",".join(map(str, map(int, report))))
            if store.add("first", 1) == 1:
                reports = self._wait_for_reports(store)
                standing = ",".join(map(str, _standing(reports)))
                store.set("members", f"{','.join(map(str, sorted(reports)))};{standing}")
            else:
                store.wait(["members"], timedelta(seconds=3 * self.patience))
            members, _, text = store.get("members").decode().partition(";")
        return [int(rank) for rank in members.split(",")], Standing(*map(int, text.split(",")))

    def _wait_for_reports(self, store: PrefixStore) -> dict[int, _Report]:
        end = time.monotonic() + self.patience
        while True:
            expected = set(self.members)
            if store.check(["joining"]):
                expected |= {int(rank) for rank in store.get("joining").decode().split(",")}
            there = [rank for rank in sorted(expected) if store.check([f"report{rank}"])]
            if len(there) == len(expected) or time.monotonic() > end:
                texts = {rank: store.get(f"report{rank}").decode().split(",") for rank in there}
                return {rank: _Report(int(a), int(b), c == "1") for rank, (a, b, c) in texts.items()}
            time.sleep(_POLL)

    def _connect(self, members: list[int]) -> None:
        prefix = PrefixStore(f"group{self.generation}", self.store)
        mine, seconds = members.index(self.rank), timedelta(seconds=self.patience)
        # torch.distributed's own functions know only groups that all ranks have made together.
        self._gloo = ProcessGroupGloo(prefix, mine, len(members), seconds)
        self.members = members


def _standing(reports: Mapping[int, _Report]) -> Standing:
    ahead = max(report.finished for report in reports.values())
    behind = min((report.finished for report in reports.values() if report.finished >= 0), default=ahead)
    giver = min(rank for rank, report in reports.items() if report.finished == ahead)
    joined = any(report.finished < 0 for report in reports.values())
    host = min((rank for rank, report in reports.items() if joined and report.hosts), default=-1)
    return Standing(ahead, behind, giver, host, max(report.admitted for report in reports.values()))
