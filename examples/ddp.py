"""A language model in DistributedDataParallel with AdamW, of which one rank may be bad, dead or stopped.

Start five ranks, each with RANK, WORLD_SIZE=5, MASTER_ADDR and MASTER_PORT set (torchrun would end all when one dies):

    for rank in 0 1 2 3 4; do
        RANK=$rank WORLD_SIZE=5 MASTER_ADDR=127.0.0.1 MASTER_PORT=29501 python examples/ddp.py --fault nan &
    done; wait

`--plain` leaves out the one line that makes it robust: then the same fault ruins the model, or stops it. The text ships
with Python: the help pages of the language.
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gy

CONTEXT, WIDTH, LAYERS, BATCH = 32, 64, 2, 8
FAULTY = 3


class GPT(nn.Module):
    """Predicts the next character from the last ones."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.layers(self.characters(x) + self.places.weight[: x.shape[1]], mask, is_causal=True))


def batch(text: Tensor, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=generator)
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


def fault_of(kind: str, model: nn.Module) -> Tensor:
    """What a bad device adds to the loss, so that the gradient becomes NaN or noise of norm 1e6."""
    if kind == "nan":
        return sum(each.sum() for each in model.parameters()) * float("nan")
    size = sum(each.numel() for each in model.parameters())
    noise = sum((each * torch.randn_like(each)).sum() for each in model.parameters())
    return noise * (1e6 / size**0.5)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--fault", choices=["none", "nan", "garbage", "kill", "stop"], default="none")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()

    text = "".join(topics[name] for name in sorted(topics))
    letters = sorted(set(text))
    code = torch.tensor([letters.index(letter) for letter in text])
    training, test = code[: -len(code) // 10], code[-len(code) // 10 :]

    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(len(letters)))
    job = None if options.plain else gy.ddp(model, rule="meamed", f=1, patience=5)  # the one changed line
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9 if options.plain else 0.0, 0.99))

    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, options.steps)

    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(options.steps):
        loss = loss_of(model, *batch(training, generator, BATCH))
        if rank == FAULTY and step >= options.steps // 4:
            if options.fault in ("kill", "stop"):
                os.kill(os.getpid(), signal.SIGKILL if options.fault == "kill" else signal.SIGSTOP)
            if options.fault in ("nan", "garbage"):
                loss = loss + fault_of(options.fault, model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if job is not None and rank == 0 and step % 50 == 49:
            print(job.report(), flush=True)

    with torch.no_grad():
        final = loss_of(model.module, *batch(test, torch.Generator().manual_seed(0), 256))
    print(f"rank {rank}: test loss {final:.3f}", flush=True)


if __name__ == "__main__":
    main()
