"""Momentum at the worker, as a mod for any Flower ClientApp."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from torch import Tensor

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import _kernels
from gyroscope.integrations.flower.layout import Layout, RefusedError, Values
from gyroscope.integrations.flower.strategy import STATISTICS
from gyroscope.momentum import WorkerMomentum

log = logging.getLogger("flwr")

_MEMORY, _TAG = "gyroscope.momentum", "gyroscope.momentum.round"

Next = Callable[[Message, Context], Message]


def worker_momentum(mu: float = 0.9) -> Callable[[Message, Context, Next], Message]:
    """A mod that makes a client reply with its momentum instead of its update: `ClientApp(mods=[worker_momentum()])`.

    The update is the arrays that the client has trained minus those it was sent, after as many local steps as it
    takes. m <- mu * m + update, and the reply is the arrays it was sent plus m, so a server that knows nothing of
    momentum (any strategy) applies m. Put it first among the mods that look at updates; a mod that clips or adds
    noise belongs after it in the list, nearer to the training.

    m is kept in the node's `context.state`, tagged with its round. A node that has missed rounds notices by the tag,
    says so in its log, and goes on with the m it has: old gradients are stale by those rounds but still honest, and
    to begin anew would make its row an outlier. If the model's arrays have changed, m begins anew.

    Whole-number arrays and batch-norm's running statistics are passed on as trained.
    """
    WorkerMomentum(mu)  # says at once if there is no such factor

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN or not reply.has_content():
            return reply
        sent, name, trained = _one(message), _name_of_one(reply), _one(reply)
        layout = Layout.of(sent)
        before = layout.read(sent)
        try:
            after = layout.read(trained)
        except RefusedError as problem:
            raise ConfigError(f"worker_momentum: the client's arrays do not fit those it was sent: {problem}") from None
        update = after.vector - before.vector
        momentum, known = WorkerMomentum(mu), _remembered(context, layout)
        momentum.load_state_dict({} if known is None else {"momentum": known})
        with _kernels.switched_off():  # a process that handles one message loses more by loading them than they save
            row = momentum.update(update)
        with_momentum = torch.where(layout.mask(STATISTICS), row, update)
        assert momentum.memory is not None
        _remember(context, layout, Values(momentum.memory, before.others), _round(message))
        reply.content[name] = layout.write(Values(before.vector + with_momentum, after.others))
        return reply

    return mod


def _one(message: Message) -> ArrayRecord:
    return message.content.array_records[_name_of_one(message)]


def _name_of_one(message: Message) -> str:
    names = list(message.content.array_records)
    if len(names) != 1:
        raise ConfigError(f"worker_momentum needs one array record in each message, got {len(names)}: {names}")
    return str(names[0])


def _round(message: Message) -> int:
    """The server's round, as all of Flower's strategies announce it; 0 where it is not announced."""
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])
    return 0


def _remembered(context: Context, layout: Layout) -> Tensor | None:
    state: Any = context.state
    if _MEMORY not in state:
        return None
    try:
        return layout.read(state[_MEMORY]).vector
    except RefusedError as problem:
        log.warning("worker_momentum: the model has changed (%s): momentum begins anew", problem)
        return None


def _remember(context: Context, layout: Layout, memory: Values, server_round: int) -> None:
    state: Any = context.state
    last = int(state[_TAG]["round"]) if _TAG in state else None
    if last is not None and server_round and server_round != last + 1:
        log.warning("worker_momentum: last update in round %d, this is %d: momentum is kept", last, server_round)
    state[_MEMORY] = layout.write(memory)
    state[_TAG] = ConfigRecord({"round": server_round})
