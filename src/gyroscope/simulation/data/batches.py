"""Data in memory: one split for training, one for testing, each with its own preparation. Batches of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from gyroscope._core import random_streams
from gyroscope._core.errors import DataError

Prepare = Callable[[Tensor, torch.Generator], Tensor]
"""Maps stored inputs to the model's inputs, with a generator for augmentation."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Inputs (N, ...) and targets (N, ...) as they are stored; `prepare` is applied to each batch.

    Training and testing never share a split, so an augmentation cannot leak into the test or get lost.

    Args:
        inputs: The samples, in any form that `prepare` takes; without it, as the model takes them.
        targets: As many classes or values.
        prepare: Maps the stored inputs of a batch and a `torch.Generator` to the model's inputs: scaling, augmentation.

    Raises:
        DataError: There are no samples, or not as many targets as inputs.

    Example:
        >>> import torch
        >>> import gyroscope as gy
        >>> pictures, labels = torch.randint(256, (10, 28, 28), dtype=torch.uint8), torch.arange(10)
        >>> split = gy.Split(pictures, labels, prepare=lambda stored, generator: stored.flatten(1) / 255)
        >>> len(split)
        10
    """

    inputs: Tensor
    targets: Tensor
    prepare: Prepare | None = None

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise DataError(
                f"a split needs as many targets as inputs and at least one, got {len(self.inputs)} inputs and "
                f"{len(self.targets)} targets"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> Split:
        return dataclasses.replace(self, inputs=self.inputs.to(device).contiguous(), targets=self.targets.to(device))

    @classmethod
    def of(cls, data: Split | tuple[Tensor, Tensor] | Any) -> Split:
        """Make a split from (inputs, targets) tensors, or from any map-style data set of (input, target) pairs."""
        if isinstance(data, Split):
            return data
        if isinstance(data, (tuple, list)) and len(data) == 2 and all(hasattr(part, "shape") for part in data):
            return cls(torch.as_tensor(data[0]), torch.as_tensor(data[1]))  # tensors or numpy arrays
        if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            samples = cast(Sequence[tuple[Any, Any]], data)
            pairs = [samples[index] for index in range(len(samples))]
            if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
                raise DataError(f"the samples of a {type(data).__name__} must be (input, target) pairs")
            return cls(
                torch.stack([torch.as_tensor(x) for x, _ in pairs]), torch.stack([torch.as_tensor(y) for _, y in pairs])
            )
        raise DataError(
            f"cannot take data from a {type(data).__name__}: pass (inputs, targets) tensors, a gyroscope Split, or a "
            "map-style data set of (input, target) pairs"
        )


def deal(seed: int, step: int, workers: Iterable[int], samples: int, batch: int) -> Tensor:
    """Return (workers, batch) sample numbers: each worker draws uniformly, with replacement, from its own stream.

    Worker i's batch at step t depends on (seed, i, t) alone, however many other workers there are.
    """
    stream, drawn = torch.Generator(), []
    for worker in workers:
        stream.manual_seed(random_streams.derive(seed, "batch", worker, step))
        drawn.append(torch.randint(samples, (batch,), generator=stream))
    return torch.stack(drawn)


def deal_from_one_pass(seed: int, step: int, workers: Iterable[int], count: int, samples: int, batch: int) -> Tensor:
    """Return (workers, batch) sample numbers from a shuffled pass over the data that all `count` workers share.

    Each worker in turn takes the next `batch` samples, step after step, so no sample comes twice before all came once;
    then the next pass begins, shuffled anew.
    """
    places = torch.stack([(step * count + worker) * batch + torch.arange(batch) for worker in workers])
    dealt = torch.empty_like(places)
    for number in range(int(places.min()) // samples, int(places.max()) // samples + 1):
        here = places // samples == number
        dealt[here] = _shuffled(seed, number, samples)[places[here] - number * samples]
    return dealt


def deal_from_shards(
    seed: int, step: int, workers: Iterable[int], shards: Sequence[Tensor], batch: int, one_pass: bool = False
) -> Tensor:
    """Return (workers, batch) sample numbers, each worker's from its own shard: `shards[i]` are those of worker i.

    They are drawn uniformly with replacement, or with `one_pass` from shuffled passes over the shard.
    Worker i's batch depends on (seed, i, step) and on its shard alone.
    """

    def places(worker: int, samples: int) -> Tensor:
        if one_pass:
            return deal_from_one_pass(random_streams.derive(seed, "shard", worker), step, [0], 1, samples, batch)
        return deal(seed, step, [worker], samples, batch)

    return torch.stack([shards[worker][places(worker, len(shards[worker]))[0]] for worker in workers])


@functools.lru_cache(maxsize=4)
def _shuffled(seed: int, number: int, samples: int) -> Tensor:
    return torch.randperm(samples, generator=random_streams.generator(seed, "pass", number))
