"""The server's side of one link, as a process of its own.

Why a process: gloo ends the whole process that receives a message longer than its buffer, and nothing can catch that.
Here it ends this link, and the server starts the next one. The process lives for one generation of the link: it waits
for a worker to claim it, passes parameters on to it and rows back, and ends when the link breaks. It ends, too, when
the server is gone: the pipe tells.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from gyroscope._core.sanitize import of_gloo
from gyroscope.distributed.protocol import (
    ANSWER,
    END,
    NO_STEP,
    PING,
    WELCOME,
    Message,
    UnfitError,
    Wire,
    claim_key,
    link_key,
    reach,
)

PING_SECONDS = 5.0
"""An idle link is used at least that often, so that a worker can tell a slow server from one that is gone."""
_LOOK_SECONDS = 0.5
"""How often to look whether a worker's time is over."""
_JOIN_POLL_SECONDS = 0.05
_ALWAYS = 365 * 86400.0


@dataclasses.dataclass(frozen=True)
class LinkAddress:
    """Where the link is made, and for whom."""

    host: str
    port: int
    worker: int
    generation: str
    patience: float
    """Seconds after which a worker that has not answered is given up."""
    memory_step: int
    """The step of the momentum that the worker shall go on with; NO_STEP for none."""


@dataclasses.dataclass(frozen=True)
class SharedBuffers:
    """RuleState shared with the server."""

    values: int
    """How many parameters there are."""
    dtype: torch.dtype
    parameters: tuple[Tensor, ...]
    """Messages with parameters, sealed: an order says which to send. Nobody writes there before it is sent."""
    sent: Tensor
    """(1,): the last step whose parameters this link has sent. Written here, read by the server."""
    memory: Tensor
    """The momentum that the worker shall go on with."""
    answers: tuple[Tensor, Tensor]
    """Buffers for the worker's answers, in turn: one holds the last good one while the next comes into the other."""
    answer_values: int


def main(place: LinkAddress, shelf: SharedBuffers, pipe: Connection) -> None:
    """The life of a link's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's business
    torch.set_num_threads(1)  # it only passes on: more threads would spin beside those that compute
    _wait_for_a_core()
    _Link(place, shelf, pipe).live()


def _wait_for_a_core() -> None:
    """Who is woken by an order usually takes the place of the one who gave it: here the server, four times a round."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class _Link:
    def __init__(self, place: LinkAddress, shelf: SharedBuffers, pipe: Connection) -> None:
        self.place, self.shelf, self.pipe = place, shelf, pipe
        self.telling, self.opening, self.leaving = threading.Lock(), threading.Lock(), threading.Lock()
        self.open_step = NO_STEP
        """The step that the worker was told and has not answered yet, neither well nor badly."""

    def live(self) -> None:
        threading.Thread(target=self._end_with_server, daemon=True).start()
        try:
            wire = self._join()
            threading.Thread(target=self._hear_worker, args=(wire,), daemon=True).start()
            self._obey(wire)
        except Exception as problem:  # RuntimeError of gloo or the store; whatever it is, this link cannot go on
            self._leave(of_gloo(problem))

    # -- three threads: the server's end, answers from the worker, and orders from the server -------------------------

    def _end_with_server(self) -> None:
        """Whatever the other threads wait for: without a server nobody is left to serve."""
        hang_up = select.poll()
        hang_up.register(self.pipe.fileno(), 0)  # that the other end is closed is told without being asked for
        hang_up.poll()
        os._exit(0)

    def _hear_worker(self, wire: Wire) -> None:
        shelf = self.shelf
        slots = [Message(shelf.answer_values, shelf.dtype, buffer) for buffer in shelf.answers]
        slot, complained = 0, False
        try:
            while True:
                answer = slots[slot]
                wire.receive(answer, _ALWAYS)
                asked = self.open_step
                try:
                    head = answer.read((ANSWER,), self.place.worker)
                except UnfitError as problem:
                    event = {"event": "rejected", "step": asked, "why": str(problem)}
                else:
                    event = {"event": "row", "step": head.step, "loss": head.loss, "slot": slot}
                    if head.step != asked:
                        why = f"it answers step {head.step}, " + (
                            "which is answered already" if asked == NO_STEP else f"but step {asked} is asked for"
                        )
                        # The right answer may still be on its way, behind one that was sent twice.
                        event, asked = {"event": "stray", "why": why}, NO_STEP
                if asked == NO_STEP:
                    # One complaint per good row: who sends rubbish without end shall not fill the log with it.
                    if not complained:
                        self._tell(**{**event, "event": "stray"})
                    complained = True
                    continue
                if event["event"] == "row":
                    slot, complained = 1 - slot, False
                self._answered(event)
        except Exception as problem:  # gloo's RuntimeError; whatever it is, this link cannot go on
            self._leave(of_gloo(problem))

    def _answered(self, event: dict[str, Any]) -> None:
        with self.opening:  # before the server knows, so that its next order comes after it
            if self.open_step == event["step"]:
                self.open_step = NO_STEP
        self._tell(**event)

    def _obey(self, wire: Wire) -> None:
        place, shelf = self.place, self.shelf
        parameters = [Message(shelf.values, shelf.dtype, buffer) for buffer in shelf.parameters]
        orders = select.poll()  # what the pipe's own poll() does, without making all of it anew each time
        orders.register(self.pipe.fileno(), select.POLLIN)
        waiting_since = 0.0
        while True:
            waiting = self.open_step != NO_STEP
            if not orders.poll(1000 * (_LOOK_SECONDS if waiting else PING_SECONDS)):
                if not waiting:
                    self._say(PING, wire)
                elif self.open_step != NO_STEP and time.monotonic() - waiting_since > place.patience:
                    self._leave(f"no answer for {place.patience:g} s")
                continue
            order = json.loads(self.pipe.recv_bytes())
            if order["do"] == "end":
                self._say(END, wire)
                os._exit(0)
            with self.opening:
                self.open_step = order["step"]
            waiting_since = time.monotonic()
            wire.send(parameters[order["place"]], place.patience)
            shelf.sent.fill_(order["step"])

    def _say(self, kind: int, wire: Wire) -> None:
        """A message without values. It is as long as any, because the worker waits for one of that length."""
        message = Message(self.shelf.values, self.shelf.dtype)
        message.seal(kind, NO_STEP, self.place.worker)
        wire.send(message, self.place.patience)

    # -- joining and leaving ------------------------------------------------------------------------------------------

    def _join(self) -> Wire:
        place = self.place
        store = reach(place.host, place.port, seconds=20)
        store.set(link_key(place.worker), place.generation)
        key = claim_key(place.worker, place.generation)
        while not store.check([key]):
            if self.pipe.poll(_JOIN_POLL_SECONDS):  # before anybody has joined there is but one order: to end
                os._exit(0)
        who = store.get(key).decode(errors="replace")
        wire = Wire(store, place.worker, place.generation, 0, place.host)
        welcome = Message(self.shelf.values, self.shelf.dtype)
        if place.memory_step != NO_STEP:
            welcome.values.copy_(self.shelf.memory)
        welcome.seal(WELCOME, place.memory_step, place.worker)
        wire.send(welcome, place.patience)
        self._tell(event="joined", who=who)
        return wire

    def _tell(self, **event: Any) -> None:
        with self.telling, contextlib.suppress(OSError):
            self.pipe.send_bytes(json.dumps(event).encode())

    def _leave(self, why: str) -> None:
        self.leaving.acquire()  # for good: both threads notice a broken link, and one of them tells it
        self._tell(event="lost", why=why)
        os._exit(1)
