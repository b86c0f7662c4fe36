"""The stationarity certificate: an upper bound on ‖∇F(x̄)‖_c that comes with the weights.

Definition: ‖∇F(x)‖_c = inf ‖E ∇F(y)‖ + c·E‖y − x‖² over random y with E y = x. Any weights p on the
iterates give such a y, so with x̄ = Σ p_t x_t, ḡ = Σ p_t ∇F(x_t), V = Σ p_t‖x_t − x̄‖²,

    ‖∇F(x̄)‖_c <= ‖ḡ‖ + c V.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Certificate:
    """‖ḡ‖ + c·V at the averaged point x̄.

    With full gradients ``value`` bounds ‖∇F(x̄)‖_c. With stochastic ones ‖ḡ‖ carries their noise, whose mean
    square is at most σ²/ess.

    Attributes:
        c: the price of spread.
        gradient: ‖ḡ‖, the norm of the averaged gradient.
        spread: V, the weighted mean squared distance of the iterates to x̄.
        ess: the effective number of iterates in the average, 1/Σp².
        by_parameter: the same for every parameter alone, by name (or index).

    Example:
        >>> certificate = Certificate(c=2.0, gradient=0.5, spread=0.1, ess=10.0)
        >>> certificate.value
        0.7
        >>> print(certificate)
        ‖ḡ‖ + c·V = 0.5 + 2·0.1 = 0.7 over 10 iterates
    """

    c: float
    gradient: float
    spread: float
    ess: float
    by_parameter: Mapping[str | int, "Certificate"] = field(default_factory=dict, repr=False)

    @property
    def value(self) -> float:
        """‖ḡ‖ + c·V."""
        return self.gradient + self.c * self.spread

    def __str__(self) -> str:
        terms = f"{self.gradient:.4g} + {self.c:.4g}·{self.spread:.4g}"
        return f"‖ḡ‖ + c·V = {terms} = {self.value:.4g} over {self.ess:.4g} iterates"
