"""Non-smooth regression, F = (1/m) Σ_i f_i, with a gradient oracle that subsamples the terms.

Both problems are fitted to data that some x* explains exactly, so inf F = 0 and the gap is F(start). Neither is
Lipschitz as it is usually written; what is done about it is said in each. In both, with A the m × n matrix of the
data's rows a_i, a gradient is a weighted sum (1/m) Σ_i w_i a_i, and

    ‖(1/m) Aᵀw‖ <= ‖A‖‖w‖/m <= max_i |w_i| ‖A‖/√m        (operator norm),        (1)
    (1/m) Σ_i w_i²‖a_i‖² <= max_i w_i² ‖A‖_F²/m           (Frobenius norm).        (2)
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from o2nc.problems.problem import Oracle, Problem, differentiate


class Data(NamedTuple):
    """What a problem is fitted to: rows a_i and targets, x* that explains them, and where to start."""

    rows: Tensor
    targets: Tensor
    solution: Tensor
    start: Tensor


class FiniteSum(Problem):
    """F = (1/m) Σ_i |prediction_i(x) − target_i|, whose terms a gradient oracle may subsample."""

    largest_weight: ClassVar[float]  # the greatest |w_i| in (1) and (2)
    samples: int
    seed: int

    @cached_property
    def lipschitz(self) -> float:
        """G = max|w_i|·‖A‖/√m, by (1)."""
        return self.largest_weight * torch.linalg.matrix_norm(self._data.rows, 2).item() / math.sqrt(self.samples)

    @cached_property
    def term_lipschitz(self) -> float:
        """max|w_i|·‖A‖_F/√m, by (2): a bound of √((1/m) Σ_i ‖∇f_i(x)‖²), wherever ``lipschitz`` holds."""
        return self.largest_weight * torch.linalg.matrix_norm(self._data.rows).item() / math.sqrt(self.samples)

    @property
    def solution(self) -> Tensor:
        """x*, one of the minima."""
        return self._data.solution.clone()

    def start(self) -> Tensor:
        """Return a random point of the norm of x*."""
        return self._data.start.clone()

    def term_gradient(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the mean of ∇f_i(x) over i in ``index``, of shape x.shape[:-1] + (batch,); outside of autograd."""
        return differentiate(lambda at: self._error(at, index), x)

    def _value(self, x: Tensor) -> Tensor:
        return self._error(x, slice(None))

    def _error(self, x: Tensor, index: Tensor | slice) -> Tensor:
        a, b = (t.to(x)[index] for t in self._data[:2])
        return (self._predict(x, a) - b).abs().mean(-1)

    @cached_property
    def _data(self) -> Data:
        a, solution, start = self._draw(torch.Generator().manual_seed(self.seed))
        return Data(a, self._predict(solution, a), solution, start)

    @abstractmethod
    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return random rows, x* and the start."""

    @abstractmethod
    def _predict(self, x: Tensor, a: Tensor) -> Tensor:
        """Return the predictions for the rows a, of shape (m, n) or (..., m, n)."""


@dataclass(frozen=True)
class PhaseRetrieval(FiniteSum):
    """Robust phase retrieval F(x) = (1/m) Σ_i |h(⟨a_i, x⟩) − h(⟨a_i, x*⟩)|, where h(u) = u² for |u| <= K = 2.

    With h(u) = u² everywhere F would not be Lipschitz. Beyond K, h goes on in a straight line, h(u) = 2K|u| − K²,
    which leaves F as it was where it matters and makes it Lipschitz on all of R^d: |h'| <= 2K, so by (1)
    G = 2K‖A‖/√m. Far out in direction u, ‖∇F‖ >= 2K(1/m)Σ_i|⟨a_i, u⟩|, about 4/5 of 2K as the a_i are normal: for
    m much larger than d, G is no more than a quarter above the truth. inf F = 0 = F(±x*).

    Args:
        dimension: d >= 1.
        samples: m >= 1.
        seed: of a_i, x* and the start; a_i is standard normal, x* and the start are random unit vectors.

    Example:
        >>> problem = PhaseRetrieval(dimension=5, samples=50)
        >>> bool(problem.value(torch.stack([problem.solution, -problem.solution])).max() < 1e-15)
        True
    """

    cap: ClassVar[float] = 2.0  # K; typical |⟨a_i, x*⟩| are of order 1
    largest_weight: ClassVar[float] = 2 * cap
    dimension: int
    samples: int
    seed: int = 0

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        draws = torch.randn(self.samples + 2, self.dimension, generator=generator, dtype=torch.float64)
        solution, start = draws[-2:] / draws[-2:].norm(dim=-1, keepdim=True)
        return draws[:-2], solution, start

    def _predict(self, x: Tensor, a: Tensor) -> Tensor:
        size = (a @ x.unsqueeze(-1)).squeeze(-1).abs()
        short = size.clamp(max=self.cap)
        return short * (2 * size - short)


@dataclass(frozen=True)
class ReluRegression(FiniteSum):
    """F(x) = (1/m) Σ_i |Σ_j v_j max(⟨w_j, a_i⟩, 0) − y_i|, x = (w_1, …, w_h, v): a two-layer network, absolute loss.

    A product of weights is not Lipschitz on all of R^d: G and the oracle's σ hold on the ball ‖x‖ <= R = 5, outside
    of which both grow as ‖x‖/R. By (1), applied to every hidden unit (the signs s_i of the residuals and the
    0s and 1s of the units are weights <= 1),

        ‖∇_{v_j}F‖ <= ‖w_j‖‖A‖/√m,   ‖∇_{w_j}F‖ <= |v_j|‖A‖/√m,   hence   G = R‖A‖/√m,

    about twice the truth, as a unit sees half of the data. A single term has ‖∇f_i‖ <= ‖x‖‖a_i‖ in the same
    way, so (2) gives R‖A‖_F/√m. The y_i are those of a network x* with ‖x*‖ = √8: inf F = 0.

    Args:
        inputs: n >= 1, the length of a_i.
        hidden: h >= 1, the number of hidden units; d = h(n + 1).
        samples: m >= 1.
        seed: of a_i (standard normal), x* and the start, which has the norm of x*.

    Example:
        >>> problem = ReluRegression(inputs=3, hidden=4, samples=30)
        >>> problem.dimension
        16
        >>> problem.value(problem.solution).item()
        0.0
    """

    radius: ClassVar[float] = 5.0  # R; the start and x* are well inside
    largest_weight: ClassVar[float] = radius
    inputs: int
    hidden: int
    samples: int
    seed: int = 0

    @property
    def dimension(self) -> int:
        """The dimension d = h(n + 1)."""
        return self.hidden * (self.inputs + 1)

    def _draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.randn(self.samples, self.inputs, generator=generator, dtype=torch.float64)
        return a, self._network(generator), self._network(generator)

    def _network(self, generator: torch.Generator) -> Tensor:
        """Return random weights: ‖w_j‖ = |v_j| = 2/√h, together of norm √8."""
        w = torch.randn(self.hidden, self.inputs, generator=generator, dtype=torch.float64)
        v = torch.randn(self.hidden, generator=generator, dtype=torch.float64).sign()
        w = w / w.norm(dim=-1, keepdim=True)
        return torch.cat([w.flatten(), v]) * (2 / math.sqrt(self.hidden))

    def _predict(self, x: Tensor, a: Tensor) -> Tensor:
        w, v = x.split([self.hidden * self.inputs, self.hidden], dim=-1)
        unit = (a @ w.unflatten(-1, (self.hidden, self.inputs)).mT).relu()
        return (unit @ v.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Subsampled(Oracle):
    """The mean of ∇f_i(x) over a few terms i of F = (1/m) Σ_i f_i, drawn independently with replacement.

    A single ∇f_i(x) has variance (1/m) Σ_i ‖∇f_i(x)‖² − ‖∇F(x)‖² <= L², L = ``problem.term_lipschitz``, and the
    mean of ``batch`` independent ones a ``batch``-th of it: σ = L/√batch.

    Args:
        problem: a `PhaseRetrieval` or a `ReluRegression`.
        batch: the number of terms per gradient, >= 1.

    Example:
        >>> from o2nc.problems import PhaseRetrieval
        >>> oracle = Subsampled(PhaseRetrieval(dimension=5, samples=50), batch=2)
        >>> oracle.sample(torch.zeros(256, 5), torch.Generator().manual_seed(0)).shape
        torch.Size([256, 5])
    """

    kind: ClassVar[type] = FiniteSum
    problem: FiniteSum
    batch: int

    @property
    def noise(self) -> float:
        """σ = L/√batch."""
        return self.problem.term_lipschitz / math.sqrt(self.batch)

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        shape = (*x.shape[:-1], self.batch)
        index = torch.randint(self.problem.samples, shape, generator=generator, device=x.device)
        return self.problem.term_gradient(x, index)
