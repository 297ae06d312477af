"""One worker as the server sees it."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from torch import Tensor

from gyroscope.distributed.protocol import NO_STEP, Message
from gyroscope.distributed.server import link_process


class WorkerHandle:
    """The process that talks to the worker, and how things stand between them."""

    answers: tuple[Message, Message]
    """What the worker sent, in turn: the one that its process does not receive into holds."""
    sent: Tensor
    """(1,): the last step whose parameters the link has sent."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.memories: list[tuple[int, Tensor]] = []
        """The worker's momentum after the last two steps that it has answered, with the steps."""
        self.count = 0
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.who = ""
        self.linked = self.free = self.late = self.told = self.answered = False
        self.asked, self.place = NO_STEP, 0
        """The step whose parameters the link was told to send and the worker has not answered, and where they lie."""

    def start(self, place: link_process.LinkAddress, shelf: link_process.SharedBuffers) -> None:
        """A fresh process that waits for a worker."""
        first, second = shelf.answers
        self.answers = (
            Message(shelf.answer_values, shelf.dtype, first),
            Message(shelf.answer_values, shelf.dtype, second),
        )
        self.sent = shelf.sent
        context = multiprocessing.get_context("forkserver")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=link_process.main, args=(place, shelf, end), daemon=True)
        self.process.start()
        end.close()  # so that the process's death shows as the end of the pipe
        self.who = ""
        self.asked = NO_STEP
        self.linked = self.free = self.late = self.told = self.answered = False

    def remember(self, step: int, memory: Tensor) -> None:
        self.memories = [*self.memories[-1:], (step, memory)]

    def keep(self) -> None:
        """The last answer was not one to remember, and the next will come to where the one before it lies."""
        self.memories = [(step, memory.clone()) for step, memory in self.memories]

    def memory(self, until: float = math.inf) -> tuple[int, Tensor | None]:
        """The worker's momentum after its last step up to this one; NO_STEP where there is none."""
        return next((known for known in reversed(self.memories) if known[0] <= until), (NO_STEP, None))

    @property
    def sending(self) -> bool:
        """Whether the link may still read the parameters that it was told to send."""
        return self.asked != NO_STEP and self.asked != int(self.sent)

    def ask(self, step: int, place: int) -> None:
        """Have the parameters of this step sent from this place, and wait for an answer."""
        self.free, self.told = False, True
        self.asked, self.place = step, place
        self.order("round", step=step, place=place)

    def has_answered(self, step: int) -> None:
        """A row of this step has come, so the worker has its parameters; who answers before that harms itself alone."""
        self.free, self.late = True, False
        if step == self.asked:
            self.asked = NO_STEP

    def order(self, what: str, **details: int) -> None:
        assert self.pipe
        with contextlib.suppress(OSError):  # its death is told by the pipe's end
            self.pipe.send_bytes(json.dumps({"do": what, **details}).encode())

    def stop(self) -> None:
        if self.pipe:
            self.pipe.close()
        if self.process:
            self.process.join(1.0)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.pipe = self.process = None
