"""Four ranks of Accelerate learn to read digits, although one has a broken GPU.

    torchrun --nproc-per-node 4 examples/accelerate_ddp.py

`--plain` leaves out the one line that makes it robust: then the same fault ruins the model.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gyroscope.integrations.accelerate import robust

EPOCHS, FAULTY = 5, 3


def main(plain: bool = False) -> tuple[nn.Module, Any, float]:
    torch.manual_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pictures).float() / 16, torch.from_numpy(labels)
    batches = DataLoader(TensorDataset(inputs[300:], targets[300:]), batch_size=16, shuffle=True)

    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.0, 0.99))
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    job = None if plain else robust(accelerator, model, rule="median", f=1)  # the one changed line

    for _ in range(EPOCHS):
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            if accelerator.process_index == FAULTY:
                loss = loss * float("nan")
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()

    model = accelerator.unwrap_model(model)
    correct = float((model(inputs[:300]).argmax(dim=1) == targets[:300]).float().mean())
    accelerator.print(f"accuracy {100 * correct:.1f} %  {'' if job is None else job.report()}", flush=True)
    accelerator.end_training()
    return model, job, correct


if __name__ == "__main__":
    main("--plain" in sys.argv)
