"""Stop when the certificate is small: what a target ε takes, without knowing how far F can fall.

Momentum with lr ℓ = βη and s ~ Exp(1), stopped at the first n with ‖∇̄_n‖ + cV_n <= ε, certifies x̄ surely and takes
E τ <= E[F(x_0) − F(x_τ)]/r + b steps. docs/paper.md, section 10, has r, b, the bound for stages with falling ε, and
the proofs.
"""

import math
from dataclasses import dataclass

from o2nc import checks
from o2nc.theory import lemmas


@dataclass(frozen=True)
class StoppingPlan:
    """Momentum for a target ε, and how long it takes.

    Attributes:
        eps: ε, at which the certificate stops the run.
        alpha: α = 1 − β, of the momentum and of the averages.
        lr: torch's learning rate ℓ.
        fall: r, by which F falls in a step, in the mean, while the certificate is above ε.
        excess: y; 1 + y is the least ratio of (1 − β²)E‖m‖² to E‖g‖² while the certificate is above ε.
        overhead: b, steps beside those that F's fall pays for.

    Example:
        >>> p = stopping_plan(0.1, c=1.0, lipschitz=1.0)
        >>> f"{1 / p.fall:.0f} steps for every unit that F falls by, and {p.overhead:.0f}; lr={p.lr:.2e}"
        '26570 steps for every unit that F falls by, and 546; lr=7.47e-05'
    """

    eps: float
    alpha: float
    lr: float
    fall: float
    excess: float
    overhead: float

    @property
    def momentum(self) -> float:
        """β = 1 − α."""
        return 1 - self.alpha

    def steps(self, gap: float) -> float:
        """Return the bound on E τ, for gap >= F(x_0) − inf F."""
        checks.known(gap=gap)
        return gap / self.fall + self.overhead


def stopping_plan(eps: float, c: float, *, lipschitz: float, noise: float = 0.0) -> StoppingPlan:
    """Return the momentum and lr with which F falls fastest while the certificate is above ε.

    For each α the search is over u = √q, which sets k = (e − αu)/u² and with it η: r is largest where
    (Ku² + A²)/(Ku² − A²) = αu/(2(e − αu)), K = 1 − β², whose left side falls and whose right side rises.

    Args:
        eps: ε > 0.
        c, lipschitz, noise: as in `plan`.

    Raises:
        ValueError: ε is G or more, which holds everywhere.

    Example:
        >>> p = stopping_plan(0.1, c=1.0, lipschitz=1.0, noise=1.0)
        >>> f"beta={p.momentum:.4f}, lr={p.lr:.2e}: {p.steps(gap=1.0):.0f} steps for F* = 1"
        'beta=0.9987, lr=3.32e-06: 169815 steps for F* = 1'
    """
    known = {"eps": eps, "c": c, "lipschitz": lipschitz, "noise": noise}
    checks.known(**known)
    if eps >= lipschitz:
        raise ValueError(f"eps must be below lipschitz = {lipschitz!r}, which bounds every certificate, got {eps!r}")
    size = math.hypot(lipschitz, noise)

    def at(alpha: float) -> tuple[float, StoppingPlan]:
        beta, keep = 1 - alpha, alpha * (2 - alpha)
        e = eps - noise * math.sqrt(alpha / (1 + beta))
        low, high = size / math.sqrt(keep), e / alpha
        if not low < high:
            return math.inf, StoppingPlan(float(eps), alpha, 0.0, 0.0, 0.0, math.inf)
        for _ in range(100):
            u = (low + high) / 2
            energy = keep * u**2
            rises = (energy + size**2) * 2 * (e - alpha * u) > (energy - size**2) * alpha * u
            low, high = (u, high) if rises else (low, u)
        excess = keep * u**2 / size**2 - 1
        eta = alpha / beta * math.sqrt((e - alpha * u) / (c * lemmas.spread_constant(beta))) / u
        fall = eta * size**2 * excess / 2
        overhead = 2 / alpha * eps / e * (1 + 1 / excess)
        return 1 / fall, StoppingPlan(float(eps), alpha, beta * eta, fall, excess, overhead)

    low = min(1e-3 * (eps / (size + noise)) ** 2, 1e-3)
    return lemmas.in_float64(lambda: lemmas.least(at, max(low, 1e-300)), lambda p: 0 < p.fall < math.inf, **known)


def holdout_samples(check: int, margin: float, *, largest: float, failure: float) -> int:
    """Return how many fresh gradients, at iterates drawn by their weights, estimate ∇̄_n to within ``margin``.

    It fails at any of all checks together with probability ``failure`` at most.

    Args:
        margin: ωε > 0.
        largest: Ā, with ‖g‖ <= Ā always.
        check: j >= 1; the times of the checks are fixed in advance, or drawn.
        failure: p in (0, 1).

    Example:
        >>> holdout_samples(1, 0.1, largest=1.0, failure=0.01)
        4794
    """
    checks.known(check=check, margin=margin, largest=largest, failure=failure)
    return math.ceil(8 * (largest / margin) ** 2 * math.log(2 * check * (check + 1) / failure))
