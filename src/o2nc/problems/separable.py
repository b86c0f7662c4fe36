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
    """F(x) = Σ_i f(x_i)/√d: what follows from f, its constants and the ends of the start."""

    ends: ClassVar[tuple[float, float]]  # between which the coordinates of the start are
    curvature: ClassVar[float] = math.inf  # H of f
    jerk: ClassVar[float] = math.inf  # ρ of f

    @property
    def smoothness(self) -> float:
        """H of f over √d."""
        return self.curvature / math.sqrt(self.dimension)

    @property
    def second_order(self) -> float:
        """ρ of f over √d."""
        return self.jerk / math.sqrt(self.dimension)

    def start(self) -> Tensor:
        """Return d evenly spaced numbers between the ends; the first end alone when d = 1."""
        return torch.linspace(*self.ends, self.dimension, dtype=torch.float64)

    @abstractmethod
    def f(self, x: Tensor) -> Tensor:
        """Return f of every number."""

    @abstractmethod
    def derivative(self, x: Tensor) -> Tensor:
        """Return f' of every number, in a new tensor; at a kink, a limit or the middle."""

    def _value(self, x: Tensor) -> Tensor:
        return self.f(x).sum(-1) / math.sqrt(self.dimension)

    def _gradient(self, x: Tensor) -> Tensor:
        return self.derivative(x).mul_(1 / math.sqrt(self.dimension))


@dataclass(frozen=True)
class DoubleWell(Separable):
    """f(x) = ||x| − 1| + k|x − 1|: two wells with kinks at ±1, of depths 0 and 2k, and a ridge with a kink between.

    The slopes are −1−k, 1−k, −1−k, 1+k on the four pieces between −1, 0 and 1: G = 1 + k, on most of the line.
    f >= 0 = f(1), and −1 is a local minimum since k < 1.

    Args:
        dimension: d >= 1.
        kink: k in (0, 1), by which the wells differ.

    Example:
        >>> problem = DoubleWell(3, kink=0.5)
        >>> problem.lipschitz
        1.5
        >>> problem.value(torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])) * 3**0.5
        tensor([0., 3.])
    """

    ends: ClassVar[tuple[float, float]] = (-2.0, 0.5)  # outside of the wrong well, to the ridge's far side
    dimension: int
    kink: float = 0.5

    @property
    def lipschitz(self) -> float:
        """G = 1 + k, attained."""
        return 1 + self.kink

    def f(self, x: Tensor) -> Tensor:
        """Return ||x| − 1| + k|x − 1|."""
        return (x.abs() - 1).abs() + self.kink * (x - 1).abs()

    def derivative(self, x: Tensor) -> Tensor:
        """Return f'; at a kink, the middle of its two limits."""
        return torch.sign(x.abs() - 1).mul_(torch.sign(x)).add_(torch.sign(x - 1), alpha=self.kink)


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

    def f(self, x: Tensor) -> Tensor:
        """Return Σ_j (J_j/2)|x − t_j| − 13/8."""
        jumps = x.new_tensor(self.slopes).diff()
        return ((x.unsqueeze(-1) - x.new_tensor(self.kinks)).abs() * jumps / 2).sum(-1) - 13 / 8

    def derivative(self, x: Tensor) -> Tensor:
        """Return f'; at a kink, the limit from the left."""
        return x.new_tensor(self.slopes)[torch.bucketize(x.contiguous(), x.new_tensor(self.kinks))]


@dataclass(frozen=True)
class Cosine(Separable):
    """f(x) = 1 − cos x: smooth, with G = H = ρ = 1 for f, each attained.

    F is (1/√d)-smooth with a (1/√d)-Lipschitz Hessian; every f has minima at the multiples of 2π.

    Args:
        dimension: d >= 1.

    Example:
        >>> problem = Cosine(4)
        >>> problem.lipschitz, problem.smoothness, problem.second_order
        (1.0, 0.5, 0.5)
    """

    ends: ClassVar[tuple[float, float]] = (2.0, 3.0)  # near the maxima at π
    lipschitz: ClassVar[float] = 1.0
    curvature: ClassVar[float] = 1.0  # |f''| = |cos x|
    jerk: ClassVar[float] = 1.0  # |f'''| = |sin x|
    dimension: int

    def f(self, x: Tensor) -> Tensor:
        """Return 1 − cos x."""
        return 1 - torch.cos(x)

    def derivative(self, x: Tensor) -> Tensor:
        """Return sin x."""
        return torch.sin(x)


@dataclass(frozen=True)
class Ripple(Separable):
    """f(x) = √(1 + x²) − 1 + ½(1 − cos 2x): a rippled bowl with many wells, Lipschitz and smooth to all orders.

        f' = x/√(1+x²) + sin 2x           |f'| < 1 + 1 = 2, approached as |x| → ∞,
        f'' = (1+x²)^(−3/2) + 2 cos 2x    f''(0) = 3 is the largest, and f'' > −2,
        f''' = −3x(1+x²)^(−5/2) − 4 sin 2x   |f'''| <= (3/2)(4/5)^(5/2) + 4 < 4.86, the first term being largest at ½.

    Args:
        dimension: d >= 1.

    Example:
        >>> problem = Ripple(1)
        >>> problem.value(torch.tensor([[0.0], [1.5], [2.7]]))  # a minimum, a maximum, a local minimum
        tensor([0.0000, 1.7978, 2.0619])
    """

    ends: ClassVar[tuple[float, float]] = (1.0, 4.0)  # across the first wells
    lipschitz: ClassVar[float] = 2.0
    curvature: ClassVar[float] = 3.0  # attained at 0
    jerk: ClassVar[float] = 4.86  # within 3 % of the truth
    dimension: int

    def f(self, x: Tensor) -> Tensor:
        """Return √(1 + x²) − 1 + sin² x, since ½(1 − cos 2x) = sin² x."""
        return torch.sqrt(1 + x * x) - 1 + torch.sin(x).square()

    def derivative(self, x: Tensor) -> Tensor:
        """Return x/√(1 + x²) + sin 2x."""
        return torch.sin(2 * x).add_(x * torch.rsqrt(1 + x * x))
