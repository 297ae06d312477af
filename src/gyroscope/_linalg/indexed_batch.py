"""Samples given by their indices: gathered only by functions that need them side by side in memory."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)  # tensors have no single truth value for ==
class IndexedBatch:
    """The samples source[index], not yet copied."""

    source: Tensor
    """(N, ...)"""
    index: Tensor
    """Integers from 0 to N - 1, in any shape."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Tensor:
        """Gather the samples at one place of the index's first dimension."""
        return IndexedBatch(self.source, self.index[place]).gather()

    def gather(self) -> Tensor:
        """Copy the samples to a new tensor, in the shape of the index."""
        return self.source.index_select(0, self.index.flatten()).view(self.index.shape + self.source.shape[1:])

    def as_rows(self) -> IndexedBatch:
        """Return the same batch of flattened samples: one row each."""
        return IndexedBatch(self.source.flatten(1), self.index)
