"""What an objective promises, F, ∇F and the constants that the theory asks for, and what an oracle samples."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from o2nc import checks


class Problem(ABC):
    """An objective F: R^d → R with known constants.

    Every problem is a frozen dataclass and deterministic: whatever is random in it comes from its field ``seed``. One
    of your own inherits this class and has ``dimension`` d, ``lipschitz`` G >= ‖∇F‖, ``start`` and ``_value``; also a
    ``gap`` if inf F is not 0, and ``_gradient`` if there is a faster way than autograd.

    Example:
        >>> from o2nc.problems import Cosine
        >>> isinstance(Cosine(3), Problem)
        True
    """

    if TYPE_CHECKING:  # fields, class attributes or properties of the subclasses

        @property
        def dimension(self) -> int:
            """The dimension d."""

        @property
        def lipschitz(self) -> float:
            """G, an upper bound of ‖∇F‖."""

    def __post_init__(self) -> None:
        checks.known(**vars(self))

    @property
    def gap(self) -> float:
        """F*, an upper bound of F(start) − inf F: F(start) where inf F = 0."""
        return self.value(self.start()).item()

    @property
    def smoothness(self) -> float:
        """H, a Lipschitz constant of ∇F; ``math.inf`` where none is known."""
        return math.inf

    @property
    def second_order(self) -> float:
        """ρ, a Lipschitz constant of ∇²F (operator norm); ``math.inf`` where none is known."""
        return math.inf

    @abstractmethod
    def start(self) -> Tensor:
        """Return the point to start from, in float64 and of shape (d,)."""

    def value(self, x: Tensor) -> Tensor:
        """Return F over the last axis, (..., d) → (...), within autograd."""
        return self._value(self._checked(x))

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F over the last axis, (..., d) → (..., d), without autograd; at a kink, a limit or the middle."""
        x = self._checked(x).detach()
        return self._gradient(x).add_(x, alpha=0)  # keeps nan, which sign makes 0

    @abstractmethod
    def _value(self, x: Tensor) -> Tensor:
        """Return F over the last axis."""

    def _gradient(self, x: Tensor) -> Tensor:
        """Return ∇F over the last axis, a tensor of its own."""
        return differentiate(self._value, x)

    def _checked(self, x: Tensor) -> Tensor:
        if not x.dim() or x.shape[-1] != self.dimension:
            raise ValueError(f"x must have {self.dimension} numbers in its last axis, got the shape {tuple(x.shape)}")
        return x


def differentiate(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the gradient of a function of rows at each row of x, by autograd and outside of it."""
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        return torch.autograd.grad(function(at).sum(), at)[0]


class Oracle(ABC):
    """A stochastic gradient of ``problem``: E g = ∇F(x) and E‖g − ∇F(x)‖² <= σ², σ its ``noise``.

    Example:
        >>> from o2nc.problems import Cosine
        >>> isinstance(Additive(Cosine(4), noise=0.5), Oracle)
        True
    """

    kind: ClassVar[type] = Problem  # what the problem must be

    problem: Problem

    if TYPE_CHECKING:  # a field or a property of the subclasses

        @property
        def noise(self) -> float:
            """σ, an upper bound of √E‖g − ∇F(x)‖²."""

    def __post_init__(self) -> None:
        checks.known(**vars(self))
        if not isinstance(self.problem, self.kind):
            given = f"{self.problem!r} of type {type(self.problem).__name__}"
            raise TypeError(f"problem must be a {self.kind.__name__}, got {given}")

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F(x)."""
        return self.problem.gradient(x)

    @abstractmethod
    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""


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

    def sample(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return one g for every row of x, independently."""
        g = self.problem.gradient(x)
        if self.noise == 0:
            return g
        z = torch.randn(g.shape, generator=generator, dtype=g.dtype, device=g.device)
        return torch.add(g, z, alpha=self.noise / math.sqrt(self.problem.dimension))
