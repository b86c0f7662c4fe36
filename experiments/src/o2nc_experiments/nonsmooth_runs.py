"""Momentum and its relatives on small problems, many runs at once: what `nonsmooth` compares, and two problems.

Every row of a tensor is an arm with a learning rate and a seed of its own. A test compares rows with the library's
optimizers, run by run.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from o2nc import Law
from o2nc.problems import Oracle, Problem, Subsampled
from o2nc_experiments.runs import column

SHARE = 0.1  # the certificate is that of the last tenth of a run, every step weighing the same
NEAR = 0.1  # runs begin this far from the problem's start, in units of F*/G


@dataclass(frozen=True)
class Arm:
    """One way to train: m ← βm + g, Δ = −lr·φ_t·m, x ← x + sΔ."""

    law: Law | None = None  # of s
    nesterov: bool = False  # Δ = −lr·φ_t·(g + βm)
    decays: bool = True  # φ falls linearly to 0; else it is 1
    momentum: float = 0.9


# ---- two problems that o2nc.problems does not have; inf F = 0


@dataclass(frozen=True)
class Fitted(Problem):
    """F(x) = mean |predict(x) − predict(x*)|, Lipschitz on balls only: ``lipschitz`` is ‖∇F(start)‖, a size."""

    predict: Callable[[Tensor], Tensor]
    solution: Tensor
    origin: Tensor

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return len(self.origin)

    @cached_property
    def lipschitz(self) -> float:
        """‖∇F(start)‖."""
        return self.gradient(self.origin).norm().item()

    def start(self) -> Tensor:
        """Return a random point of the law of x*."""
        return self.origin.clone()

    def _value(self, x: Tensor) -> Tensor:
        return (self.predict(x) - self.predict(self.solution)).abs().mean(-1)


def factorisation(size: int, rank: int) -> Fitted:
    """Return F(U, V) = mean |UVᵀ − U*V*ᵀ| over the entries of n × n matrices of rank r."""
    drawn = torch.randn(2, 2 * size * rank, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def product(x: Tensor) -> Tensor:
        u, v = x.unflatten(-1, (2, size, rank)).unbind(-3)
        return (u @ v.mT).flatten(-2)

    return Fitted(product, *(drawn / rank**0.25))


def deconvolution(size: int, samples: int) -> Fitted:
    """Return F(u, v) = mean |⟨a_i, u⟩⟨b_i, v⟩ − ⟨a_i, u*⟩⟨b_i, v*⟩|, normal a_i and b_i, unit vectors u*, v*."""
    drawn = torch.randn(samples + 2, 2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b = drawn[:-2].unbind(1)
    units = drawn[-2:] / drawn[-2:].norm(dim=-1, keepdim=True)
    return Fitted(lambda x: (x[..., :size] @ a.T) * (x[..., size:] @ b.T), *units.flatten(1))


# ---- the runs


class Row(NamedTuple):
    """One run; rows of one seed see the same noise and begin at the same point."""

    arm: Arm
    lr: float
    seed: int


class Outcome(NamedTuple):
    """What came of the rows, one number for each."""

    value: Tensor  # F at the end
    gradient: Tensor  # ‖mean of ∇F(x_t)‖ over the last tenth
    spread: Tensor  # mean of ‖x_t − their mean‖² over it


@lru_cache(maxsize=512)
def _scalars(law: Any, seed: int, steps: int) -> Tensor:
    drawn = [1.0 if law is None else law.sample(seed, t + 1) for t in range(1, steps + 1)]
    return torch.tensor(drawn, dtype=torch.float64)


def _noise(oracle: Oracle, seeds: Sequence[int]) -> Iterator[Tensor]:
    """Yield what is random in the gradients of every seed, step by step: the indices of a batch, or an error."""
    generators = [torch.Generator().manual_seed(seed * 100 + 14) for seed in seeds]
    d = oracle.problem.dimension
    while True:
        if isinstance(oracle, Subsampled):
            parts = [torch.randint(oracle.problem.samples, (500, oracle.batch), generator=g) for g in generators]
        else:
            drawn = [torch.randn(500, d, generator=g, dtype=torch.float64) for g in generators]
            parts = [oracle.noise / math.sqrt(d) * part for part in drawn]
        yield from torch.stack(parts, dim=1)


def run(
    oracle: Oracle,
    rows: Sequence[Row],
    steps: int,
    *,
    near: float = NEAR,
    primed: bool = False,
) -> Outcome:
    """Run all rows; with ``primed`` the momentum buffer begins with the first gradient, and not with 0.

    Example:
        >>> from o2nc import problems
        >>> well = problems.Additive(problems.DoubleWell(2), noise=0.1)
        >>> found = run(well, [Row(Arm(), lr, seed) for lr in (0.01, 0.02) for seed in (0, 1)], 200)
        >>> found.value.shape, bool((found.value < 1.5).all())
        (torch.Size([4]), True)
    """
    problem, arms, seeds = oracle.problem, [row.arm for row in rows], list(dict.fromkeys(row.seed for row in rows))
    at = torch.tensor([seeds.index(row.seed) for row in rows])
    lr, beta = column([row.lr for row in rows]), column([arm.momentum for arm in arms])
    nesterov, decays = column([arm.nesterov for arm in arms]) > 0, column([arm.decays for arm in arms])
    laws: list[Any] = [arm.law for arm in arms]
    s = torch.stack([_scalars(law, row.seed, steps) for law, row in zip(laws, rows, strict=True)], dim=1)
    scale = near * problem.gap / problem.lipschitz / math.sqrt(problem.dimension)
    drawn = [
        torch.randn(problem.dimension, generator=torch.Generator().manual_seed(seed * 100 + 13), dtype=torch.float64)
        for seed in seeds
    ]
    x = (problem.start() + scale * torch.stack(drawn))[at]
    m, late, noise = torch.zeros_like(x), [], _noise(oracle, seeds)
    for t in range(1, steps + 1):
        full = problem.gradient(x)
        if isinstance(oracle, Subsampled):
            g = oracle.problem.term_gradient(x, next(noise)[at])
        else:
            g = full + next(noise)[at] if oracle.noise else full
        if t > (1 - SHARE) * steps:
            late.append((x, full))
        m = beta * (g / (1 - beta) if primed and t == 1 else m) + g
        d = torch.where(nesterov, torch.addcmul(g, m, beta), m)
        x = torch.addcmul(x, -lr * ((steps - decays * (t - 1)) / steps) * d, s[t - 1].unsqueeze(1))
    points, gradients = (torch.stack(part) for part in zip(*late, strict=True))
    spread = (points - points.mean(0)).square().sum(-1).mean(0)
    return Outcome(problem.value(x), gradients.mean(0).norm(dim=1), spread)
