"""Top-1 accuracy on the whole test set. It never touches the randomness of training."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from gyroscope import randomness
from gyroscope.data.splits import Split

_BATCH = 1000


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
    stream = randomness.generator(seed, "evaluation")
    correct = 0
    for start in range(0, len(test), _BATCH):
        inputs = test.inputs[start : start + _BATCH]
        outputs = model(inputs if test.prepare is None else test.prepare(inputs, stream))
        correct += int((outputs.argmax(dim=1) == test.targets[start : start + _BATCH]).sum())
    return Evaluation(correct, len(test))
