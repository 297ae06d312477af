"""What the tests of all research paths share: a gradient that is not finite, of one worker in one round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from gyroscope.simulation import workers as simulated

Sampled = dict[tuple[int, int], Tensor]
"""The clipped gradients that were sampled, by (worker, step); of an asynchronous worker, by (worker, count)."""


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Sampled]:
    """A function that records the gradients of the runs to come, after making some of them not finite."""
    real = simulated.choose

    def watch(*poisoned: tuple[int, int], value: float = math.nan) -> Sampled:
        seen: Sampled = {}

        def choose(model: Any, loss: Any) -> Any:
            compute = real(model, loss)

            def gradients(inputs: Any, targets: Tensor, noise: simulated.Noise, terms: Any, out: Tensor) -> Tensor:
                losses = compute(inputs, targets, noise, terms, out)
                _, step, workers = noise
                for index, (worker, row) in enumerate(zip(workers, out, strict=True)):
                    if (worker, step) in poisoned:
                        row.fill_(value)
                        losses[index] = value
                    seen[worker, step] = row.clone()
                return losses

            return gradients

        monkeypatch.setattr(simulated, "choose", choose)
        return seen

    return watch
