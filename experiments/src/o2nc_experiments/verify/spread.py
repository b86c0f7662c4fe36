"""Lemma variance-to-regularizer: how far the iterates spread around x̄, by the lengths of the updates."""

import numpy as np
from numpy.typing import NDArray

from o2nc import theory
from o2nc_experiments.verify.check import Finding, enough, greatest, least_of, statement

BETAS = (0.5, 0.9, 0.99)


def double_sum(n: int, beta: float) -> NDArray[np.float64]:
    """Return λ_{n,1}, …, λ_{n,n} from the definition, 4 Σ_{i>=t>i'} p_i p_i'(i − i')."""
    i = np.arange(1, n + 1)
    p = beta ** (n - i) * (1 - beta) / (1 - beta**n)
    terms = np.tril(p[:, None] * p * (i[:, None] - i))  # row i, column i' < i
    return np.array([4 * terms[t - 1 :, : t - 1].sum() for t in i])


def summed_weights(beta: float, horizon: int) -> NDArray[np.float64]:
    """Return Σ_n λ_{n,t} over n = t, …, N for every t."""
    total = np.zeros(horizon)
    for n in range(1, horizon + 1):
        total[:n] += theory.variance_weights(n, beta)
    return total


@statement("variance-weights", "Σ_n λ_{n,t} ≤ 12/(1−β)² for every t")
def variance_weights(seed: int, scale: float) -> Finding:
    """Proposition tech-lam-t:N, and the closed form of λ against its definition."""
    error = 0.0
    for beta in BETAS:
        for n in (1, 2, 3, 10, 57):
            error = greatest(error, np.abs(theory.variance_weights(n, beta) - double_sum(n, beta)).max())
    worst = 0.0
    for beta in BETAS:
        horizon = enough(int(15 / (1 - beta)), min(scale, 1.0), 30)
        worst = greatest(worst, summed_weights(beta, horizon).max() * (1 - beta) ** 2)
    measured = f"(1−β)²·sum, greatest over t and β = .5, .9, .99; closed form off the double sum by {error:.0e}"
    return Finding(measured, worst, 12.0, also=error < 1e-11)


def stays_finite(k: float, beta: float, horizon: int) -> bool:
    """Say whether Σ_n E V_n <= K Σ_n E‖Δ_n‖² for all adapted Δ up to the horizon, by dynamic programming.

    With e = x_n − x̄_n, the greatest future Σ V − K Σ‖Δ‖² is A·V_n + B·‖e‖². Δ_{n+1} moves e to (1 − γ)(e + sΔ), and
    V to (1 − γ)(V + γ‖e + sΔ‖²); with E s = 1 and E s² = 2 the best Δ is proportional to e, and there is a finite one
    iff K > 2M, where M = (1 + A)(1 − γ)γ + B(1 − γ)².
    """
    a = b = 0.0
    for n in range(horizon - 1, 0, -1):
        gamma = (1 - beta) / (1 - beta ** (n + 1))
        m = (1 + a) * (1 - gamma) * gamma + b * (1 - gamma) ** 2
        if k <= 2 * m:
            return False
        a, b = (1 + a) * (1 - gamma), m * (k - m) / (k - 2 * m)
    return True


def worst_spread(beta: float, horizon: int) -> float:
    """Return (1 − β)² times the greatest Σ E V_n / Σ E‖Δ_n‖² over all adapted Δ."""
    low, high = 0.0, 12 / (1 - beta) ** 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if stays_finite(middle, beta, horizon) else (middle, high)
    return high * (1 - beta) ** 2


@statement("variance-sharp", "Σ E V_n ≤ (C/(1−β)²) Σ E‖Δ_n‖²")
def variance_sharp(seed: int, scale: float) -> Finding:
    """The lemma with the constant C of `theory.spread_constant`, which no smaller one can replace."""
    found = {beta: worst_spread(beta, enough(int(60 / (1 - beta)), scale, 200)) for beta in BETAS}
    ratios = {beta: value / theory.spread_constant(beta) for beta, value in found.items()}
    paper = greatest(found[beta] / theory.spread_constant(beta, "paper") for beta in BETAS)
    worst = greatest(ratios, key=lambda beta: ratios[beta])
    measured = (
        f"exact supremum over adapted Δ at β = {worst:g}; at β = {', '.join(f'{beta:g}' for beta in BETAS)} it is "
        f"{', '.join(f'{found[beta]:.4f}' for beta in BETAS)}, at least {least_of(ratios.values()):.3f} of C, "
        f"at most {paper:.3f} of the printed 12"
    )
    tight = greatest(ratios.values()) > 0.99
    return Finding(measured, found[worst], theory.spread_constant(worst), also=tight and paper <= 1)
