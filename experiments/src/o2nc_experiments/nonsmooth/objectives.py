"""What is minimised: o2nc's non-smooth problems in stated sizes, and two classical ones; inf F = 0 in all of them."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from o2nc import problems
from o2nc.problems import Additive, Oracle, Subsampled


class Product(ABC):
    """F(x) = mean |u-part · v-part − target|, x = (u, v): products of unknowns that some x* explains exactly.

    Such an F is Lipschitz on balls only; ``lipschitz`` is ‖∇F(start)‖, a measure of size and no bound.
    """

    smoothness: ClassVar[float] = math.inf
    second_order: ClassVar[float] = math.inf

    @cached_property
    @abstractmethod
    def _ends(self) -> tuple[Tensor, Tensor]:
        """x* and the start."""

    @abstractmethod
    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two factors."""

    @abstractmethod
    def _multiply(self, parts: tuple[Tensor, Tensor]) -> Tensor:
        """Return the products, one per target, in the last axis."""

    @cached_property
    def _targets(self) -> Tensor:
        return self._multiply(self._parts(self._ends[0]))

    @property
    def solution(self) -> Tensor:
        """x*, one of the minima."""
        return self._ends[0].clone()

    @cached_property
    def gap(self) -> float:
        """F(start), since inf F = 0."""
        return self.value(self.start()).item()

    @cached_property
    def lipschitz(self) -> float:
        """‖∇F(start)‖."""
        return self.gradient(self.start()).norm().item()

    def start(self) -> Tensor:
        """Return a random point of the law of x*."""
        return self._ends[1].clone()

    def value(self, x: Tensor) -> Tensor:
        """Return F of the last axis."""
        return (self._multiply(self._parts(x)) - self._targets).abs().mean(-1)

    @abstractmethod
    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F; at a kink, the middle of its limits."""


@dataclass(frozen=True)
class Factorisation(Product):
    """F(U, V) = mean |UVᵀ − U*V*ᵀ| over the entries of n × n matrices of rank r.

    Args:
        size: n >= 1.
        rank: r >= 1; d = 2nr.
        seed: of the factors, normal of variance 1/√r, so that the entries of the product have variance 1.

    Example:
        >>> problem = Factorisation(size=6, rank=2)
        >>> problem.dimension, problem.value(problem.solution).item()
        (24, 0.0)
    """

    size: int
    rank: int
    seed: int = 0

    @property
    def dimension(self) -> int:
        """The dimension d = 2nr."""
        return 2 * self.size * self.rank

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(2, self.dimension, generator=generator, dtype=torch.float64) / self.rank**0.25
        return drawn[0], drawn[1]

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, v = x.unflatten(-1, (2, self.size, self.rank)).unbind(-3)
        return u, v

    def _multiply(self, parts: tuple[Tensor, Tensor]) -> Tensor:
        return (parts[0] @ parts[1].mT).flatten(-2)

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F; at a kink, the middle of its limits."""
        u, v = parts = self._parts(x.detach())
        signs = (self._multiply(parts) - self._targets).sign().unflatten(-1, (self.size, self.size)) / self.size**2
        return torch.stack([signs @ v, signs.mT @ u], dim=-3).flatten(-3)


@dataclass(frozen=True)
class BlindDeconvolution(Product):
    """F(u, v) = (1/m) Σ_i |⟨a_i, u⟩⟨b_i, v⟩ − ⟨a_i, u*⟩⟨b_i, v*⟩|.

    Args:
        size: n >= 1, the length of u and of v; d = 2n.
        samples: m >= 1.
        seed: of a_i and b_i (standard normal), and of the unit vectors u*, v* and those of the start.

    Example:
        >>> problem = BlindDeconvolution(size=5, samples=40)
        >>> problem.dimension, problem.value(problem.solution).item()
        (10, 0.0)
    """

    size: int
    samples: int
    seed: int = 0

    @property
    def dimension(self) -> int:
        """The dimension d = 2n."""
        return 2 * self.size

    @cached_property
    def _drawn(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn(self.samples + 2, 2, self.size, generator=generator, dtype=torch.float64)

    @cached_property
    def _ends(self) -> tuple[Tensor, Tensor]:
        units = self._drawn[-2:] / self._drawn[-2:].norm(dim=-1, keepdim=True)
        return units[0].flatten(), units[1].flatten()

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self._drawn[:-2].unbind(1)
        u, v = x.split(self.size, dim=-1)
        return u @ a.T, v @ b.T

    def _multiply(self, parts: tuple[Tensor, Tensor]) -> Tensor:
        return parts[0] * parts[1]

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F; at a kink, the middle of its limits."""
        a, b = self._drawn[:-2].unbind(1)
        p, q = parts = self._parts(x.detach())
        signs = (self._multiply(parts) - self._targets).sign() / self.samples
        return torch.cat([(signs * q) @ a, (signs * p) @ b], dim=-1)


OBJECTIVES: dict[str, Oracle] = {
    "double well, d = 10": Additive(problems.DoubleWell(10), noise=0.0),
    "double well, d = 50, noise": Additive(problems.DoubleWell(50), noise=1.0),
    "kinks, d = 10, noise": Additive(problems.MultiKink(10), noise=1.0),
    "max-affine, d = 20": Additive(problems.MaxAffine(20, pieces=100), noise=0.0),
    "max-affine, d = 40, noise": Additive(problems.MaxAffine(40, pieces=100, seed=1), noise=0.5),
    "Chebyshev–Rosenbrock, d = 4": Additive(problems.ChebyshevRosenbrock(4), noise=0.0),
    "Chebyshev–Rosenbrock, d = 3, noise": Additive(problems.ChebyshevRosenbrock(3), noise=1.0),
    "phase retrieval, d = 10": Additive(problems.PhaseRetrieval(10, samples=60), noise=0.0),
    "phase retrieval, d = 30, batches": Subsampled(problems.PhaseRetrieval(30, samples=300, seed=1), batch=8),
    "ReLU net, d = 16": Additive(problems.ReluRegression(3, hidden=4, samples=40), noise=0.0),
    "ReLU net, d = 24, noise": Additive(problems.ReluRegression(5, hidden=4, samples=50, seed=1), noise=0.5),
    "ℓ1 factorisation, d = 40, noise": Additive(Factorisation(10, rank=2), noise=0.1),
    "blind deconvolution, d = 20": Additive(BlindDeconvolution(10, samples=80), noise=0.0),
}
