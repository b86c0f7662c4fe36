"""The stationarity certificate: an upper bound on ‖∇F(x̄)‖_c that comes with the weights.

Definition: ‖∇F(x)‖_c = inf ‖E ∇F(y)‖ + c·E‖y − x‖² over random y with E y = x. Any weights p on the
iterates give such a y, so with x̄ = Σ p_t x_t, ḡ = Σ p_t ∇F(x_t), V = Σ p_t‖x_t − x̄‖²,

    ‖∇F(x̄)‖_c <= ‖ḡ‖ + c V.

For smooth F it bounds ‖∇F(x̄)‖ itself (`Certificate.gradient_norm`); for Lipschitz F it leads to a Goldstein
stationary point nearby (`Certificate.goldstein`). Optimizers keep the sums themselves; `certify` takes a list.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from o2nc import checks
from o2nc.certificates.oracle import as_tensor
from o2nc.certificates.trajectory import Point, Trajectory
from o2nc.certificates.weights import best_weights
from o2nc.text import printable


@dataclass(frozen=True)
class Goldstein:
    """There is a point x' within ``distance`` of x̄ that is (radius, epsilon)-Goldstein stationary.

    That is ‖E ∇F(ŷ)‖ <= epsilon for a random ŷ with E ŷ = x' and ‖ŷ − x'‖ <= radius.

    Attributes:
        radius: how far ŷ may be from x'.
        epsilon: the bound on the mean gradient.
        distance: a bound on ‖x̄ − x'‖.

    Example:
        >>> Certificate(c=8.0, gradient=0.5, spread=0.01, ess=10.0).goldstein(0.5, lipschitz=1.0)
        Goldstein(radius=0.505, epsilon=0.58, distance=0.005)
    """

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

    @property
    def value(self) -> float:
        """‖ḡ‖ + c·V."""
        return self.gradient + self.c * self.spread

    def __str__(self) -> str:
        terms = f"{self.gradient:.4g} + {self.c:.4g}·{self.spread:.4g}"
        return printable(f"‖ḡ‖ + c·V = {terms} = {self.value:.4g} over {self.ess:.4g} iterates")

    def gradient_norm(self, *, smoothness: float | None = None, second_order: float | None = None) -> float:
        """Return a bound on ‖∇F(x̄)‖ for smooth F (Lemma *criterion reduction*).

        From ‖∇F(x̄)‖ <= ‖ḡ‖ + ‖E[∇F(x̄) − ∇F(y)]‖:

            ‖ḡ‖ + H√V       if ∇F is H-Lipschitz; at most value + H²/(4c)
            ‖ḡ‖ + (ρ/2)V    if ∇²F is ρ-Lipschitz, since E[y − x̄] = 0 removes ∇²F; at most value if c >= ρ/2

        Args:
            smoothness: H, a Lipschitz constant of ∇F, >= 0.
            second_order: ρ, a Lipschitz constant of ∇²F, >= 0. Exactly one of the two.

        Example:
            >>> Certificate(c=2.0, gradient=0.5, spread=0.25, ess=10.0).gradient_norm(smoothness=1.0)
            1.0
        """
        if (smoothness is None) == (second_order is None):
            raise TypeError(
                f"give exactly one of smoothness and second_order, got {smoothness!r} and {second_order!r}"
            )
        if smoothness is not None:
            checks.non_negative("smoothness", smoothness)
            return self.gradient + smoothness * self.spread**0.5
        assert second_order is not None
        checks.non_negative("second_order", second_order)
        return self.gradient + second_order / 2 * self.spread

    def goldstein(self, delta: float, *, lipschitz: float) -> Goldstein:
        """Return which Goldstein stationary point is near x̄, for Lipschitz F (Lemma *goldstein reduction*).

        It is x' = E ŷ for y pulled into the ball: ‖x̄ − x'‖ <= min(δ, V/(4δ)), ‖E∇F(ŷ)‖ <= max(1, 2G/(cδ²))·value.
        docs/paper.md, section 1, has the proof.

        Args:
            delta: δ, the radius of the ball, > 0.
            lipschitz: G, a bound on ‖∇F‖, >= 0.

        Warns:
            UserWarning: when epsilon >= G, which holds at every point and so says nothing. It takes c >= 2G/δ².
        """
        checks.positive("delta", delta)
        checks.non_negative("lipschitz", lipschitz)
        least_c = 2 * lipschitz / delta / delta
        distance, epsilon = min(delta, self.spread / (4 * delta)), max(1.0, least_c / self.c) * self.value
        if epsilon >= lipschitz > 0:
            why = f"the certificate's own value is {self.value:.4g}"
            if self.c < least_c:
                why += f" and c = {self.c:.4g}; it takes c >= 2G/δ² = {least_c:.4g}"
            warnings.warn(
                f"epsilon = {epsilon:.4g} is no less than lipschitz = {lipschitz:.4g}, so it holds at every point: "
                f"{why}",
                stacklevel=2,
            )
        return Goldstein(delta + distance, epsilon, distance)


@torch.no_grad()
def certify(
    gradient: Callable[[Any], Any] | Sequence[Any] | Tensor,
    iterates: Sequence[Any] | Tensor,
    c: float = 1.0,
    *,
    weights: str | Sequence[float] | Tensor = "exponential",
    beta: float = 0.99,
) -> Certificate:
    """Certify an average of iterates: ‖∇F(x̄)‖_c <= ‖Σp g‖ + c Σp‖y − x̄‖² at x̄ = Σp y.

    ``weights="exponential"`` takes p_t ∝ β^{K−t}, the last iterate heaviest, as the optimizers do.
    ``weights="optimal"`` searches the p with the least value (`o2nc.certificates.weights`). The joint problem in p
    and x̄ is not convex, so the result is a good certificate and not a global optimum; it is never worse than the
    exponential weights or the iterate with the smallest gradient alone. The work is a QR decomposition, 2K²d
    multiplications, and a pass over data per round.

    With stochastic gradients optimised weights fit the noise, and ``value`` comes out too small: evaluate the weights
    again on fresh gradients, or at least compare with σ/√ess, which noise of size σ alone puts into ‖ḡ‖.

    Args:
        gradient: a function of a point, called once per iterate in order with a detached copy (autograd is enabled:
            ``lambda x: torch.autograd.grad(f(x.requires_grad_()), x)[0]`` will do), or the K gradients.
        iterates: K points, each a tensor or a list of tensors; or one tensor whose first axis counts them.
        c: the price of spread, > 0.
        weights: "exponential", "optimal", or K numbers of your own, >= 0.
        beta: the discount of the exponential weights, in (0, 1).

    Returns:
        A certificate with ``weights``, ``point`` (at least float32) and, for optimal weights, ``gap``.

    Example:
        The kink of |x|: both iterates have a gradient of size 1, their best mean has almost none.

        >>> x = torch.tensor([[-0.001], [0.003]])
        >>> certificate = certify(torch.sign, x, weights="optimal")
        >>> certificate.weights, certificate.point
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([0.0010]))
        >>> f"{certificate.value:.1e}, at least {certificate.value - certificate.gap:.1e}"
        '4.0e-06, at least 4.0e-06'
    """
    checks.positive("c", c)
    checks.fraction("beta", beta)
    if isinstance(weights, str):
        checks.choice("weights", weights, ("exponential", "optimal"))
    with torch.enable_grad():  # the gradient may need it; what it returns is detached
        trajectory = Trajectory(gradient, iterates)
    if isinstance(weights, str):
        p = beta ** torch.arange(len(trajectory) - 1, -1, -1, dtype=torch.float64, device="cpu")
    else:
        p = as_tensor("weights", weights).to("cpu", torch.float64)
    if p.shape != (len(trajectory),) or not (p >= 0).all() or not 0 < float(p.sum()) < float("inf"):
        raise ValueError(
            "weights must be 'exponential', 'optimal', or one number >= 0 for each iterate, not all zero: "
            f"{len(trajectory)} iterates, weights of the shape {tuple(p.shape)}"
        )
    sums, gap = trajectory.sums(p / p.sum()), None
    if isinstance(weights, str) and weights == "optimal":
        sums, gap = best_weights(trajectory, sums, float(c))
    p, point = sums.weights, trajectory.mean(sums.weights)
    return Certificate(float(c), sums.gradient, sums.spread, 1 / float(p @ p), weights=p, point=point, gap=gap)
