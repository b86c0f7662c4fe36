"""Runs that are logged, and the rows of their logs; for the tests of the logger, of shards and of accelerate."""

import torch

from o2nc.logger import Row
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


def read(path):
    """Return the rows of a log."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert tuple(lines[0]) == Row._fields
    return [Row(int(step), verdict, *map(float, numbers)) for step, verdict, *numbers in lines[1:]]


def steps(path):
    return [row.step for row in read(path)]
