"""Momentum at the worker, as a mod for any Flower ClientApp."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType

from gyroscope._core.errors import ConfigError
from gyroscope._linalg import _kernels
from gyroscope.integrations.flower.layout import Layout, RefusedError, Values
from gyroscope.integrations.flower.strategy import STATISTICS
from gyroscope.momentum import WorkerMomentum

log = logging.getLogger("flwr")

_STATE, _ROUND = "gyroscope.momentum", "gyroscope.momentum.round"

Next = Callable[[Message, Context], Message]


def worker_momentum(mu: float = 0.9) -> Callable[[Message, Context, Next], Message]:
    """Return a mod with which a client replies with its momentum: `ClientApp(mods=[worker_momentum()])`.

    The update is the arrays that the client has trained minus those it was sent. m <- mu * m + update, and the reply is
    the arrays it was sent plus m, so any server applies m. Put it first among the mods that look at updates; a mod that
    clips or adds noise belongs after it in the list, nearer to the training. Whole-number arrays and batch-norm's
    running statistics are passed on as trained.

    The node's `context.state` holds m and its round. A node that has missed rounds logs it and continues with the m it
    has: old gradients are stale but still honest, and without them its row would be an outlier. If the model's arrays
    have changed, m starts at zero. An update that is not finite is sent and not accumulated (see `WorkerMomentum`).

    Raises:
        ConfigError: mu is not in [0, 1); or, from the mod, the client's arrays are not those of the server.
    """
    WorkerMomentum(mu)  # raises at once if mu is out of range

    def mod(message: Message, context: Context, call_next: Next) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.split(".")[0] != MessageType.TRAIN or not reply.has_content():
            return reply
        (_, sent), (name, trained) = _only_record(message), _only_record(reply)
        layout = Layout.of(sent)
        before = layout.read(sent)
        try:
            after = layout.read(trained)
        except RefusedError as problem:
            raise ConfigError(f"worker_momentum: the client's arrays do not fit those it was sent: {problem}") from None
        update = after.vector - before.vector
        momentum = _restored(mu, context.state, layout)
        with _kernels.switched_off():  # a process that handles one message loses more by loading them than they save
            row = momentum.update(update)
        with_momentum = torch.where(layout.mask(STATISTICS), row, update)
        _check_round(message, context.state)
        context.state[_STATE] = layout.write(Values(momentum.state_dict()["momentum"], before.others))
        reply.content[name] = layout.write(Values(before.vector + with_momentum, after.others))
        return reply

    return mod


def _only_record(message: Message) -> tuple[str, ArrayRecord]:
    records = message.content.array_records
    if len(records) != 1:
        raise ConfigError(
            f"worker_momentum needs one array record in each message, got {len(records)}: {list(records)}"
        )
    ((name, record),) = records.items()
    return name, record


def _restored(mu: float, state: Any, layout: Layout) -> WorkerMomentum:
    momentum = WorkerMomentum(mu)
    if _STATE in state:
        try:
            momentum.load_state_dict({"momentum": layout.read(state[_STATE]).vector})
        except RefusedError as problem:
            log.warning("worker_momentum: the model has changed (%s): momentum starts at zero", problem)
    return momentum


def _check_round(message: Message, state: Any) -> None:
    """Log that rounds were missed, where the server announces its round as Flower's strategies do; keep the round."""
    records = message.content.config_records.values()
    this = next((int(record["server-round"]) for record in records if "server-round" in record), 0)
    last = int(state[_ROUND]["round"]) if _ROUND in state else None
    if last is not None and this and this != last + 1:
        log.warning("worker_momentum: last update in round %d, this is %d: momentum is kept", last, this)
    state[_ROUND] = ConfigRecord({"round": this})
