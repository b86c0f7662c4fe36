"""The theorems as functions: hyperparameters, bounds with their constants, steps enough and steps needed.

For a G-Lipschitz F with F(x_0) − inf F <= F* and unbiased gradients of variance at most σ², Algorithm 2 with `OGD`
(κ = 1), s ~ Exp(1) and constant hyperparameters outputs a point with E‖∇F(x̄)‖_c <= B. With α = 1 − β:

"paper", exactly as printed (Theorem SGDM and its proof; A = G + σ):

    B = F*/(DN) + (2G + σ)/(αN) + σ√α + 12cD²/α² + ((1 + 2αN)/N)(2A/√α + 12cD²/α²)
    α = max{N^{−2/3}, F*^{4/7} c^{2/7} A^{−6/7} N^{−4/7}} <= ½,   D = F*/(A√α N),   η = 2D√α/A,   μ = 24cD/α².

"sharp", proved in docs/paper.md (A² = G² + σ²), at the D and the α <= ½ that make B least:

    B = F*/(DN) + (β/N)(G/α + σ/√(α(2 − α))) + σ√(α/(2 − α)) + C·cD²/α² + (β/N + α)A/√α
    C = 2β(1 + β√(2 − β²))/(1 + β)² <= 1,   D³ = F*α²/(2CcN),   η = D√α/A,   μ = 2CcD/α².

C comes from the variance lemma, Σ E V_n <= (C/α²) Σ E‖Δ_n‖², where the paper has 12; no smaller constant is true.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch.optim.optimizer import ParamsT

from o2nc import checks
from o2nc.learners import OGD
from o2nc.optimizers.exponentiated import ExponentiatedO2NC

__all__ = ["Plan", "bound", "lower_bound", "plan", "spread_constant", "steps_for", "variance_weights"]

CONSTANTS = ("sharp", "paper")
MOST = 1 << 72  # steps; with more, α could not be told from 0


@dataclass(frozen=True)
class Plan:
    """Hyperparameters of Algorithm 2 with `OGD`, and what they guarantee.

    Attributes:
        steps: N, their number.
        c: the price of spread, given or chosen by the regime.
        gap: F* >= F(x_0) − inf F.
        lipschitz: G >= ‖∇F‖.
        noise: σ, the root mean square error of a stochastic gradient.
        constants: "sharp" or "paper".
        alpha: α = 1 − β.
        radius: D, the length of the comparator.
        smoothness: H when the smooth regime chose c, else None.
        second_order: ρ when the second-order regime chose c, else None.

    Example:
        >>> p = plan(steps=1000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> print(p)
        1000 steps, c = 1, sharp: beta=0.971975, lr=0.0008671, decay=18.64; E‖∇F(x̄)‖_c <= 0.6078
        >>> {name: round(value, 3) for name, value in p.terms.items()}
        {'descent': 0.137, 'start': 0.039, 'noise': 0.119, 'spread': 0.068, 'regret': 0.245}
    """

    steps: int
    c: float
    gap: float
    lipschitz: float
    noise: float
    constants: str
    alpha: float
    radius: float
    smoothness: float | None = None
    second_order: float | None = None

    @property
    def beta(self) -> float:
        """β, the discount of the losses and of the averages."""
        return 1 - self.alpha

    @property
    def lr(self) -> float:
        """η, the learner's step size."""
        if self.constants == "paper":
            return 2 * self.radius * math.sqrt(self.alpha) / (self.lipschitz + self.noise)
        return self.radius * math.sqrt(self.alpha) / math.hypot(self.lipschitz, self.noise)

    @property
    def decay(self) -> float:
        """μ, the strength of the variance regulariser."""
        return 2 * spread_constant(self.beta, self.constants) * self.c * self.radius / self.alpha**2

    @property
    def momentum(self) -> float:
        """β̃ = β/(1 + ημ), the effective momentum."""
        return self.beta / (1 + self.lr * self.decay)

    @property
    def effective_lr(self) -> float:
        """η̃ = βη/(α + ημ), the learning rate on a momentum that is a mean (dampening = momentum)."""
        return self.beta * self.lr / (self.alpha + self.lr * self.decay)

    @property
    def terms(self) -> dict[str, float]:
        """The summands of the bound, by what they pay for."""
        return _paper_terms(self) if self.constants == "paper" else _sharp_terms(self)

    @property
    def bound(self) -> float:
        """B >= E‖∇F(x̄)‖_c for the output x̄."""
        return sum(self.terms.values())

    @property
    def gradient_bound(self) -> float | None:
        """An upper bound of E‖∇F(x̄)‖, where F is smooth of first or second order; None otherwise.

        Lemma criterion-reduction: with c = H²/B it is 2B as printed and 1.25B sharp, with c = ρ/2 it is 2B and B.
        """
        if self.smoothness is None and self.second_order is None:
            return None
        return _reduction(self.constants, self.smoothness, self.second_order) * self.bound

    def __str__(self) -> str:
        what = f"beta={self.beta:.6g}, lr={self.lr:.4g}, decay={self.decay:.4g}"
        return f"{self.steps} steps, c = {self.c:.4g}, {self.constants}: {what}; E‖∇F(x̄)‖_c <= {self.bound:.4g}"

    def optimizer(self, params: ParamsT, *, seed: int = 0) -> ExponentiatedO2NC:
        """Return Algorithm 2 with these hyperparameters, ready for ``steps`` calls of ``step``.

        Args:
            params: parameters or parameter groups.
            seed: of the scalars s.

        Example:
            >>> import torch
            >>> x = torch.nn.Parameter(torch.tensor([0.5]))
            >>> p = plan(steps=1000, c=1.0, gap=0.5, lipschitz=1.0)
            >>> opt = p.optimizer([x])
            >>> for _ in range(p.steps):
            ...     opt.zero_grad()
            ...     x.abs().sum().backward()
            ...     opt.step()
            >>> opt.certificate(p.c).value < p.bound
            True
        """
        return ExponentiatedO2NC(params, OGD(lr=self.lr, decay=self.decay), beta=self.beta, seed=seed)


def plan(
    steps: int,
    c: float | None = None,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    smoothness: float | None = None,
    second_order: float | None = None,
) -> Plan:
    """Return the theorem's hyperparameters for N steps.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0; leave it out to give ``smoothness`` or ``second_order``.
        gap: F* > 0, at least F(x_0) − inf F.
        lipschitz: G > 0.
        noise: σ >= 0.
        constants: "sharp", or "paper" for the printed ones.
        smoothness: H > 0; chooses c = H²/ε with ε the bound itself, as the paper does for smooth F.
        second_order: ρ > 0; chooses c = ρ/2.

    Returns:
        The plan; ``plan.optimizer(params)`` is ready to train.

    Raises:
        ValueError: the printed α exceeds ½; the message names the smallest N.

    Example:
        >>> p = plan(steps=100_000, c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> f"{p.bound:.3f} at beta = {p.beta:.4f}, lr = {p.lr:.2e}, decay = {p.decay:.0f}"
        '0.155 at beta = 0.9982, lr = 7.64e-06, decay = 155'
    """
    _check_steps(steps)
    _check(gap, lipschitz, noise, constants)
    _check_regime(c, smoothness, second_order)
    make = partial(_PLANNERS[constants], int(steps), gap=float(gap), lipschitz=float(lipschitz), noise=float(noise))
    if second_order is not None:
        return replace(_in_range(make(second_order / 2)), second_order=float(second_order))
    if smoothness is not None:
        # c = H²/B(c): c·B(c) grows with c, and so has one solution
        c = math.exp(_bisect(lambda v: v + math.log(make(math.exp(v)).bound) >= 2 * math.log(smoothness), -100, 100))
        p = make(c)
        if not math.isclose(math.log(c * p.bound), 2 * math.log(smoothness), abs_tol=1e-6):
            raise ValueError(
                f"smoothness={smoothness!r} is out of range beside the other constants: c would be {c:.3g}"
            )
        return replace(_in_range(p), smoothness=float(smoothness))
    return _in_range(make(float(c)))  # type: ignore[arg-type]


def bound(
    steps: int,
    c: float,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    alpha: float | None = None,
    radius: float | None = None,
) -> float:
    """Return B, the bound on E‖∇F(x̄)‖_c after N steps.

    Args:
        steps: N >= 1.
        c: the price of spread, > 0.
        gap: F* > 0.
        lipschitz: G > 0.
        noise: σ >= 0.
        constants: "sharp" or "paper".
        alpha: α in (0, ½], for hyperparameters other than the plan's; then ``radius`` is needed too.
        radius: D > 0.

    Example:
        >>> b = bound(10**6, 1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> p = bound(10**6, 1.0, gap=1.0, lipschitz=1.0, noise=1.0, constants="paper")
        >>> f"{b:.4f} against {p:.4f} as printed"
        '0.0795 against 0.5171 as printed'
    """
    if (alpha is None) != (radius is None):
        raise ValueError(f"alpha and radius go together, got alpha={alpha!r} and radius={radius!r}")
    if alpha is None or radius is None:
        return plan(steps, c, gap=gap, lipschitz=lipschitz, noise=noise, constants=constants).bound
    _check_steps(steps)
    checks.positive("c", c)
    _check(gap, lipschitz, noise, constants)
    checks.number("alpha", alpha, "a number in [1e-15, 0.5]", lambda v: 1e-15 <= v <= 0.5)
    checks.positive("radius", radius)
    return Plan(steps, c, gap, lipschitz, noise, constants, alpha, radius).bound


def steps_for(
    eps: float,
    c: float | None = None,
    *,
    gap: float,
    lipschitz: float,
    noise: float = 0.0,
    constants: str = "sharp",
    smoothness: float | None = None,
    second_order: float | None = None,
) -> int:
    """Return the least N at which the plan's bound is at most ``eps``.

    Args:
        eps: ε > 0, the target for E‖∇F(x̄)‖_c, or for E‖∇F(x̄)‖ when ``smoothness`` or ``second_order`` is given.
        c: as in `plan`.
        gap: as in `plan`.
        lipschitz: as in `plan`.
        noise: as in `plan`.
        constants: as in `plan`.
        smoothness: as in `plan`.
        second_order: as in `plan`.

    Example:
        >>> unit = dict(c=1.0, gap=1.0, lipschitz=1.0, noise=1.0)
        >>> steps_for(0.1, **unit), steps_for(0.1, **unit, constants="paper")
        (453385, 296639413)
    """
    checks.positive("eps", eps)
    _check(gap, lipschitz, noise, constants)
    _check_regime(c, smoothness, second_order)
    target = eps / _reduction(constants, smoothness, second_order)
    if smoothness is not None:  # c·B(c) grows with c: the plan's own c = H²/B has B <= target as soon as this c has
        c = smoothness**2 / target
    elif second_order is not None:
        c = second_order / 2
    make = partial(plan, c=c, gap=gap, lipschitz=lipschitz, noise=noise, constants=constants)

    def enough(steps: int) -> bool:
        try:
            return make(steps).bound <= target
        except TooFewSteps:
            return False

    high = 1
    while not enough(high):
        high *= 2
        if high > MOST:
            raise ValueError(f"eps={eps!r} needs more than 2^72 steps with these constants")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def lower_bound(eps: float, c: float, *, gap: float, lipschitz: float) -> float:
    """Return F*·G²·c^½·ε^{−7/2}: up to a universal constant, left at 1 here, no algorithm needs fewer steps.

    Corollary lower-bound, for stochastic gradients with E‖g‖² <= 2G². `o2nc.problems.hard_instance` has a constant.

    Args:
        eps: ε > 0.
        c: the price of spread, > 0.
        gap: F* > 0.
        lipschitz: G >= √F*·(cε)^¼; the corollary does not speak of smaller ones.

    Example:
        >>> f"{lower_bound(0.1, 1.0, gap=1.0, lipschitz=1.0):.0f}"
        '3162'
    """
    checks.positive("eps", eps)
    checks.positive("c", c)
    checks.positive("gap", gap)
    least = math.sqrt(gap) * (c * eps) ** 0.25
    allowed = f"a finite number >= sqrt(gap)*(c*eps)^(1/4) = {least:.6g}, where the lower bound is proved"
    checks.number("lipschitz", lipschitz, allowed, lambda v: v >= least)
    return gap * lipschitz**2 * math.sqrt(c) * eps**-3.5


def variance_weights(n: int, beta: float) -> NDArray[np.float64]:
    """Return λ_{n,1}, …, λ_{n,n} of the variance lemma, E V_n <= Σ_t λ_{n,t} E‖Δ_t‖².

    λ_{n,t} = 4 Σ_{i>=t>i'} p_i p_i'(i − i') = 4(aβ^a(1 − β^n) − nβ^n(1 − β^a))/(1 − β^n)²,  a = n − t + 1.
    Half of it is true too, since V = ½ Σ p_i p_j‖x_i − x_j‖².

    Args:
        n: at least 1.
        beta: β in (0, 1).

    Example:
        >>> variance_weights(3, 0.5)
        array([0.        , 0.81632653, 1.30612245])
    """
    checks.integer("n", n, 1)
    checks.fraction("beta", beta)
    rate = -math.log(beta)
    y = rate * np.arange(n, 0, -1.0)  # rate·a; at t = 1, a = n
    # aβ^a/(1 − β^a) = (1 + φ(rate·a))/rate with φ(y) = y/(e^y − 1) − 1: without the 1, nothing cancels
    small = np.minimum(y, 0.1)
    series = small * (-1 / 2 + small * (1 / 12 - small**2 * (1 / 720 - small**2 * (1 / 30240 - small**2 / 1209600))))
    phi = np.where(y < 0.1, series, y / np.expm1(np.maximum(y, 0.1)) - 1)
    share = np.expm1(-y) / np.expm1(-y[0])  # (1 − β^a)/(1 − β^n)
    weights: NDArray[np.float64] = 4 * share * (phi - phi[0]) / rate
    return weights


def spread_constant(beta: float, constants: str = "sharp") -> float:
    """Return C of the variance lemma, Σ_n E V_n <= (C/(1 − β)²) Σ_n E‖Δ_n‖²: 12 as printed, at most 1 sharp.

    Args:
        beta: β in (0, 1).
        constants: "sharp" or "paper".

    Example:
        >>> [round(spread_constant(beta), 3) for beta in (0.5, 0.9, 0.99)]
        [0.738, 0.988, 1.0]
    """
    checks.fraction("beta", beta)
    checks.choice("constants", constants, CONSTANTS)
    return 12.0 if constants == "paper" else 2 * beta * (1 + beta * math.sqrt(2 - beta**2)) / (1 + beta) ** 2


def _reduction(constants: str, smoothness: float | None, second_order: float | None) -> float:
    """Return ‖∇F(x)‖/ε of Lemma criterion-reduction, or 1 where ‖∇F(x)‖_c itself is meant."""
    if smoothness is not None:
        return 2.0 if constants == "paper" else 1.25
    return 2.0 if second_order is not None and constants == "paper" else 1.0


class TooFewSteps(ValueError):
    """The printed α exceeds ½."""


def _paper_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> Plan:
    """Return the hyperparameters of Theorem SGDM, α > ½ included."""
    a = lipschitz + noise
    alpha = max(steps ** (-2 / 3), gap ** (4 / 7) * c ** (2 / 7) * a ** (-6 / 7) * steps ** (-4 / 7))
    radius = gap / (a * math.sqrt(alpha) * steps)
    return Plan(steps, c, gap, lipschitz, noise, "paper", alpha, radius)


def _sharp_plan(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> Plan:
    """Return the α <= ½ and D with the least bound: D in closed form, α by search on ever finer grids."""

    def radius(alpha: float) -> float:
        return (gap * alpha**2 / (2 * spread_constant(1 - alpha) * c * steps)) ** (1 / 3)

    def at(log_alpha: float) -> Plan:
        alpha = math.exp(log_alpha)
        return Plan(steps, c, gap, lipschitz, noise, "sharp", alpha, radius(alpha))

    low, high = math.log(max(0.1 / steps, 1e-15)), math.log(0.5)
    for _ in range(12):
        grid = np.linspace(low, high, 24).tolist()
        best = min(range(len(grid)), key=lambda i: at(grid[i]).bound)
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return min((at(low), at(grid[best]), at(high)), key=lambda p: p.bound)


_PLANNERS: dict[str, Callable[..., Plan]] = {"paper": _paper_plan, "sharp": _sharp_plan}


def _paper_terms(p: Plan) -> dict[str, float]:
    """Return the summands of Theorem SGDM's proof."""
    n, alpha, d, g, sigma = p.steps, p.alpha, p.radius, p.lipschitz, p.noise
    spread = 12 * p.c * d**2 / alpha**2
    return {
        "descent": p.gap / (d * n),
        "start": (2 * g + sigma) / (alpha * n),
        "noise": sigma * math.sqrt(alpha),
        "spread": spread,
        "regret": (1 + 2 * alpha * n) / n * (2 * (g + sigma) / math.sqrt(alpha) + spread),
    }


def _sharp_terms(p: Plan) -> dict[str, float]:
    """Return the summands that docs/paper.md proves."""
    n, alpha, d, g, sigma = p.steps, p.alpha, p.radius, p.lipschitz, p.noise
    return {
        "descent": p.gap / (d * n),
        "start": p.beta / n * (g / alpha + sigma / math.sqrt(alpha * (2 - alpha))),
        "noise": sigma * math.sqrt(alpha / (2 - alpha)),
        "spread": spread_constant(p.beta) * p.c * d**2 / alpha**2,
        "regret": (p.beta / n + alpha) * math.hypot(g, sigma) / math.sqrt(alpha),
    }


def _in_range(p: Plan) -> Plan:
    if p.alpha <= 0.5:
        return p
    a = p.lipschitz + p.noise
    least = max(2**1.5, 2**1.75 * p.gap * math.sqrt(p.c) / a**1.5)
    raise TooFewSteps(
        f"steps={p.steps} gives alpha = {p.alpha:.4g}, and the theorem needs alpha <= 1/2: "
        f"steps >= {math.ceil(least)} is enough (or constants='sharp', which finds its own alpha)"
    )


def _check_steps(steps: int) -> None:
    checks.integer("steps", steps, 1)
    if steps > MOST:
        raise ValueError(f"steps must be at most 2^72, got {steps!r}")


def _check(gap: float, lipschitz: float, noise: float, constants: str) -> None:
    checks.positive("gap", gap)
    checks.positive("lipschitz", lipschitz)
    checks.non_negative("noise", noise)
    checks.choice("constants", constants, CONSTANTS)


def _check_regime(c: float | None, smoothness: float | None, second_order: float | None) -> None:
    given = {"c": c, "smoothness": smoothness, "second_order": second_order}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise ValueError(f"give exactly one of c, smoothness and second_order, got {named or 'none'}")
    for name, value in named.items():
        checks.positive(name, value)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point from which on ``holds``, to the last bit."""
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        low, high = (low, middle) if holds(middle) else (middle, high)
