"""A worker of a sharded server that does what a test tells it, link by link."""

from __future__ import annotations

from pathlib import Path

import torch
from hostile_peers import Peer

from gyroscope.distributed.protocol import ANSWER, OFFER, OPEN_SHARDS, PING, READY, ROUND, WELCOME, Head, Offer


class Puppet:
    """Its link to the coordinator, and those to the shards."""

    def __init__(self, port: int, certificate: Path | None) -> None:
        self.front = Peer(port, certificate)
        head, said = self.front.hello()
        assert head.kind == OFFER, said
        self.offer = Offer.parse(said.decode())
        self.front.send(Head(READY).pack())
        head, _ = self.front.receive()
        assert head.kind == WELCOME and head.size == 0
        self.front.session = head.session
        head = self.asked(self.front)[0]
        assert head.step == OPEN_SHARDS and head.size == 0
        self.shards = [Peer(port, certificate) for port, _ in self.offer.shards]
        self.momenta: list[tuple[int, bytes]] = []
        """What each shard lets it continue with: the step, and the values."""
        for shard in self.shards:
            assert shard.hello()[0].kind == OFFER
            shard.send(Head(READY).pack())
            head, content = shard.receive()
            shard.session = head.session
            self.momenta.append((head.step, content))
        self.tell(OPEN_SHARDS)

    @staticmethod
    def asked(peer: Peer) -> tuple[Head, bytes]:
        """Wait for the next question."""
        while True:
            head, content = peer.receive()
            if head.kind != PING:
                assert head.kind == ROUND
                return head, content

    def tell(self, step: int, loss: float = 0.5) -> None:
        self.front.send(Head(ANSWER, step, self.front.session, 0, loss).pack())

    def await_round(self) -> tuple[int, torch.Tensor]:
        """Return the step and the parameters that all links ask for."""
        step = self.asked(self.front)[0].step
        parts = []
        for shard in self.shards:
            head, content = self.asked(shard)
            assert head.step == step
            parts.append(torch.frombuffer(bytearray(content), dtype=torch.float32))
        return step, torch.cat(parts)

    def send(self, step: int, row: torch.Tensor, *shards: int) -> None:
        """Send the parts of the row to these shards; to all of them, and the loss, if none is named."""
        begin = 0
        for number, (_, end) in enumerate(self.offer.shards):
            if not shards or number in shards:
                self.shards[number].answer(step, row[begin:end].contiguous())
            begin = end
        if not shards:
            self.tell(step)

    def end(self) -> None:
        for peer in [self.front, *self.shards]:
            peer.connection.__exit__()
