"""Stochastic gradients: an oracle returns g with E g = ∇F(x) and E‖g − ∇F(x)‖² <= σ²."""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.problem import FiniteSum, Problem


@runtime_checkable
class Oracle(Protocol):
    """A stochastic gradient of a problem.

    Example:
        >>> from o2nc.problems import Cosine
        >>> isinstance(Additive(Cosine(4), noise=0.5), Oracle)
        True
    """

    @property
    def problem(self) -> Problem:
        """The objective F."""
        ...

    @property
    def noise(self) -> float:
        """σ, an upper bound of √E‖g − ∇F(x)‖²."""
        ...

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        ...

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        ...


@dataclass(frozen=True)
class Additive:
    """g = ∇F(x) + σz/√d with z standard normal in R^d, so that E‖g − ∇F(x)‖² = σ² exactly.

    Args:
        problem: the objective F.
        noise: σ >= 0; with 0 the gradient itself is returned and nothing is drawn.

    Example:
        >>> from o2nc.problems import Cosine
        >>> oracle = Additive(Cosine(4), noise=0.5)
        >>> x = torch.zeros(10000, 4, dtype=torch.float64)
        >>> error = oracle.sample(x, torch.Generator().manual_seed(0)) - oracle.gradient(x)
        >>> f"{error.square().sum(-1).mean().sqrt().item():.2f}"
        '0.50'
    """

    problem: Problem
    noise: float

    def __post_init__(self) -> None:
        checks.non_negative("noise", self.noise)
        _refuse_unless(Problem, "problem", self.problem)

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        return self.problem.gradient(x)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        g = self.problem.gradient(x)
        if self.noise == 0:
            return g
        z = torch.randn(g.shape, generator=generator, dtype=g.dtype, device=g.device)
        return torch.add(g, z, alpha=self.noise / math.sqrt(self.problem.dimension))


@dataclass(frozen=True)
class Subsampled:
    """The mean of ∇f_i(x) over a few terms i of F = (1/m) Σ_i f_i, drawn independently with replacement.

    A single ∇f_i(x) has variance (1/m) Σ_i ‖∇f_i(x)‖² − ‖∇F(x)‖² <= L², L = ``problem.term_lipschitz``, and the
    mean of ``batch`` independent ones a ``batch``-th of it: σ = L/√batch.

    Args:
        problem: a finite sum F.
        batch: the number of terms per gradient, >= 1.

    Example:
        >>> from o2nc.problems import PhaseRetrieval
        >>> oracle = Subsampled(PhaseRetrieval(dimension=5, samples=50), batch=2)
        >>> oracle.sample(torch.zeros(256, 5), torch.Generator().manual_seed(0)).shape
        torch.Size([256, 5])
    """

    problem: FiniteSum
    batch: int

    def __post_init__(self) -> None:
        checks.integer("batch", self.batch, 1)
        _refuse_unless(FiniteSum, "problem", self.problem)

    @property
    def noise(self) -> float:
        """σ = L/√batch."""
        return self.problem.term_lipschitz / math.sqrt(self.batch)

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        return self.problem.gradient(x)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        shape = (*x.shape[:-1], self.batch)
        index = torch.randint(self.problem.terms, shape, generator=generator, device=x.device)
        return self.problem.term_gradient(x, index)


def _refuse_unless(kind: type, name: str, problem: object) -> None:
    if not isinstance(problem, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {problem!r} of type {type(problem).__name__}")
