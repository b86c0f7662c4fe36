"""The stationarity certificate: an upper bound on ‖∇F(x̄)‖_c that comes with the weights.

Definition: ‖∇F(x)‖_c = inf ‖E ∇F(y)‖ + c·E‖y − x‖² over random y with E y = x. Any weights p on the
iterates give such a y, so with x̄ = Σ p_t x_t, ḡ = Σ p_t ∇F(x_t), V = Σ p_t‖x_t − x̄‖²,

    ‖∇F(x̄)‖_c <= ‖ḡ‖ + c V.

For smooth F it bounds ‖∇F(x̄)‖ itself (`Certificate.gradient_norm`); for Lipschitz F it leads to a Goldstein
stationary point nearby (`Certificate.goldstein`).
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from o2nc import checks
from o2nc.certificates.trajectory import Point, Trajectory
from o2nc.text import printable

CONSTANTS = ("sharp", "paper", "measured")


@dataclass(frozen=True)
class Goldstein:
    """A (radius, epsilon)-Goldstein stationary point x'.

    That is ‖E ∇F(ŷ)‖ <= epsilon for a random ŷ with E ŷ = x' and ‖ŷ − x'‖ <= radius.

    Attributes:
        point: x', or None when the iterates are not known.
        radius: how far ŷ may be from x'.
        epsilon: the bound on the mean gradient.
        distance: a bound on ‖x̄ − x'‖.

    Example:
        >>> found = Certificate(c=8.0, gradient=0.1, spread=0.01, ess=50.0).goldstein(0.5, lipschitz=1.0)
        >>> found.epsilon, found.radius, found.point
        (0.18, 0.505, None)
    """

    point: Point | None = field(repr=False, compare=False)
    radius: float
    epsilon: float
    distance: float


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
        weights: p, float64; None where they were never listed (a certificate of an optimizer).
        point: x̄, shaped like an iterate; None in the same case.
        gap: no weights reach less than ``value − gap``, their spread taken around ``point``; None if they were not
            optimised.

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
    by_parameter: Mapping[str | int, "Certificate"] = field(default_factory=dict, repr=False, hash=False)
    weights: Tensor | None = field(default=None, repr=False, compare=False, kw_only=True)
    point: Point | None = field(default=None, repr=False, compare=False, kw_only=True)
    gap: float | None = field(default=None, kw_only=True)
    _trajectory: Trajectory | None = field(default=None, repr=False, compare=False, kw_only=True)

    @property
    def value(self) -> float:
        """‖ḡ‖ + c·V; above 0 if V is, even where float64 has no room for c·V."""
        return self.gradient + max(self.c * self.spread, 5e-324 if self.spread > 0 else 0.0)

    def __str__(self) -> str:
        terms = f"{self.gradient:.4g} + {self.c:.4g}·{self.spread:.4g}"
        return printable(f"‖ḡ‖ + c·V = {terms} = {self.value:.4g} over {self.ess:.4g} iterates")

    def gradient_norm(
        self, *, smoothness: float | None = None, second_order: float | None = None, constants: str = "sharp"
    ) -> float:
        """Return a bound on ‖∇F(x̄)‖ for smooth F (Lemma *criterion reduction*).

        With ε = ``value``, from ‖∇F(x̄)‖ <= ‖ḡ‖ + ‖E[∇F(x̄) − ∇F(y)]‖:

        ==========  =================================  ==================================================
        constants   ∇F is H-Lipschitz                  ∇²F is ρ-Lipschitz (E[y − x̄] = 0 removes ∇²F)
        ==========  =================================  ==================================================
        measured    ‖ḡ‖ + H√V                          ‖ḡ‖ + (ρ/2)V
        sharp       ε + H²/(4c); H√(ε/c) if 4cε < H²   max(1, ρ/(2c))·ε
        paper       ε + H√(ε/c); 2ε at c = H²/ε        ε + (ρ/2)ε/c; 2ε at c = ρ/2
        ==========  =================================  ==================================================

        Measured is never above sharp: ‖ḡ‖ + H√V = ε − cV + H√V is largest at √V = H/(2c), or at V = ε/c where that
        is less; and ‖ḡ‖ + (ρ/2)V <= max(1, ρ/(2c))(‖ḡ‖ + cV) term by term. So sharp is, for smooth F, the best that
        ε and c alone can give.

        Args:
            smoothness: H, a Lipschitz constant of ∇F, >= 0.
            second_order: ρ, a Lipschitz constant of ∇²F, >= 0. Exactly one of the two.
            constants: "sharp", "paper" or "measured".

        Returns:
            The bound.

        Warns:
            UserWarning: where c is so small that 4cε < H²; the message says which c balances the two.

        Example:
            >>> certificate = Certificate(c=2.0, gradient=0.5, spread=0.25, ess=10.0)
            >>> certificate.gradient_norm(second_order=4.0)
            1.0
            >>> certificate.gradient_norm(smoothness=1.0, constants="measured")
            1.0
        """
        checks.choice("constants", constants, CONSTANTS)
        if (smoothness is None) == (second_order is None):
            raise TypeError(
                f"give exactly one of smoothness and second_order, got {smoothness!r} and {second_order!r}"
            )
        eps, c = self.value, self.c
        if second_order is not None:
            checks.non_negative("second_order", second_order)
            if constants == "measured":
                return self.gradient + second_order / 2 * self.spread
            return (
                eps + second_order / 2 * eps / c if constants == "paper" else max(1.0, second_order / (2 * c)) * eps
            )
        assert smoothness is not None
        checks.non_negative("smoothness", smoothness)
        if constants == "measured":
            return self.gradient + smoothness * self.spread**0.5
        if smoothness**2 > 4 * c * eps > 0:
            warnings.warn(
                f"c = {c:.4g} is small for smoothness = {smoothness:.4g}: spread alone allows for a gradient of "
                f"H√(value/c) = {smoothness * eps**0.5 / c**0.5:.4g}, the certificate is {eps:.4g}; "
                f"c = H²/value = {smoothness**2 / eps:.4g} would balance, and constants='measured' does without c",
                stacklevel=2,
            )
        alone = smoothness * eps**0.5 / c**0.5  # not (eps/c)**0.5, which may vanish
        if constants == "paper":
            return eps + alone
        return alone if smoothness**2 > 4 * c * eps else eps + smoothness**2 / (4 * c)

    def goldstein(self, delta: float, *, lipschitz: float, constants: str = "sharp") -> Goldstein:
        """Return a Goldstein stationary point near x̄, for Lipschitz F (Lemma *goldstein reduction*).

        Pull y into the ball: ŷ = x̄ + min(1, δ/r)(y − x̄) with r = ‖y − x̄‖, and x' = E ŷ. With ε = ``value``:

        ==========  ==========================  ===============  ==============================================
        constants   distance ‖x̄ − x'‖           radius           epsilon
        ==========  ==========================  ===============  ==============================================
        measured    itself                      max ‖ŷ − x'‖     ‖Σ_{r <= δ} p g‖ + G Σ_{r > δ} p
        sharp       min(δ, V/(4δ))              δ + distance     max(1, 2G/(cδ²))·ε
        paper       δ                           2δ               (1 + 2G/(cδ²))·ε
        ==========  ==========================  ===============  ==============================================

        Sharp: (r − δ)₊ <= r²/(4δ) bounds the distance, and P(r > δ) <= V/δ² gives
        ‖E∇F(ŷ)‖ <= ‖ḡ‖ + 2G V/δ² <= epsilon.

        Args:
            delta: δ, the radius of the ball, > 0.
            lipschitz: G, a bound on ‖∇F‖, >= 0.
            constants: "sharp", "paper" or "measured"; the last needs the iterates, that is `o2nc.certify`.

        Returns:
            The point x' (None when the iterates are not known), its radius, its epsilon, and the distance.

        Warns:
            UserWarning: when epsilon >= G, which holds at every point and so says nothing. It takes c >= 2G/δ².

        Example:
            >>> Certificate(c=8.0, gradient=0.5, spread=0.01, ess=10.0).goldstein(0.5, lipschitz=1.0)
            Goldstein(radius=0.505, epsilon=0.58, distance=0.005)
        """
        checks.positive("delta", delta)
        checks.non_negative("lipschitz", lipschitz)
        checks.choice("constants", constants, CONSTANTS)
        clipped = None
        if self._trajectory is not None and self.weights is not None:
            clipped = self._trajectory.clip(self.weights, delta)
        ratio = 2 * lipschitz / self.c / delta / delta
        if constants == "measured":
            if clipped is None:
                raise ValueError('constants="measured" needs the iterates: take the certificate with o2nc.certify')
            distance, radius = clipped.distance, clipped.radius
            epsilon = clipped.kept + lipschitz * clipped.moved
        elif constants == "paper":
            distance, radius, epsilon = delta, 2 * delta, (1 + ratio) * self.value
        else:
            distance = min(delta, self.spread / (4 * delta))
            radius, epsilon = delta + distance, max(1.0, ratio) * self.value
        if epsilon >= lipschitz > 0:
            why = f"the certificate's own value is {self.value:.4g}"
            if ratio > 1:
                why += f" and c = {self.c:.4g}; it takes c >= 2G/δ² = {2 * lipschitz / delta / delta:.4g}"
            warnings.warn(
                f"epsilon = {epsilon:.4g} is no less than lipschitz = {lipschitz:.4g}, so it holds at every point: "
                f"{why}",
                stacklevel=2,
            )
        return Goldstein(clipped.point if clipped else None, radius, epsilon, distance)
