"""Top-1 accuracy on the whole test set. It never touches the randomness of training."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from gyroscope._core import random_streams
from gyroscope._linalg import linear_layers
from gyroscope.simulation.data.splits import Split

_VALUES = {"cpu": 400_000}
"""Input values per batch: a core's cache holds that many and what the first layer makes of them. A GPU wants more."""
_VALUES_ELSEWHERE = 8_000_000
_CHAIN = 4
"""How many times as many for chains of linear layers: these leave little behind, and what is done per batch counts."""


@dataclasses.dataclass(frozen=True)
class Evaluation:
    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples


@torch.inference_mode()
def evaluate(model: nn.Module, test: Split, seed: int = 0) -> Evaluation:
    """How often the largest output is the target's, with the model in evaluation mode."""
    model.eval()
    stream = random_streams.generator(seed, "evaluation")
    correct = torch.zeros((), dtype=torch.int64, device=test.targets.device)  # read once: no waiting for a GPU
    outputs_of = linear_layers.forward(model)
    batch = _batch(test.inputs) * (1 if outputs_of is model else _CHAIN)
    for start in range(0, len(test), batch):
        inputs = test.inputs[start : start + batch]
        outputs = outputs_of(inputs if test.prepare is None else test.prepare(inputs, stream))
        correct += (outputs.argmax(dim=1) == test.targets[start : start + batch]).sum()
    return Evaluation(int(correct), len(test))


def _batch(inputs: Tensor) -> int:
    """How many samples to send through the model at a time."""
    values = _VALUES.get(inputs.device.type, _VALUES_ELSEWHERE)
    return max(1, values // max(1, inputs[0].numel()))
