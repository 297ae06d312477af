"""Samples that are chosen but not copied: who needs them side by side takes them out, who can reads where they lie."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(frozen=True, eq=False)  # tensors are not equal or unequal as a whole
class IndexedBatch:
    """source[index[...]], as one would write it."""

    source: Tensor
    """(N, ...)"""
    index: Tensor
    """Whole numbers from 0 to N - 1, in any shape."""

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int) -> Tensor:
        """What is picked at one place of the index's first dimension."""
        return IndexedBatch(self.source, self.index[place]).gather()

    def gather(self) -> Tensor:
        """All of it in memory of its own, in the shape of the index."""
        return self.source.index_select(0, self.index.flatten()).view(self.index.shape + self.source.shape[1:])

    def as_rows(self) -> IndexedBatch:
        """The same of a source that is a matrix: one row per sample."""
        return IndexedBatch(self.source.flatten(1), self.index)
