"""The configured rule in few coordinates, for an adversary that tries hundreds of candidates in every round."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from gyroscope.attacks.base import AttackContext

COLUMNS = 4096
"""Columns that stand for all, where a rule cannot be computed from inner products."""

Kind = Literal["whole", "inner products", "columns"]


def kind_for(d: int, context: AttackContext) -> Kind:
    """Return in which coordinates to try first: few values, and rows that the server changes, stay as they are."""
    return "whole" if d <= COLUMNS or context.preview is not None else "inner products"


class CompressedRule:
    """The configured rule for rows that are combinations of k vectors.

    Most rules that read whole rows depend on inner products only. For these the adversary computes in the span of the
    vectors and of what the rule remembers or trusts, in some k coordinates in place of d. It has to compare one result
    with the rule's own, because nothing says of a rule whether it is one of these.

    Args:
        vectors: (k, d).
        context: What the adversary knows: the rule, with its state.
        kind: `inner products` (which become `columns` if one is not finite), or `columns` for random columns, or
            `whole` for the vectors themselves.
    """

    def __init__(self, vectors: Tensor, context: AttackContext, kind: Kind) -> None:
        self.kind, self.context, self.d = kind, context, vectors.shape[1]
        self.vectors, self.known = vectors, context.rule_context
        self.coordinates = vectors.double() if kind == "whole" else self._compressed()
        """(k, c): the vectors in these coordinates, float64."""

    def _compressed(self) -> Tensor:
        known, (k, d) = self.known, self.vectors.shape
        kept = {name: value for name, value in known.state.items() if value.dim() > 0 and value.shape[-1] == d}
        others = [*kept.values(), *([] if known.trusted is None else [known.trusted])]
        vectors = torch.cat([self.vectors, *(other.reshape(-1, d).to(self.vectors) for other in others)])
        products = (vectors @ vectors.T).double() if self.kind == "inner products" else None
        if products is None or not bool(products.isfinite().all()):
            self.kind = "columns"
            drawn = (self.context.uniform(COLUMNS) * d).long()
            coordinates = vectors[:, drawn.to(vectors.device)].double()
        else:
            values, axes = torch.linalg.eigh(products)
            coordinates = axes * values.clamp_min(0).sqrt()
        own, *parts = torch.split(coordinates, [k, *(other.numel() // d for other in others)])
        shaped = [part.reshape(*other.shape[:-1], -1) for part, other in zip(parts, others, strict=True)]
        state = {**known.state, **dict(zip(kept, shaped, strict=False))}
        self.known = dataclasses.replace(known, state=state, trusted=None if known.trusted is None else shaped[-1])
        return own

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the rule's result for n rows in these coordinates, or for n whole rows. float64."""
        if rows.shape[1] == self.d:
            return self.context.outcome(rows.to(self.vectors.dtype)).double()
        assert self.context.rule is not None
        return self.context.rule(rows, self.context.declared_f, self.known).vector.double()


def agree(compressed: float, own: float) -> bool:
    """Return whether two damages are the same up to what rounding and the search's own precision leave open."""
    return compressed == own or abs(compressed - own) <= 0.01 * abs(own)
