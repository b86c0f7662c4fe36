"""What an objective of this package promises: F, ∇F and the constants that the theory asks for."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

T = TypeVar("T")


@runtime_checkable
class Problem(Protocol):
    """An objective F: R^d → R with known constants.

    Every problem is a frozen dataclass and deterministic: whatever is random in it comes from its field ``seed``.

    Example:
        >>> from o2nc.problems import Cosine
        >>> isinstance(Cosine(3), Problem)
        True
    """

    @property
    def dimension(self) -> int:
        """The dimension d."""
        ...

    @property
    def lipschitz(self) -> float:
        """G, an upper bound of ‖∇F‖."""
        ...

    @property
    def gap(self) -> float:
        """F*, an upper bound of F(start) − inf F."""
        ...

    @property
    def smoothness(self) -> float:
        """H, a Lipschitz constant of ∇F; ``math.inf`` where none is known."""
        ...

    @property
    def second_order(self) -> float:
        """ρ, a Lipschitz constant of ∇²F (operator norm); ``math.inf`` where none is known."""
        ...

    def start(self) -> Tensor:
        """Return the point to start from, in float64 and of shape (d,)."""
        ...

    def value(self, x: Tensor) -> Tensor:
        """Return F over the last axis, (..., d) → (...), within autograd."""
        ...

    def gradient(self, x: Tensor) -> Tensor:
        """Return ∇F over the last axis, (..., d) → (..., d), without autograd; at a kink, a limit or the middle."""
        ...


def sized(cls: type[T]) -> type[T]:
    """Make ``value`` and ``gradient`` of a problem refuse points of another dimension."""
    for name in ("value", "gradient"):
        setattr(cls, name, _checked(getattr(cls, name)))
    return cls


def _checked(method: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    @wraps(method)
    def checked(self: Any, x: Tensor) -> Tensor:
        if not x.dim() or x.shape[-1] != self.dimension:
            raise ValueError(f"x must have {self.dimension} numbers in its last axis, got the shape {tuple(x.shape)}")
        return method(self, x)

    return checked


@runtime_checkable
class FiniteSum(Problem, Protocol):
    """A problem F = (1/m) Σ_i f_i that a gradient oracle may subsample.

    Example:
        >>> from o2nc.problems import Cosine, PhaseRetrieval
        >>> isinstance(PhaseRetrieval(dimension=5, samples=50), FiniteSum), isinstance(Cosine(3), FiniteSum)
        (True, False)
    """

    @property
    def terms(self) -> int:
        """The number m of terms."""
        ...

    @property
    def term_lipschitz(self) -> float:
        """An upper bound of √((1/m) Σ_i ‖∇f_i(x)‖²), wherever ``lipschitz`` holds."""
        ...

    def term_gradient(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the mean of ∇f_i(x) over i in ``index``, of shape x.shape[:-1] + (batch,); outside of autograd."""
        ...
