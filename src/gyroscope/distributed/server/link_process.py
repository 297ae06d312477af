"""The server's side of one link: a process of its own, and the handle through which the server controls it.

Why a process: gloo ends the whole process that receives a message longer than its buffer, and nothing can catch that.
Here it ends this link, and the server starts the next one. The process lives for one generation of the link: it waits
for a worker to claim it, forwards parameters to it and rows back, and ends when the link breaks or the server's end of
the pipe closes.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import select
import signal
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gyroscope._core.foreign_text import of_gloo
from gyroscope.distributed import protocol
from gyroscope.distributed.protocol import NO_STEP, GlooConnection, Message

HEARTBEAT_SECONDS = 5.0
"""An idle link sends a message at least that often, so that a worker can tell a slow server from one that is gone."""
_CHECK_SECONDS = 0.5
"""How often to check whether a worker has exceeded its patience."""
_JOIN_POLL_SECONDS = 0.05
_ALWAYS = 365 * 86400.0


class LinkAddress(NamedTuple):
    """Where the link's process meets its worker."""

    host: str
    port: int
    worker: int
    generation: str
    patience: float
    """Seconds after which the link gives up a worker that has not answered."""


class SharedBuffers(NamedTuple):
    """The memory that the link's process shares with the server."""

    parameters: tuple[Message, ...]
    """Sealed messages with parameters: an order names the one to send. The server does not write there meanwhile."""
    sent: Tensor
    """(1,): the last step whose parameters this link has sent. Written here, read by the server."""
    momentum: Tensor | None
    """The momentum that the worker is to continue with."""
    momentum_step: int
    """The step of that momentum; NO_STEP for none."""
    answers: tuple[Message, Message]
    """Messages for the worker's answers, in turn: one holds the last row while the next one arrives in the other."""


def main(address: LinkAddress, buffers: SharedBuffers, pipe: Connection) -> None:
    """Run a link until it breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C
    torch.set_num_threads(1)  # it only forwards: more threads would spin beside those that compute
    if hasattr(os, "SCHED_BATCH"):
        # A process that an order wakes would preempt the one that gave it: the server, four times a round.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    Link(address, buffers, pipe).run()


class Link:
    """Three threads: one sends the server's orders, one receives the worker's answers, one ends with the server."""

    def __init__(self, address: LinkAddress, buffers: SharedBuffers, pipe: Connection) -> None:
        self.address, self.buffers, self.pipe = address, buffers, pipe
        self.report_lock, self.step_lock, self.close_lock = threading.Lock(), threading.Lock(), threading.Lock()
        self.pending = NO_STEP
        """The step that the worker was asked for and has not answered yet, neither well nor badly."""

    def run(self) -> None:
        threading.Thread(target=self._exit_with_server, daemon=True).start()
        try:
            connection = self._join()
            threading.Thread(target=self._receive_answers, args=(connection,), daemon=True).start()
            self._execute_orders(connection)
        except Exception as problem:  # RuntimeError of gloo or the store; whatever it is, this link cannot go on
            self._close(of_gloo(problem))

    def _exit_with_server(self) -> None:
        """Exit when the server's end of the pipe closes, whatever the other threads wait for."""
        hang_up = select.poll()
        hang_up.register(self.pipe.fileno(), 0)  # poll reports a hang-up without being asked for it
        hang_up.poll()
        os._exit(0)

    def _join(self) -> GlooConnection:
        """Wait for a worker to claim the link, and welcome it with its momentum."""
        address = self.address
        store = protocol.connect(address.host, address.port, seconds=20)
        store.set(protocol.link_key(address.worker), address.generation)
        key = protocol.claim_key(address.worker, address.generation)
        while not store.check([key]):
            if self.pipe.poll(_JOIN_POLL_SECONDS):  # the only order before a worker has joined is to end
                os._exit(0)
        identity = store.get(key).decode(errors="replace")
        connection = GlooConnection(store, address.worker, address.generation, 0, address.host)
        self._send(connection, protocol.WELCOME, self.buffers.momentum_step, self.buffers.momentum)
        self._report(event="joined", who=identity)
        return connection

    def _execute_orders(self, connection: GlooConnection) -> None:
        patience = self.address.patience
        orders = select.poll()  # as the pipe's own poll(), which would allocate all of it anew each time
        orders.register(self.pipe.fileno(), select.POLLIN)
        asked_at = 0.0
        while True:
            waiting = self.pending != NO_STEP
            if not orders.poll(1000 * (_CHECK_SECONDS if waiting else HEARTBEAT_SECONDS)):
                if not waiting:
                    self._send(connection, protocol.PING)
                elif self.pending != NO_STEP and time.monotonic() - asked_at > patience:
                    self._close(f"no answer for {patience:g} s")
                continue
            order = json.loads(self.pipe.recv_bytes())
            if order["do"] == "end":
                self._send(connection, protocol.END)
                os._exit(0)
            with self.step_lock:
                self.pending = order["step"]
            asked_at = time.monotonic()
            connection.send(self.buffers.parameters[order["slot"]], patience)
            self.buffers.sent.fill_(order["step"])

    def _send(self, connection: GlooConnection, kind: int, step: int = NO_STEP, values: Tensor | None = None) -> None:
        """Send a message of this kind; without values it is as long as any, since the worker expects that length."""
        like = self.buffers.parameters[0].values
        message = Message(like.numel(), like.dtype)
        if values is not None:
            message.values.copy_(values)
        message.seal(kind, step, self.address.worker)
        connection.send(message, self.address.patience)

    def _receive_answers(self, connection: GlooConnection) -> None:
        slot, complained = 0, False
        try:
            while True:
                answer = self.buffers.answers[slot]
                connection.receive(answer, _ALWAYS)
                pending, fault = self.pending, ""
                try:
                    head = answer.read((protocol.ANSWER,), self.address.worker)
                except protocol.MalformedMessageError as problem:
                    fault, final = str(problem), pending != NO_STEP
                else:
                    final = False  # the right answer may still be on its way, behind one that was sent twice
                    if pending == NO_STEP:
                        fault = f"it answers step {head.step}, which is answered already"
                    elif head.step != pending:
                        fault = f"it answers step {head.step}, but step {pending} is asked for"
                if not fault:
                    self._answered(event="row", step=pending, loss=head.loss, slot=slot)
                    slot, complained = 1 - slot, False
                elif final:
                    self._answered(event="rejected", step=pending, why=fault)
                elif not complained:  # once per good row, so that a flood of bad messages does not fill the log
                    self._report(event="stray", why=fault)
                    complained = True
        except Exception as problem:  # gloo's RuntimeError; whatever it is, this link cannot go on
            self._close(of_gloo(problem))

    def _answered(self, step: int, **event: Any) -> None:
        with self.step_lock:  # before the server knows, so that its next order comes after it
            if self.pending == step:
                self.pending = NO_STEP
        self._report(step=step, **event)

    def _report(self, **event: Any) -> None:
        with self.report_lock, contextlib.suppress(OSError):
            self.pipe.send_bytes(json.dumps(event).encode())

    def _close(self, why: str) -> None:
        self.close_lock.acquire()  # for good: both threads notice a broken link, and one of them reports it
        self._report(event="lost", why=why)
        os._exit(1)


