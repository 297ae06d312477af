"""One worker as the server sees it."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from torch import Tensor

from gyroscope.distributed import link
from gyroscope.distributed.protocol import NO_STEP, Message


class Remote:
    """The process that talks to the worker, and how things stand between them."""

    answers: tuple[Message, Message]
    """What the worker sent, in turn: the one that its process does not receive into holds."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.memories: list[tuple[int, Tensor]] = []
        """The worker's momentum after the last two steps that it has answered, with the steps."""
        self.count = 0
        self.process: BaseProcess | None = None
        self.pipe: Connection | None = None
        self.who = ""
        self.linked = self.free = self.late = self.told = self.answered = False

    def start(self, place: link.Place, shelf: link.Shelf) -> None:
        """A fresh process that waits for a worker."""
        first, second = shelf.answers
        dtype = shelf.parameters.dtype
        self.answers = Message(shelf.answer_values, dtype, first), Message(shelf.answer_values, dtype, second)
        context = multiprocessing.get_context("forkserver")
        self.pipe, end = context.Pipe()
        self.process = context.Process(target=link.main, args=(place, shelf, end), daemon=True)
        self.process.start()
        end.close()  # so that the process's death shows as the end of the pipe
        self.who = ""
        self.linked = self.free = self.late = self.told = self.answered = False

    def remember(self, step: int, memory: Tensor) -> None:
        self.memories = [*self.memories[-1:], (step, memory)]

    def keep(self) -> None:
        """The last answer was not one to remember, and the next will come to where the one before it lies."""
        self.memories = [(step, memory.clone()) for step, memory in self.memories]

    def memory(self, until: float = math.inf) -> tuple[int, Tensor | None]:
        """The worker's momentum after its last step up to this one; NO_STEP where there is none."""
        return next((known for known in reversed(self.memories) if known[0] <= until), (NO_STEP, None))

    def order(self, what: str, step: int = NO_STEP) -> None:
        assert self.pipe
        with contextlib.suppress(OSError):  # its death is told by the pipe's end
            self.pipe.send_bytes(json.dumps({"do": what, "step": step}).encode())

    def stop(self) -> None:
        if self.pipe:
            self.pipe.close()
        if self.process:
            self.process.join(1.0)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.pipe = self.process = None
