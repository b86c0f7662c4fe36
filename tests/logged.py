"""Runs that are logged, and the steps of their logs; for the tests of the logger, of shards and of accelerate."""

import torch

from registry import OURS, ours_of


def make(name="ScaledSGDM"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return model, OURS[name](model.named_parameters())


def train(model, optimizer, steps, after=lambda: None):
    for _ in range(steps):
        step = int(ours_of(optimizer)["step"])
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x[:, :1]).abs().mean().backward()
        optimizer.step()
        after()


def steps(path):
    """Return the steps of all rows, also of those that a later run replaced."""
    return [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]
