"""The energy theorem: what plain momentum guarantees, with any learning rate and any momentum.

With torch's buffer m_t = b·m_{t−1} + g_t and steps −s·ℓ_t m_t, w_n = ℓ_{n−1} − b²ℓ_n > 0 for n < N, w_N = ℓ_{N−1},
ℓ_0 = ℓ_1 and A² = G² + σ², the energy inequality is

    Σ_{n<=N} w_n E‖m_n‖² <= T := 2bF* + A² Σ_{t<=N} ℓ_{t−1} + the price of the law (`law_energy`),

and with averages of discount β and α = 1 − β the output x̄ has

    E‖∇F(x̄)‖_c <= (1/N)√(T Σ_n a_n²/w_n) + noise + start + cC/(α²N) · T max_{n<N} ℓ_n²/w_n.

docs/paper.md, section 9, has a_n, noise and start for both output laws, and the proof. The rates are fixed before the
run; `Falling` is for those that the run itself lowers, where s ~ Exp.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from o2nc import scaling
from o2nc.theory import lemmas


class Falling(NamedTuple):
    """Learning rates that never rise, between ``first`` and ``least``; when they fall may depend on the run.

    Example:
        >>> from o2nc.theory import guarantee
        >>> known = dict(momentum=0.99, steps=30_000, c=1.0, gap=1.0, lipschitz=1.0)
        >>> f"{guarantee(lr=Falling(3e-5, 2e-5), **known).bound:.3f} against {guarantee(lr=3e-5, **known).bound:.3f}"
        '0.160 against 0.132'
    """

    first: float
    least: float


class Rates(NamedTuple):
    """What the theorem needs to know of ℓ_1, …, ℓ_N."""

    steps: int  # N
    total: float  # Σ_{t<=N} ℓ_{t−1}, with ℓ_0 = ℓ_1
    first: float  # ℓ_1
    last: float  # ℓ_{N−1} = w_N
    squares: float  # Σ_{t<N} ℓ_t²
    variation: float  # Σ_{1<t<N} |ℓ_t − ℓ_{t−1}|
    inverse: float  # Σ_{n<N} 1/w_n
    worst: float  # max_{n<N} ℓ_n²/w_n

    @classmethod
    def constant(cls, lr: float, momentum: float, steps: int) -> "Rates":
        """Return those of ℓ_t = ℓ: w_n = (1 − b²)ℓ."""
        keep = (1 - momentum) * (1 + momentum)
        inverse = (steps - 1) / (keep * lr)
        return cls(steps, lr * steps, lr, lr, (steps - 1) * lr**2, 0.0, inverse, lr / keep if steps > 1 else 0.0)

    @classmethod
    def scheduled(cls, lrs: NDArray[np.float64], momentum: float) -> "Rates":
        """Return those of a sequence, of which ℓ_N moves nothing that is averaged; refused where some w_n <= 0."""
        moving = lrs[:-1]
        before = np.concatenate([moving[:1], moving[:-1]])
        w = before - momentum**2 * moving
        bad = np.flatnonzero(~(np.isfinite(moving) & (moving > 0)))
        if len(bad):
            raise ValueError(f"lr must be finite numbers > 0, got {moving[bad[0]]!r} at step {bad[0] + 1}")
        fast = np.flatnonzero(w <= 0)
        if len(fast):
            raise ValueError(
                f"lr may grow by less than 1/momentum² = {momentum**-2:.6g} a step for the theorem to hold, "
                f"got {before[fast[0]]:.6g} and then {moving[fast[0]]:.6g} at step {fast[0] + 1}"
            )
        first = lrs[0]
        last = moving[-1] if len(moving) else first
        sums = (moving**2).sum(), np.abs(np.diff(moving)).sum(), (1 / w).sum(), (moving**2 / w).max(initial=0.0)
        return cls(len(lrs), *map(float, (first + moving.sum(), first, last, *sums)))


class Run(NamedTuple):
    """Momentum with random scaling as the theorem sees it; the mean of s is counted in the rates."""

    momentum: float  # b
    average: float  # β
    law: Any  # of s, with a second_moment and a price
    dampening: float = 0.0  # τ

    @property
    def head(self) -> float:
        """How much E‖g_1‖² counts in the buffer: torch's first one, g_1, is 1/(1 − τ) times too long."""
        return (1 - self.dampening) ** -2


def law_energy(run: Run, rates: Rates, lipschitz: float, size: float) -> float:
    """Return 2bGL times the bound on Σ_{t<N} E‖Δ_{t+1} − Δ_t‖ + E‖Δ_N‖: what a law other than Exp adds to T.

    With E‖m_t‖ <= Aκ, κ = max(1/(1 − b), √head), there are two bounds: Cauchy–Schwarz against the energy of the
    changes, and the triangle inequality ‖m_t − m_{t−1}‖ <= ‖g_t‖ + (1 − b)‖m_{t−1}‖, which is better for b < ¼.
    """
    b, price = run.momentum, run.law.price
    if price == 0 or rates.steps < 2 or b == 0:
        return 0.0
    first, rest = math.sqrt(run.head), 1 - b
    longest = max(1 / rest, first)
    path = math.sqrt((rates.squares + rates.last**2 * b / rest) * (rates.steps - 2 + run.head) / b)
    triangle = first * rates.first + (1 + rest * longest) * (rates.total - 2 * rates.first) + longest * rates.last
    return 2 * b * lipschitz * price * size * (min(path, triangle) + longest * rates.variation)


def second_moment(law: Any) -> float:
    """Return E s²/(E s)²."""
    return float(law.second_moment) / scaling.mean(law) ** 2


def energy_terms(
    run: Run, rates: Rates, output: str, *, c: float, gap: float, lipschitz: float, noise: float
) -> dict[str, float]:
    """Return the summands of the bound, by what they pay for."""
    n, b, beta = rates.steps, run.momentum, run.average
    alpha, size, keep = 1 - beta, math.hypot(lipschitz, noise), (1 - beta) * (1 + beta)
    energy = {
        "gap": 2 * b * gap,
        "energy": size**2 * (rates.total + (run.head - 1) * rates.first),
        "law": law_energy(run, rates, lipschitz, size),
    }
    total = sum(energy.values())
    share, geometric = alpha + abs(beta - b), output == "geometric"
    inverse = share**2 * rates.inverse + (1.0 if geometric else alpha**2) / rates.last
    start = 0.0 if geometric else lipschitz * beta * -math.expm1(n * math.log1p(-alpha)) / (alpha * n)
    root = math.sqrt(inverse / total) / n
    spread = lemmas.spread_constant(beta, second_moment=second_moment(run.law)) / alpha**2
    return {name: root * value for name, value in energy.items()} | {
        "noise": noise * (alpha * (n - 1) + 1 if geometric else alpha * n) / (n * math.sqrt(keep)),
        "start": start + abs(run.dampening) / (1 - run.dampening) * size / n,
        "spread": c * spread * rates.worst * total / n,
    }
