"""What an objective of this package promises: F, ∇F and the constants that the theory asks for."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor


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
