"""One named stream of random numbers per purpose, all from one seed.

Streams are *stateless*: what worker 3 draws at step 40 depends on the seed and on those two numbers alone. So a resumed
run, a worker that rejoins, and a run that evaluates twice as often all see the same numbers, and there is no generator
state to save.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose: `derive(1, "batch", worker, step)`."""
    text = "/".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator at the start of the named stream."""
    return torch.Generator(device=device).manual_seed(derive(seed, purpose, *numbers))


@contextlib.contextmanager
def ambient(seed: int, purpose: str, *numbers: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Within the block torch's global generators stand at the start of the named stream; then they are as before.

    For code that takes no generator: the initialisation of layers, dropout.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, purpose, *numbers))
        yield
