"""Measure top-1 accuracy on the whole test set, without touching the random streams of training."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from gyroscope._core import random_streams
from gyroscope._linalg import linear_layers
from gyroscope.simulation.data.batches import Split

_CPU_VALUES, _GPU_VALUES = 400_000, 8_000_000
"""Input values per batch. On a CPU a core's cache holds so many and the outputs of the first layer."""
_CHAIN = 4
"""How many times as many for chains of linear layers: their outputs are small, and the cost per batch matters."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How many of the samples the model classified correctly."""

    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


@torch.inference_mode()
def evaluate(model: nn.Module, test: Split, seed: int = 0) -> Evaluation:
    """Count how often the largest output is the target's, with the model in evaluation mode."""
    model.eval()
    stream = random_streams.generator(seed, "evaluation")
    correct = torch.zeros((), dtype=torch.int64, device=test.targets.device)  # read once: no waiting for a GPU
    outputs_of = linear_layers.forward(model)
    values = _CPU_VALUES if test.inputs.device.type == "cpu" else _GPU_VALUES
    batch = max(1, values // max(1, test.inputs[0].numel())) * (1 if outputs_of is model else _CHAIN)
    for start in range(0, len(test), batch):
        inputs = test.inputs[start : start + batch]
        outputs = outputs_of(inputs if test.prepare is None else test.prepare(inputs, stream))
        correct += (outputs.argmax(dim=1) == test.targets[start : start + batch]).sum()
    return Evaluation(int(correct), len(test))
