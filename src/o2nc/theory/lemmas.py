"""What the lemmas contribute to a bound: the weights and the constant of spread, the factor of the reductions."""

import math

import numpy as np
from numpy.typing import NDArray

from o2nc import checks

CONSTANTS = ("sharp", "paper")


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


def reduction_factor(constants: str, smoothness: float | None, second_order: float | None) -> float:
    """Return ‖∇F(x)‖/ε of Lemma criterion-reduction, or 1 where ‖∇F(x)‖_c itself is meant."""
    if smoothness is not None:
        return 2.0 if constants == "paper" else 1.25
    return 2.0 if second_order is not None and constants == "paper" else 1.0
