"""Runs of the optimizers, written down step by step: one by one, or many at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from o2nc import Exponential, ExponentiatedO2NC, Law, OriginalO2NC
from o2nc.learners import OGD
from o2nc.problems import Oracle

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Trace:
    """A run of N calls of ``step``, or many: then every array has one more axis, the runs', before the others."""

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


def traces(
    oracle: Oracle, learner: OGD, beta: float, steps: int, seeds: Sequence[int], law: Law = Exponential()
) -> Trace:
    """Run Algorithm 2 with this learner once for every seed of s, all runs at once; a test holds them to `trace`.

    The noise of all runs comes from one generator, seeded with the first.
    """
    x = oracle.problem.start().expand(len(seeds), -1).clone()
    delta, mean, spread = torch.zeros_like(x), x.clone(), x.new_zeros(len(seeds))
    generator, state, weight = torch.Generator().manual_seed(seeds[0]), learner.init(delta), 0.0
    points, updates, gradients, full, spreads = [], [], [], [], []
    for t in range(1, steps + 1):
        points.append(x.clone())
        updates.append(delta.clone())
        full.append(oracle.gradient(x))
        gradients.append(oracle.sample(x, generator) if oracle.noise else full[-1])
        weight = beta * weight + 1
        away = x - mean
        mean += away / weight
        spread = (1 - 1 / weight) * (spread + away.square().sum(1) / weight)
        spreads.append(spread)
        learner.update([delta], [gradients[-1]], [state], [learner.lr], beta)
        x += x.new_tensor([[law.sample(seed, t + 1)] for seed in seeds]) * delta
    return Trace(*(torch.stack(rows, dim=1).numpy() for rows in (points, updates, gradients, full, spreads)))


def discounted(rows: Array, beta: float) -> Array:
    """Return Σ_{t<=n} β^{n−t} row_t for every n; the steps are the last axis but one."""
    total, sums = np.zeros_like(rows[..., 0, :]), []
    for n in range(rows.shape[-2]):
        total = beta * total + rows[..., n, :]
        sums.append(total)
    return np.stack(sums, axis=-2)