class WorkerHandle:
    """Start, ask and stop the process that is linked to one worker."""

    buffers: SharedBuffers

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.momenta: list[tuple[int, Tensor]] = []
        """The worker's momentum after the last two steps that it has answered, with the steps."""
        self.generations = 0
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self._reset()

    def _reset(self) -> None:
        self.identity = ""
        self.linked = self.idle = False
        """Whether a worker has joined, and whether its link is ready for the next order."""
        self.late = self.answered = False
        """Whether it missed a deadline and has not answered since; whether it answered in this round, well or badly."""
        self.asked, self.slot = NO_STEP, 0
        """The last step that it was asked for, and the message that the link sends for it."""

    def start(self, address: LinkAddress, buffers: SharedBuffers) -> None:
        """Start a process that waits for a worker."""
        self._reset()
        self.generations += 1
        self.buffers = buffers
        context = multiprocessing.get_context("forkserver")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=main, args=(address, buffers, end), daemon=True)
        self.process.start()
        end.close()  # so that the process's death shows as the end of the pipe

    def keep_momentum(self, step: int, momentum: Tensor) -> None:
        """Keep the momentum of an answer, where it was received, and that of the answer before it."""
        self.momenta = [*self.momenta[-1:], (step, momentum)]

    def copy_momenta(self) -> None:
        """Copy what is kept out of the link's buffers, because the next answer may overwrite them."""
        self.momenta = [(step, momentum.clone()) for step, momentum in self.momenta]

    def momentum(self, until: float = math.inf) -> tuple[int, Tensor | None]:
        """Return the worker's last momentum up to this step, and its step; NO_STEP where there is none."""
        return next((known for known in reversed(self.momenta) if known[0] <= until), (NO_STEP, None))

    @property
    def sending(self) -> bool:
        """Whether the link may still read the parameters that it was told to send."""
        return self.asked not in (NO_STEP, int(self.buffers.sent))

    def ask(self, step: int, slot: int) -> None:
        """Tell the link to send this slot, which holds the parameters of the step, and to wait for an answer."""
        self.idle, self.asked, self.slot = False, step, slot
        self.order("round", step=step, slot=slot)

    def has_answered(self, step: int) -> None:
        """Note a row of this step: the worker has its parameters, or harms only itself by answering before."""
        self.idle, self.late = True, False
        if step == self.asked:
            self.buffers.sent.fill_(step)

    def order(self, what: str, **details: int) -> None:
        """Send an order to the link's process; the end of the pipe reports its death."""
        assert self.pipe
        with contextlib.suppress(OSError):
            self.pipe.send_bytes(json.dumps({"do": what, **details}).encode())

    def stop(self) -> None:
        """End the process."""
        if self.pipe:
            self.pipe.close()
        if self.process:
            self.process.join(1.0)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.pipe = self.process = None
