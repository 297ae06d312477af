"""A training loop of your own: 7 workers with data loaders of their own, 2 that carry out `little`, and Krum.

python examples/own_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset, random_split

import gyroscope as gy

HONEST, LIARS, ROUNDS, LR = 7, 2, 200, 0.05
torch.manual_seed(0)
digits = load_digits()
inputs, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
train, test = random_split(TensorDataset(inputs, labels), [1437, 360])
shards = random_split(train, [1 / HONEST] * HONEST)
loaders = [DataLoader(shard, batch_size=16, shuffle=True) for shard in shards]
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def gradient(loader: DataLoader) -> torch.Tensor:
    """One worker's gradient at the model as it is."""
    samples, targets = next(iter(loader))
    loss = nn.functional.cross_entropy(model(samples), targets)
    return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))


momentum = [gy.WorkerMomentum(mu=0.9) for _ in loaders]
server = gy.RobustAggregator("krum", f=LIARS)
attack = gy.attacks.Little()
for _ in range(ROUNDS):
    honest = torch.stack([worker.update(gradient(loader)) for worker, loader in zip(momentum, loaders, strict=True)])
    rows = torch.cat([honest, attack(honest, LIARS)])
    parameters = parameters_to_vector(model.parameters()).detach()
    vector_to_parameters(parameters - LR * server.step(rows).vector, model.parameters())

samples, targets = next(iter(DataLoader(test, batch_size=len(test))))
print(f"accuracy with {LIARS} liars among {HONEST + LIARS}: {(model(samples).argmax(1) == targets).float().mean():.1%}")
