"""Copied into the test's app: one node replies with something else each round."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from flwr.app import Array, Context, Message

LIAR = -1
KINDS = ("nan", "shape", "header", "garbage", "chunks")


def misbehave(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    reply = call_next(message, context)
    if context.node_config["partition-id"] != LIAR:
        return reply
    arrays = reply.content["arrays"]
    name = next(iter(arrays))
    kind = KINDS[(int(message.content["config"]["server-round"]) - 1) % len(KINDS)]
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
    else:
        # Flower's own parser fails at this one: a piece of the array that does not exist.
        class Broken(Array):
            def deflate(self) -> bytes:
                return super().deflate().replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [9]')

        whole = arrays[name]
        broken = Broken(dtype=whole.dtype, shape=whole.shape, stype=whole.stype, data=whole.data)
        assert json.dumps("arraychunk_ids").encode() in broken.deflate()
        arrays[name] = broken
    return reply
