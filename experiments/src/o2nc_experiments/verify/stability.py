"""Momentum on F = λx²/2 with random steps or random queries: exact second moments, and where they grow.

A step multiplies the state by A + ωB with a random number ω that is independent of it. The state's second moments
E z⊗z are then multiplied by E (A + ωB)⊗(A + ωB), which knows of ω only its first two moments. With h = ℓλ and
p = m/λ the state is (x, p), or (x, p, Δ) where the last update is needed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from o2nc import Exponential, Gamma, Jitter, scaling, theory
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, mean_error, statement
from o2nc_experiments.verify.traces import Array

UNIT_QUERY = (0.5, 1 / 3)  # the moments of the lag 1 − u, u ~ U[0, 1]
_MOST = 10.0  # nothing bears a larger h


class Motion(NamedTuple):
    """The state's factor A + ωB."""

    fixed: Array  # A
    random: Array  # B

    def second(self, first: float, square: float) -> Array:
        """Return E (A + ωB)⊗(A + ωB) for E ω and E ω²."""
        a, b = self
        return np.kron(a, a) + first * (np.kron(a, b) + np.kron(b, a)) + square * np.kron(b, b)


def random_step(h: float, b: float, nesterov: bool = False) -> Motion:
    """Return torch's SGD, its step multiplied by ω = s: p ← bp + x, x ← x − hsp, or with the lead x − hs(x + bp)."""
    moved = [-h * (1 + b), -h * b**2] if nesterov else [-h, -h * b]
    return Motion(np.array([[1, 0], [1, b]]), np.array([moved, [0, 0]]))


def random_query(h: float, b: float, nesterov: bool = False) -> Motion:
    """Return SGD with full steps Δ whose gradient is asked for at y = x − ωΔ, ω being the lag behind x."""
    row = [-h * (1 + b), -h * b**2, 0] if nesterov else [-h, -h * b, 0]
    lag = h * (1 + b) if nesterov else h
    return Motion(
        np.array([np.add([1, 0, 0], row), [1, b, 0], row]), np.array([[0, 0, lag], [0, 0, -1], [0, 0, lag]])
    )


def growth(motion: Motion, first: float, square: float) -> float:
    """Return by which factor second moments grow a step, in the end."""
    return float(np.abs(np.linalg.eigvals(motion.second(first, square))).max())


def threshold(motion: Callable[[float], Motion], first: float, square: float) -> float:
    """Return the h up to which second moments do not grow, by bisection; growth passes 1 once."""
    low, high = 0.0, _MOST
    for _ in range(50):
        middle = (low + high) / 2
        grows = growth(motion(middle), first, square) > 1
        low, high = (low, middle) if grows else (middle, high)
    return low


@statement("stability", "E x² bounded: 1/ℓλ > 1/(2+2b) + Var s/(2−2b)")
def stability(seed: int, scale: float) -> Finding:
    """The ℓλ that momentum bears against where the moments' recursion begins to grow, and runs that follow it."""
    worst = (0.0, 1.0, 1.0)
    for b in (0.0, 0.5, 0.9, 0.99):
        for law in (None, Jitter(0.25), Jitter(1), Gamma(4), Exponential()):
            for nesterov in (False, True):
                left = theory.stable_lr(b, law, nesterov=nesterov)
                moments = scaling.mean(law), scaling.second_moment(law)
                right = threshold(partial(random_step, b=b, nesterov=nesterov), *moments)
                worst = greatest(worst, (abs(left / right - 1), left, right))
    runs, steps, deviation = enough(1500, scale, 400), 12, 0.0
    for law in (Exponential(), Jitter(1)):
        motion = random_step(0.5 * theory.stable_lr(0.9, law), 0.9)
        square = np.linalg.matrix_power(motion.second(1.0, law.second_moment), steps)[0, 0]  # from (x, p) = (1, 0)
        s = np.array([[law.sample(k, n) for n in range(2, steps + 2)] for k in range(seed, seed + runs)])
        mean, error = mean_error((walk(motion, s)[:, 0] ** 2).tolist())
        deviation = greatest(deviation, abs(mean - square) / error)
    measured = (
        f"furthest from the recursion's of 40 thresholds: b = 0, 0.5, 0.9, 0.99, 5 laws, with and without lead; E x² "
        f"of {runs} runs is the recursion's within {deviation:.1f} standard errors (limit {Z:g})"
    )
    return Finding(measured, worst[1], worst[2], "==", also=deviation <= Z, tolerance=1e-6 * worst[2])


def walk(motion: Motion, numbers: Array) -> Array:
    """Return the states of runs, a row each, that begin at (1, 0, …) and draw a row of ``numbers``."""
    z = np.zeros((len(numbers), len(motion.fixed)))
    z[:, 0] = 1.0
    for drawn in numbers.T:
        z = z @ motion.fixed.T + drawn[:, None] * (z @ motion.random.T)
    return z
