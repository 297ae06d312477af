"""Deal the training data to the workers: common data for all, or shards, where every sample is with exactly one.

Shards are dealt to all n workers, the Byzantine ones included: what worker i holds depends on the data, on n and on the
seed, never on which workers are Byzantine. So an attack takes the data of the Byzantine workers away from the training,
as it would in reality, and an attack on data (label flipping) has data of its own.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gyroscope._core import random_streams, registry
from gyroscope._core.errors import ConfigError, DataError

SampleIndices = NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Sharding(registry.Named):
    """A way to deal N samples to n workers: every sample to one worker, at least one sample to every worker.

    Call `deal`, implement `shares`. A worker draws its batches from its shard with replacement (or pass after pass over
    it, with `batches = "pass"`), so a shard may be smaller than a batch: its samples come several times.
    """

    kind_in_errors = "sharding"
    by_label: ClassVar[bool] = False
    """Whether it looks at the labels: then every sample needs one, as a whole number."""

    def deal(self, targets: Tensor, n: int, seed: int) -> list[Tensor] | None:
        """Return the ascending numbers of the samples that each of the n workers holds; None where all hold all."""
        if len(targets) < n:
            raise DataError(
                f"{len(targets)} samples cannot be dealt to {n} workers such that each holds one: use fewer workers, "
                "or common data (--shards common)"
            )
        if self.by_label and (targets.dim() != 1 or targets.is_floating_point() or targets.is_complex()):
            raise ConfigError(
                f"{self.name} deals samples by label and needs one whole number per sample, got targets of shape "
                f"{tuple(targets.shape)} and {targets.dtype}: use iid or quantity"
            )
        labels = (targets.cpu().numpy() if self.by_label else np.zeros(len(targets))).astype(np.int64)
        stream = np.random.default_rng(random_streams.derive(seed, "shards"))
        shares = self.shares(labels, n, stream)
        dealt = np.sort(np.concatenate(shares))
        if len(shares) != n or not np.array_equal(dealt, np.arange(len(targets))) or min(map(len, shares)) == 0:
            raise ConfigError(
                f"the sharding {type(self).__name__} must give n = {n} arrays, none of them empty, that together hold "
                f"each of the {len(targets)} sample numbers once"
            )
        # Which worker gets which share is drawn, too: else the Byzantine workers, who are the last ones, would always
        # hold the last labels of data that is sorted by label.
        return [torch.from_numpy(np.sort(shares[number])) for number in stream.permutation(n)]

    @abstractmethod
    def shares(self, labels: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        """Return n arrays of sample numbers; together they hold each number below len(labels) once."""


@dataclasses.dataclass(frozen=True)
class Common(Sharding):
    """No shards: every worker draws from all the data, as in the paper."""

    name = "common"
    summary = "no shards: every worker draws from all the data"
    paper = "El Mhamdi, Guerraoui, Rouault 2020"

    def deal(self, targets: Tensor, n: int, seed: int) -> list[Tensor] | None:
        return None

    def shares(self, labels: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        raise ConfigError("common data is not dealt: choose another sharding")


class _EqualSizes(Sharding):
    """Shards of equal size, the fraction gamma of each from shuffled data, the rest from data sorted by label."""

    gamma: float

    def shares(self, labels: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        shuffled = stream.permutation(len(labels))
        alike = round(self.gamma * len(labels))
        rest = shuffled[alike:]
        rest = rest[np.argsort(labels[rest], kind="stable")]

        def ends(samples: int) -> SampleIndices:
            return np.cumsum(samples // n + (np.arange(n) < samples % n))[:-1]

        # Where a number of samples is no multiple of n, the same first workers hold one more, so that none stays empty.
        first = np.split(shuffled[:alike], ends(alike))
        second = np.split(rest, ends(len(labels)) - ends(alike))
        return [np.concatenate(both) for both in zip(first, second, strict=True)]


@dataclasses.dataclass(frozen=True)
class Iid(_EqualSizes):
    """Equal shards of shuffled data. Sizes differ by at most one."""

    name = "iid"
    summary = "equal shards of shuffled data"
    gamma = 1.0


@dataclasses.dataclass(frozen=True)
class Sorted(_EqualSizes):
    """Equal shards of data that is sorted by label: with as many workers as labels, about one label each."""

    name = "sorted"
    aliases = ("extreme-niid",)
    summary = "equal shards of data sorted by label: one or two labels each"
    paper = "McMahan et al. 2017"
    by_label = True
    gamma = 0.0


@dataclasses.dataclass(frozen=True)
class Similarity(_EqualSizes):
    """A fraction gamma of the data is dealt as by `iid`, the rest as by `sorted`. Sizes differ by at most one."""

    gamma: float = registry.number(0.5, "from 0 to 1", lambda gamma: 0 <= gamma <= 1)

    name = "similarity"
    aliases = ("gamma-similarity", "gamma-similarity-niid")
    summary = "a fraction gamma of each shard is shuffled, the rest sorted by label"
    paper = "Hsu et al. 2019, Karimireddy et al. 2020"
    by_label = True


@dataclasses.dataclass(frozen=True)
class Quantity(Sharding):
    """Shuffled data in shards whose sizes are in proportions from Dirichlet(alpha): the smaller, the more unequal.

    A worker left with fewer than `least` samples gets the missing ones as with `dirichlet`.
    """

    # Beyond these bounds a Dirichlet distribution deals every sample as it does there.
    alpha: float = registry.number(0.5, "from 1e-06 to 1e+06", lambda alpha: 1e-6 <= alpha <= 1e6)
    least: int = registry.number(1, "a whole number from 1 on", lambda least: least >= 1, whole=True)

    name = "quantity"
    summary = "shuffled data in unequal shards, their sizes from Dirichlet(alpha)"
    paper = "Li et al. 2022"

    def shares(self, labels: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        return self._topped_up(self._cut(stream.permutation(len(labels)), n, stream), stream)

    def _cut(self, samples: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        """Return n consecutive pieces, in proportions from a symmetric Dirichlet distribution."""
        ends = np.cumsum(stream.dirichlet(np.full(n, float(self.alpha))))
        return np.split(samples, np.round(ends[:-1] * len(samples)).astype(np.int64))

    def _topped_up(self, shares: list[SampleIndices], stream: np.random.Generator) -> list[SampleIndices]:
        """Return the same shares, but a worker with too few samples gets some, one by one, from the one with most."""
        held = [list(share) for share in shares]
        samples = sum(map(len, held))
        if samples < self.least * len(held):
            raise ConfigError(
                f"{samples} samples are not enough for {len(held)} workers with {self.least} each: lower least in "
                f"{self.name}"
            )
        for poor in held:
            while len(poor) < self.least:
                rich = max(held, key=len)
                poor.append(rich.pop(stream.integers(len(rich))))
        return [np.array(worker, dtype=np.int64) for worker in held]


@dataclasses.dataclass(frozen=True)
class Dirichlet(Quantity):
    """Each label is divided among the workers in proportions from Dirichlet(alpha): the smaller, the more unequal.

    Labels and sizes both vary, as in Li et al. (and Flower's partitioner). Hsu et al. 2019 draw the proportions of
    labels for each worker instead, with equal sizes. A worker left with fewer than `least` samples gets the missing
    ones from the worker that holds most at the time; others redraw everything until no worker has fewer, which for
    small alpha never happens.
    """

    name = "dirichlet"
    aliases = ("dirichlet-niid",)
    summary = "each label divided among the workers in proportions from Dirichlet(alpha)"
    paper = "Yurochkin et al. 2019, Li et al. 2022"
    by_label = True

    def shares(self, labels: SampleIndices, n: int, stream: np.random.Generator) -> list[SampleIndices]:
        cuts = [
            self._cut(stream.permutation(np.flatnonzero(labels == label)), n, stream) for label in np.unique(labels)
        ]
        return self._topped_up([np.concatenate(pieces) for pieces in zip(*cuts, strict=True)], stream)


SHARDINGS: dict[str, type[Sharding]] = {
    sharding.name: sharding for sharding in (Common, Iid, Dirichlet, Similarity, Sorted, Quantity)
}


def parse(spec: str) -> Sharding:
    """Return the sharding that a spec such as `dirichlet:alpha=0.1` describes."""
    name, parameters = registry.split(spec)
    return registry.make("sharding", Sharding, SHARDINGS, name, parameters)


def counts(shards: list[Tensor], targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the labels there are, and how many samples of each label each worker holds, as (workers, labels)."""
    labels, numbers = np.unique(targets.cpu().numpy(), return_inverse=True)
    held = [np.bincount(numbers[shard.numpy()], minlength=len(labels)) for shard in shards]
    return torch.from_numpy(labels), torch.from_numpy(np.stack(held))


def skew(counts: Tensor) -> float:
    """Return how unlike the workers' labels are, from 0 (all as the whole data) towards 1.

    It is the mean over the workers of the total variation distance between the labels of a worker and those of all
    data: the part of a worker's samples that would have to get another label. One label per worker gives 1 - 1/labels.
    """
    own = counts / counts.sum(dim=1, keepdim=True)
    whole = counts.sum(dim=0) / counts.sum()
    return float((own - whole).abs().sum(dim=1).mean() / 2)
