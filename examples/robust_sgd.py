"""Four ranks learn to read digits although one has bad data: torchrun --nproc-per-node 4 examples/robust_sgd.py"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from gyroscope.distributed import RobustSGD

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)

pictures, labels = load_digits(return_X_y=True)
inputs, targets = torch.from_numpy(pictures).float() / 16, torch.from_numpy(labels)
test_inputs, test_targets = inputs[:300], targets[:300]
inputs, targets = inputs[300 + rank :: world], targets[300 + rank :: world]
if rank == 1:
    inputs = inputs * 1000  # somebody forgot to scale the pictures on this machine

model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = RobustSGD(model.parameters(), lr=0.05, rule="median", f=1)

for _ in range(200):
    batch = torch.randint(len(inputs), (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
    optimizer.step()

if rank == 0:
    correct = (model(test_inputs).argmax(dim=1) == test_targets).float().mean().item()
    print(f"accuracy {100 * correct:.1f} %")
dist.destroy_process_group()
