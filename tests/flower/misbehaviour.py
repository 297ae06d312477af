"""Copied into the test's app: the nodes with these numbers reply with one kind of nonsense each, in turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Array, Context, Message

BYZANTINE: tuple[int, ...] = ()
KINDS = ("nan", "shape", "header", "garbage", "crash", "chunks")


def misbehave(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    reply = call_next(message, context)
    number = int(context.node_config["partition-id"])
    if number not in BYZANTINE:
        return reply
    arrays = reply.content["arrays"]
    name = next(iter(arrays))
    turn = (int(message.content["config"]["server-round"]) - 1) * len(BYZANTINE) + BYZANTINE.index(number)
    kind = KINDS[turn % len(KINDS)]
    if kind == "nan":
        arrays[name] = Array(np.full_like(arrays[name].numpy(), np.nan))
    elif kind == "shape":
        arrays[name] = Array(np.zeros(3, np.float32))
    elif kind == "header":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }"
        header += b" " * (117 - len(header)) + b"\n"
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
        arrays[name] = Array(dtype="float32", shape=(99999999999999,), stype="numpy.ndarray", data=data)
    elif kind == "garbage":
        arrays[name] = Array(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"\x80\x04garbage")
    elif kind == "chunks":
        # Flower's own parser fails at this one: a piece of the array that does not exist.
        whole = arrays[name]
        broken = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data)
        content = broken.deflate().replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [9]')
        assert b"[9]" in content
        broken = Array(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data)
        broken.__dict__["deflate"] = lambda: content
        arrays[name] = broken
    else:
        raise RuntimeError("crashed on purpose")
    return reply
