"""Runs that are logged, and what their logs say; for the tests of the logger and of its files."""

import csv

import torch

from o2nc.logfile import TEXTS
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
    """Return the rows of a file, numbers as numbers."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v if k in TEXTS else float(v) for k, v in row.items()} for row in rows]


def steps(path):
    return [int(row["step"]) for row in read(path)]
