"""What a law of s costs when it is used without weights: how long its renewal process remembers where it began.

Let s >= 0 have mean 1, U′ be its renewal density (where the sums of independent copies of s fall) and k = U′ − 1. The
identity of random scaling then holds up to a term that telescopes over a run, up to G·L·Σ‖Δ_{t+1} − Δ_t‖ with the
price L = ∫ u |dk(u)|: docs/paper.md, section 9, has the proof. Where k is monotone, L = |E s²/2 − 1|. Where s hardly
varies, L is nearly 1/(48 Var²).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NARROW = 1e-3  # the variance up to which the leading term stands for the price: 1 % above it there
_CELLS = 1 << 18  # of the grid, or 32 to a standard deviation where those are more


def price(cdf: Callable[[Array], Array], variance: float, jumps: Sequence[tuple[float, float]] = ()) -> float:
    """Return L of a law of mean 1, to about four digits.

    Args:
        cdf: its distribution function, for arrays.
        variance: Var s > 0.
        jumps: where its density jumps away from 0, and by how much; they are atoms of dk.

    Example:
        The density 4u·e^{−2u} has k = −e^{−4u}, so that L = ¼.

        >>> round(price(lambda u: 1 - (1 + 2 * u) * np.exp(-2 * u), variance=0.5), 4)
        0.25
    """
    if variance <= _NARROW:
        return 1 / (48 * variance**2)
    atoms = sum(u * abs(jump) for u, jump in jumps)
    coarse = math.sqrt(variance) / 32
    horizon = max(16.0, 1.5 / variance)  # memory fades like e^{−2π²Var·u}
    while True:
        value, tail = _variation(cdf, jumps, coarse, horizon)
        if tail <= 1e-6 * (atoms + value):
            break
        horizon *= 2
    h = min(coarse, horizon / _CELLS)
    return atoms + _variation(cdf, jumps, h, horizon)[0]


def _variation(
    cdf: Callable[[Array], Array], jumps: Sequence[tuple[float, float]], h: float, horizon: float
) -> tuple[float, float]:
    """Return ∫ u|dk(u)| without the atoms of dk, and the latter half of it, for s rounded to multiples of h.

    The differences of the renewal sequence have the generating function (1 − z)P/(1 − P), which has no pole: it is
    evaluated at the roots of unity, and what is left of them after the horizon counts as nothing.
    """
    count = 1 << math.ceil(math.log2(horizon / h))  # cells, a power of 2
    edges: Array = h * (np.arange(count, dtype=np.float64) + 0.5)
    mass = np.diff(cdf(edges), prepend=0.0)
    stepped = np.zeros(count)  # what of it is under the jumps alone
    for u, jump in jumps:
        stepped += jump * np.clip(edges - u, 0.0, h)
    p, r = np.fft.rfft(mass), np.fft.rfft(mass - stepped)
    turn = 1 - np.exp(-2j * np.pi * np.arange(len(p)) / count)
    p[0] = 0.0  # there 1 − P is 0, and the quotient's limit is one over the mean
    differences = turn * (r + p**2 / (1 - p))
    differences[0] = 1 / (np.arange(count) @ mass)
    terms = np.abs(np.fft.irfft(differences, count)) * np.maximum(np.arange(count) - 0.5, 0.0)
    return float(terms.sum()), float(terms[count // 2 :].sum())
