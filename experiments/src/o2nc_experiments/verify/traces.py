"""Runs of the optimizers, written down step by step."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from o2nc import ExponentiatedO2NC, OriginalO2NC
from o2nc.problems import Oracle

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """A run of N calls of ``step``."""

    points: Array  # x_1, …, x_N, where the gradients were taken, N × d
    updates: Array  # Δ_1 = 0, …, Δ_N
    gradients: Array  # g_1, …, g_N as the learner saw them
    full: Array  # ∇F(x_1), …, ∇F(x_N)
    spreads: Array  # V_1, …, V_N as the optimizer keeps them


def trace(optimizer: ExponentiatedO2NC | OriginalO2NC, oracle: Oracle, steps: int, seed: int) -> Trace:
    """Run an optimizer whose one parameter is a point of the problem."""
    (x,) = optimizer.param_groups[0]["params"]
    generator = torch.Generator().manual_seed(seed)
    points, updates, gradients, full, spreads = [], [], [], [], []
    delta = torch.zeros_like(x)
    for _ in range(steps):
        points.append(x.detach().clone())
        updates.append(delta.clone())
        full.append(oracle.gradient(x.detach()))
        gradients.append(oracle.sample(x.detach(), generator) if oracle.noise else full[-1])
        x.grad = gradients[-1]
        optimizer.step()
        delta = optimizer.state[x]["delta"]
        spreads.append(optimizer.state[x]["spread"].item())
    x_t, delta_t, g_t, full_t = (torch.stack(rows).numpy() for rows in (points, updates, gradients, full))
    return Trace(x_t, delta_t, g_t, full_t, np.array(spreads))


def discounted(rows: Array, beta: float) -> Array:
    """Return Σ_{t<=n} β^{n−t} row_t for every n."""
    total, sums = np.zeros_like(rows[0]), []
    for row in rows:
        total = beta * total + row
        sums.append(total)
    return np.array(sums)
