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

    Arrays, data frames and lists of numbers become tensors, labels of any integer type int64. Training and testing
    never share a split, so an augmentation cannot leak into the test or get lost.

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
        inputs, targets = _tensor("inputs", self.inputs), _tensor("targets", self.targets)
        if not targets.is_floating_point():
            targets = targets.to(torch.int64)  # torch's losses take no other integers
        counts = [len(part) if part.dim() else 0 for part in (inputs, targets)]
        if counts[0] != counts[1] or counts[0] == 0:
            raise DataError(
                f"a split needs as many targets as inputs and at least one, got {counts[0]} inputs and {counts[1]} "
                "targets"
            )
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", targets)

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, like: Tensor) -> Split:
        """Return the split on the tensor's device, with floating-point numbers of the tensor's type.

        Inputs that `prepare` is yet to turn into the model's keep their type.
        """

        def moved(values: Tensor, convert: bool = True) -> Tensor:
            return values.to(like.device, like.dtype if convert and values.is_floating_point() else values.dtype)

        inputs = moved(self.inputs, convert=self.prepare is None).contiguous()
        return dataclasses.replace(self, inputs=inputs, targets=moved(self.targets))

    @classmethod
    def of(cls, data: Split | tuple[Tensor, Tensor] | Any) -> Split:
        """Make a split from (inputs, targets) tensors, or from any map-style data set of (input, target) pairs.

        Raises:
            DataError: the data are something else, empty, no numbers, or of unequal shapes.
        """
        if isinstance(data, Split):
            return data
        arrays = isinstance(data, list) and all(hasattr(part, "shape") for part in data)
        if (isinstance(data, tuple) or arrays) and len(data) == 2:
            return cls(*data)
        if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            samples = cast(Sequence[tuple[Any, Any]], data)
            pairs = [samples[index] for index in range(len(samples))]
            if not pairs:
                raise DataError(f"a data set needs at least one sample, got a {type(data).__name__} of length 0")
            if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
                raise DataError(f"the samples of a {type(data).__name__} must be (input, target) pairs")
            return cls(_stacked("inputs", [x for x, _ in pairs]), _stacked("targets", [y for _, y in pairs]))
        raise DataError(
            f"cannot take data from a {type(data).__name__}: pass (inputs, targets) tensors, a gyroscope Split, or a "
            "map-style data set of (input, target) pairs" + (", such as its .dataset" * hasattr(data, "dataset"))
        )


def _tensor(what: str, values: Any) -> Tensor:
    """Return the values as a tensor; raise a DataError where they are no numbers, or of unequal shapes."""
    try:
        return torch.as_tensor(values.to_numpy(copy=True) if hasattr(values, "to_numpy") else values)
    except (RuntimeError, TypeError, ValueError) as problem:
        first = (str(problem).splitlines() or [""])[0]
        raise DataError(
            f"the {what} cannot become a tensor, got a {type(values).__name__} ({first}): give numbers of one type and "
            "shape, as a torch tensor or a NumPy array"
        ) from problem


def _stacked(what: str, values: Sequence[Any]) -> Tensor:
    """Return the values of all samples as one tensor; raise a DataError where their shapes differ."""
    tensors = [_tensor(what, value) for value in values]
    for number, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise DataError(
                f"all {what} must have one shape, got {tuple(tensors[0].shape)} at sample 0 and {tuple(tensor.shape)} "
                f"at sample {number}: crop, resize or pad them in the data set"
            )
    return torch.stack(tensors)


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
