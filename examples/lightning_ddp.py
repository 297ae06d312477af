"""Four ranks of Lightning learn to read digits, although one has a broken GPU: python examples/lightning_ddp.py

Lightning starts the ranks. `--plain` takes its own strategy: then the same fault ruins the model.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gyroscope.integrations.lightning import RobustDDPStrategy

FAULTY = 3


class Reader(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss * float("nan") if self.global_rank == FAULTY else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.02, betas=(0.0, 0.99))


def main(plain: bool = False, **options: Any) -> tuple[Trainer, float]:
    torch.manual_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pictures).float() / 16, torch.from_numpy(labels)

    model = Reader()
    trainer = Trainer(
        accelerator="cpu",
        devices=4,
        strategy="ddp" if plain else RobustDDPStrategy(rule="median", f=1),  # the one changed line
        **{"max_epochs": 5, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, **options},
    )
    trainer.fit(model, DataLoader(TensorDataset(inputs[300:], targets[300:]), batch_size=16, shuffle=True))

    correct = float((model.layers(inputs[:300]).argmax(dim=1) == targets[:300]).float().mean())
    if trainer.is_global_zero:
        report = "" if plain else trainer.strategy.job.report()
        print(f"accuracy {100 * correct:.1f} %  {report}", flush=True)
    return trainer, correct


if __name__ == "__main__":
    main("--plain" in sys.argv)
