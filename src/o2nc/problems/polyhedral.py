"""Piecewise linear problems that couple the coordinates: many kinks in general position, no curvature at all."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.problem import Problem


@dataclass(frozen=True)
class MaxAffine(Problem):
    """F(x) = |max_i (⟨a_i, x⟩ − b_i)| with random unit vectors a_i and b_i in (½, 3/2).

    Inside the polyhedron {max_i (⟨a_i, x⟩ − b_i) <= 0}, which contains the ball of radius ½, F is concave; outside it
    is convex. Every gradient is ±a_i, so G = 1, attained everywhere but at the kinks. F >= 0, and 0 is attained on
    the way from the origin, where max_i = −min_i b_i < 0, to any point with ⟨a_1, x⟩ > b_1: the gap is F(start).

    Args:
        dimension: d >= 1.
        pieces: the number of affine pieces, >= 1.
        seed: of a and b.

    Example:
        >>> problem = MaxAffine(dimension=5, pieces=20, seed=0)
        >>> round(problem.gradient(problem.start()).norm().item(), 9)
        1.0
    """

    dimension: int
    pieces: int
    seed: int = 0
    lipschitz: ClassVar[float] = 1.0

    @cached_property
    def _data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        a = torch.randn(self.pieces, self.dimension, generator=generator, dtype=torch.float64)
        b = torch.rand(self.pieces, generator=generator, dtype=torch.float64)
        return a / a.norm(dim=-1, keepdim=True), b + 0.5

    def start(self) -> Tensor:
        """Return 3a_1, outside of the polyhedron, where F >= 3/2."""
        return 3 * self._data[0][0]

    def _value(self, x: Tensor) -> Tensor:
        a, b = (t.to(x) for t in self._data)
        return (x @ a.T - b).amax(-1).abs()


@dataclass(frozen=True)
class ChebyshevRosenbrock(Problem):
    """F(x) = ¼|x_1 − 1| + Σ_{i<d} |x_{i+1} − 2|x_i| + 1|, Nesterov's non-smooth Chebyshev–Rosenbrock function.

    The only minimum is (1, …, 1) with F = 0, at the end of a kinked valley x_{i+1} = 2|x_i| − 1 that folds twice as
    often with every coordinate; there are 2^(d−1) − 1 other points in it where many algorithms halt. From the start
    (−1, 1, …, 1), in the valley, the gap is F(start) = ½. With σ_i = sign x_i and s_i the sign of the i-th term,

        ∇F = (¼ sign(x_1 − 1) − 2σ_1 s_1,  s_1 − 2σ_2 s_2,  …,  s_{d−2} − 2σ_{d−1}s_{d−1},  s_{d−1}),

    and where σ_i s_i = −s_{i−1} throughout (such points exist), ‖∇F‖² = G² = (9/4)² + 9(d − 2) + 1, the most.

    Args:
        dimension: d >= 2.

    Example:
        >>> problem = ChebyshevRosenbrock(3)
        >>> problem.gap, problem.value(torch.ones(3)).item()
        (0.5, 0.0)
    """

    dimension: int
    gap: ClassVar[float] = 0.5

    def __post_init__(self) -> None:
        checks.integer("dimension", self.dimension, 2)

    @property
    def lipschitz(self) -> float:
        """G = √((9/4)² + 9(d − 2) + 1), attained."""
        return math.sqrt((9 / 4) ** 2 + 9 * (self.dimension - 2) + 1)

    def start(self) -> Tensor:
        """Return (−1, 1, …, 1)."""
        x = torch.ones(self.dimension, dtype=torch.float64)
        x[0] = -1
        return x

    def _value(self, x: Tensor) -> Tensor:
        return (x[..., 0] - 1).abs() / 4 + (x[..., 1:] - 2 * x[..., :-1].abs() + 1).abs().sum(-1)
