"""Stochastic gradients: an oracle returns g with E g = ∇F(x) and E‖g − ∇F(x)‖² <= σ²."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.problems.finite_sums import FiniteSum
from o2nc.problems.problem import Problem


class Oracle(ABC):
    """A stochastic gradient of ``problem`` with ``noise`` σ.

    Example:
        >>> from o2nc.problems import Cosine
        >>> isinstance(Additive(Cosine(4), noise=0.5), Oracle)
        True
    """

    if TYPE_CHECKING:  # fields or properties of the subclasses

        @property
        def problem(self) -> Problem:
            """The objective F."""

        @property
        def noise(self) -> float:
            """σ, an upper bound of √E‖g − ∇F(x)‖²."""

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        return self.problem.gradient(x)

    @abstractmethod
    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""

    def _check_problem(self, kind: type[Any]) -> None:
        if not isinstance(self.problem, kind):
            given = f"{self.problem!r} of type {type(self.problem).__name__}"
            raise TypeError(f"problem must be a {kind.__name__}, got {given}")


@dataclass(frozen=True)
class Additive(Oracle):
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
        self._check_problem(Problem)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        g = self.problem.gradient(x)
        if self.noise == 0:
            return g
        z = torch.randn(g.shape, generator=generator, dtype=g.dtype, device=g.device)
        return torch.add(g, z, alpha=self.noise / math.sqrt(self.problem.dimension))


@dataclass(frozen=True)
class Subsampled(Oracle):
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
        self._check_problem(FiniteSum)

    @property
    def noise(self) -> float:
        """σ = L/√batch."""
        return self.problem.term_lipschitz / math.sqrt(self.batch)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        shape = (*x.shape[:-1], self.batch)
        index = torch.randint(self.problem.terms, shape, generator=generator, device=x.device)
        return self.problem.term_gradient(x, index)
