"""A Grid whose `send_and_receive` survives every reply: each message gets one reply, or an error in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

import httpx  # comes with Flower
from flwr.app import Error, Message
from flwr.serverapp import Grid

UNREADABLE, SILENT = 1000, 1001
"""Codes of the errors in place of replies that could not be read, or did not come. Flower's own codes are small."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


class FaultTolerantGrid(Grid):
    """Wrap a Flower Grid so that replies come in the order of the messages, each from the node that was asked.

    Flower's own `send_and_receive` pulls all replies at once and raises when one of them is malformed, and it can
    wait for hours for the pieces of a reply that a node announced but never uploaded. Here a thread per message pulls
    its reply until the deadline. An error message replaces a reply that cannot be read, is late, or names another
    sender.
    """

    def __init__(self, grid: Grid) -> None:
        self.inner = grid

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        deadline = float("inf") if timeout is None else time.monotonic() + timeout
        pending = [_PendingReply(self.inner, message, deadline) for message in messages]
        return [reply.result() for reply in pending]

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return self.inner.create_message(*arguments, **named)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.inner.get_node_ids())

    def get_nodes(self) -> Any:
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return list(self.inner.push_messages(list(messages)))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(self.inner.pull_messages(list(message_ids)))


class _PendingReply:
    """One message, and the thread that waits for its reply."""

    def __init__(self, grid: Grid, message: Message, deadline: float) -> None:
        self.grid, self.message, self.deadline = grid, message, deadline
        self.begun = time.monotonic()
        self.reply: Message | None = None
        # Pushed here, in the caller's thread, so that a failure to send, which is the server's own, is not hidden.
        ids = list(grid.push_messages([message]))
        self.id = ids[0] if ids else None
        # A daemon: a pull that never returns must not keep the ServerApp alive.
        self.thread = threading.Thread(target=self._wait, name=f"reply-{message.metadata.dst_node_id}", daemon=True)
        if self.id:
            self.thread.start()

    def result(self) -> Message:
        if not self.id:
            return self._error(SILENT, "the message could not be sent: the node has gone")
        self.thread.join(None if self.deadline == float("inf") else max(0.0, self.deadline - time.monotonic()))
        return self.reply or self._error(SILENT, f"no reply within {time.monotonic() - self.begun:.0f} s")

    def _wait(self) -> None:
        pause = _FIRST_PAUSE
        while time.monotonic() < self.deadline:
            try:
                replies = list(self.grid.pull_messages([self.id]))
                if replies:
                    self.reply = self._checked(replies)
                    return
            except (httpx.TransportError, httpx.HTTPStatusError):
                pass  # our connection to the SuperLink failed: try again until the deadline
            except Exception as problem:  # Flower parsed a stranger's bytes: it may raise anything
                self.reply = self._error(UNREADABLE, f"unreadable reply: {type(problem).__name__}: {problem}")
                return
            time.sleep(min(pause, max(0.0, self.deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _checked(self, replies: list[Message]) -> Message:
        """Return the reply, or an error where there are several or another node sent it."""
        if len(replies) > 1:
            return self._error(UNREADABLE, f"{len(replies)} replies to one message")
        reply = replies[0]
        if reply.has_error():
            # Flower makes some of these itself and names itself as their source; we know whose they are.
            return self._error(reply.error.code, str(reply.error.reason))
        if reply.metadata.src_node_id != self.message.metadata.dst_node_id:
            return self._error(UNREADABLE, f"the reply names {reply.metadata.src_node_id} as its sender")
        return reply

    def _error(self, code: int, reason: str) -> Message:
        return Message(Error(code, reason), reply_to=self.message)
