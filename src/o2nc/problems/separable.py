"""Separable problems F(x) = Σ_i f(x_i)/√d, whose constants are those of one f: R → R, known exactly.

With |f'| <= G, |f''| <= H and |f'''| <= ρ, and since ∇F = (f'(x_i))/√d and ∇²F = diag(f''(x_i))/√d,

    ‖∇F‖ <= √(Σ G²/d) = G,   ‖∇²F‖ <= H/√d,   ‖∇²F(x) − ∇²F(y)‖ <= max_i ρ|x_i − y_i|/√d <= (ρ/√d)‖x − y‖,

all three with equality where every coordinate is at the extreme of f (for the last two: where one is). Each f here
is >= 0 and has the least value 0, so the gap is F(start), exactly. The coordinates start at different places,
evenly spaced; else the problem would be one-dimensional.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from o2nc.problems.problem import Problem


class Separable(Problem):
    """F(x) = Σ_i f(x_i)/√d: what follows from f and the ends of the start."""

    ends: ClassVar[tuple[float, float]]  # between which the coordinates of the start are

    def start(self) -> Tensor:
        """Return d evenly spaced numbers between the ends; the first end alone when d = 1."""
        return torch.linspace(*self.ends, self.dimension, dtype=torch.float64)

    @abstractmethod
    def _f(self, x: Tensor) -> Tensor:
        """Return f of every number."""

    @abstractmethod
    def _slope(self, x: Tensor) -> Tensor:
        """Return f' of every number, in a new tensor; at a kink, a limit or the middle."""

    def _value(self, x: Tensor) -> Tensor:
        return self._f(x).sum(-1) / math.sqrt(self.dimension)

    def _gradient(self, x: Tensor) -> Tensor:
        return self._slope(x).mul_(1 / math.sqrt(self.dimension))


@dataclass(frozen=True)
class DoubleWell(Separable):
    """f(x) = ||x| − 1| + ½|x − 1|: two wells with kinks at ±1, of depths 0 and 1, and a ridge with a kink between.

    The slopes are −3/2, ½, −3/2, 3/2 on the four pieces between −1, 0 and 1: G = 3/2, on most of the line.
    f >= 0 = f(1), and −1 is a local minimum.

    Args:
        dimension: d >= 1.

    Example:
        >>> problem = DoubleWell(3)
        >>> problem.value(torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])) * 3**0.5
        tensor([0., 3.])
    """

    ends: ClassVar[tuple[float, float]] = (-2.0, 0.5)  # outside of the wrong well, to the ridge's far side
    lipschitz: ClassVar[float] = 1.5
    dimension: int

    def _f(self, x: Tensor) -> Tensor:
        return (x.abs() - 1).abs() + 0.5 * (x - 1).abs()

    def _slope(self, x: Tensor) -> Tensor:  # at a kink, the middle of its two limits
        return torch.sign(x.abs() - 1).mul_(torch.sign(x)).add_(torch.sign(x - 1), alpha=0.5)


@dataclass(frozen=True)
class MultiKink(Separable):
    """f piecewise linear with slopes −1, ½, −¼, −¾, ¼, 1 between its kinks at −2, −1, 0, 1, 2, and f(1) = 0.

    In turn the kinks are a local minimum with f(−2) = ½, a maximum, a bend on the way down, the minimum, and a bend
    on the way up. G = 1, on both ends. As a sum of kinks, f(x) = Σ_j (J_j/2)|x − t_j| − 13/8 with the jumps of slope
    J = (3/2, −3/4, −1/2, 1, 3/4).

    Args:
        dimension: d >= 1.

    Example:
        >>> MultiKink(1).value(torch.tensor([[-2.0], [-1.0], [0.0], [1.0], [2.0]]))
        tensor([0.5000, 1.0000, 0.7500, 0.0000, 0.2500])
    """

    ends: ClassVar[tuple[float, float]] = (-3.0, 3.0)
    kinks: ClassVar[tuple[float, ...]] = (-2.0, -1.0, 0.0, 1.0, 2.0)
    slopes: ClassVar[tuple[float, ...]] = (-1.0, 0.5, -0.25, -0.75, 0.25, 1.0)
    lipschitz: ClassVar[float] = 1.0
    dimension: int

    def _f(self, x: Tensor) -> Tensor:
        jumps = x.new_tensor(self.slopes).diff()
        return ((x.unsqueeze(-1) - x.new_tensor(self.kinks)).abs() * jumps / 2).sum(-1) - 13 / 8

    def _slope(self, x: Tensor) -> Tensor:  # at a kink, the limit from the left
        return x.new_tensor(self.slopes)[torch.bucketize(x.contiguous(), x.new_tensor(self.kinks))]


@dataclass(frozen=True)
class Cosine(Separable):
    """f(x) = 1 − cos x: smooth, with G = H = ρ = 1 for f, each attained, and minima at the multiples of 2π.

    Args:
        dimension: d >= 1.

    Example:
        >>> problem = Cosine(4)
        >>> problem.lipschitz, problem.smoothness, problem.second_order
        (1.0, 0.5, 0.5)
    """

    ends: ClassVar[tuple[float, float]] = (2.0, 3.0)  # near the maxima at π
    lipschitz: ClassVar[float] = 1.0
    dimension: int

    @property
    def smoothness(self) -> float:
        """H = ρ = 1/√d, as |f''| = |cos x| and |f'''| = |sin x|."""
        return 1 / math.sqrt(self.dimension)

    second_order = smoothness

    def _f(self, x: Tensor) -> Tensor:
        return 1 - torch.cos(x)

    def _slope(self, x: Tensor) -> Tensor:
        return torch.sin(x)
