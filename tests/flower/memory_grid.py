"""A Grid whose nodes are functions in this process: real messages, no network."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from gyroscope._linalg import _kernels
from gyroscope.integrations.flower.server import serve
from gyroscope.integrations.flower.settings import Settings
from gyroscope.integrations.flower.template.client_app import app

# A ServerApp's process has these from its SuperLink; messages cannot be made without them.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

Node = Callable[[Message], Message | None]
"""Returns a reply, or None for none. `pull_messages` raises its errors, as Flower does for a malformed reply."""


STUCK = 30.0
"""Seconds that a pull takes which no deadline of these tests waits for."""


class MemoryGrid(Grid):
    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.asked: list[Message] = []
        self._numbers = itertools.count()
        self._open: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(f"m{next(self._numbers)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self._open[ids[-1]] = message
            self.asked.append(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for number in message_ids:
            message = self._open[number]
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                replies.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("a FaultTolerantGrid has its own")


def arrays_of(message: Message) -> dict[str, Any]:
    return {name: array.numpy().copy() for name, array in message.content["arrays"].items()}


def reply_with(message: Message, arrays: Mapping[str, Any], **metrics: float) -> Message:
    """Return a reply with these arrays; `Array` objects are sent as they are, whatever they hold."""
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array if isinstance(array, Array) else Array(np.asarray(array))
    content = RecordDict({"arrays": record})
    if metrics:
        content["metrics"] = MetricRecord(dict(metrics))
    return Message(content, reply_to=message)


def silent(message: Message) -> Message | None:
    return None


def stuck(message: Message) -> Message | None:
    """Announce an upload that does not come: Flower waits for it."""
    time.sleep(STUCK)
    return None


def context(partition: int = 0, **run_config: Any) -> Context:
    return Context(
        run_id=1, node_id=partition, node_config={"partition-id": partition}, state=RecordDict(), run_config=run_config
    )


def server_round(message: Message) -> int:
    config: ConfigRecord = message.content["config"]
    return int(config["server-round"])


def run_config(settings: Settings) -> dict[str, Any]:
    """Return the settings as Flower passes them to an app."""
    return {key.replace("_", "-"): value for key, value in dataclasses.asdict(settings).items()}


def app_nodes(config: dict[str, Any], count: int = 5) -> dict[int, Node]:
    """Return honest nodes that run the generated app's client: node 1 has the number 0, and so on."""
    # Nodes run in threads here. If their first messages imported numba at the same moment, Python 3.11 might fail with
    # "AST constructor recursion depth mismatch".
    _kernels.warm_up()

    def node(number: int) -> Node:
        here = context(number, **config)

        def reply(message: Message) -> Message:
            return app(message, here)

        return reply

    return {number + 1: node(number) for number in range(count)}


def unreadable(message: Message) -> Message | None:
    raise IndexError("list index out of range")  # what Flower raises at a chunk index out of range


def accuracy_in_this_process(settings: Settings, out: Path, honest: int) -> float:
    """Return the accuracy of the generated app with the first nodes honest and the others' replies unreadable."""
    config = run_config(dataclasses.replace(settings, out=str(out)))
    nodes = {**dict.fromkeys(range(1, settings.nodes + 1), unreadable), **app_nodes(config, honest)}
    serve(MemoryGrid(nodes), context(0, **config))
    return float(json.loads((out / "status.json").read_text())["final_accuracy"])
