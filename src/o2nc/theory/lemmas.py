"""What the lemmas contribute to a bound: the constant of spread, the law of the output."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from o2nc import checks

CONSTANTS = ("sharp", "paper")
OUTPUTS = ("uniform", "geometric")
PRINTED = 12.0  # C in the paper
Found = TypeVar("Found")


def in_float64(compute: Callable[[], Found], valid: Callable[[Found], bool], **constants: Any) -> Found:
    """Return ``compute()``, or raise a ValueError that names the constants where float64 has no room for it."""
    try:
        if valid(found := compute()):
            return found
    except ArithmeticError:  # a division by 0 that was none, or an overflow
        pass
    given = ", ".join(f"{name}={value!r}" for name, value in constants.items() if value is not None)
    raise ValueError(f"{given} are out of float64's range together: choose other units")


def least(at: Callable[[float], tuple[float, Found]], low: float) -> Found:
    """Return what belongs to the α in [low, ½] with the least value: on a grid of log α, then between neighbours."""
    start, end = math.log(low), math.log(0.5)
    width = (end - start) / 39
    found = {x: at(math.exp(x)) for x in np.linspace(start, end, 40).tolist()}
    best = min(found, key=lambda x: found[x][0])
    while width > 1e-10:
        width /= 2
        found = {x: at(math.exp(x)) for x in (best - width, best + width) if start <= x <= end} | {best: found[best]}
        best = min(found, key=lambda x: found[x][0])
    return found[best][1]


def spread_constant(beta: float, *, second_moment: float = 2.0) -> float:
    """Return C of the variance lemma, Σ_n E V_n <= (C/(1 − β)²) Σ_n E‖Δ_n‖²: at most 1 for Exp(1); 12 is printed.

    C = β((β + q)/(1 + β))² with q² = β² + (1 − β²)·E s²; it holds under the law `output_weights` as well, and there
    for every E s².

    Args:
        beta: β in (0, 1).
        second_moment: E s² of a law of mean 1, which Exp(1) has 2 of.

    Example:
        >>> [round(spread_constant(beta), 3) for beta in (0.5, 0.9, 0.99)]
        [0.738, 0.988, 1.0]
    """
    checks.fraction("beta", beta)
    checks.number("second_moment", second_moment, "a finite number >= 1", lambda v: v >= 1)
    q = math.sqrt(beta**2 + (1 - beta) * (1 + beta) * second_moment)
    return beta * ((beta + q) / (1 + beta)) ** 2


def output_weights(n: int, beta: float) -> NDArray[np.float64]:
    """Return P(1), …, P(N), the law of the index n in the output x̄_n that is called "geometric".

    P(n) = (1 − β^n)/N and P(N) = (1 − β^N)/((1 − β)N): draw t uniformly from 1 … N, then wait for a geometric time,
    at most to the end. It forgets the first averages, which have seen little. The paper draws n uniformly.

    Args:
        n: N >= 1.
        beta: β in (0, 1), the discount of the averages.

    Example:
        >>> output_weights(3, 0.5)
        array([0.16666667, 0.25      , 0.58333333])
    """
    checks.known(n=n, beta=beta)
    weights: NDArray[np.float64] = -np.expm1(np.arange(1.0, n + 1) * math.log(beta)) / n
    weights[-1] /= 1 - beta
    return weights
