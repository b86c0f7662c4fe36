"""Slow, obvious float64 twins of the optimizers, written from the paper and used only here.

Everything is summed directly: no recursion for the averages, no discounting trick.
"""

import numpy as np


def weights(n, beta, w):
    """p_{n,t} ∝ β^{n−t} w_t for t = 1..n."""
    p = np.array([beta ** (n - t) * w[t - 1] for t in range(1, n + 1)])
    return p / p.sum()


def averages(xs, gs, beta, w):
    """x̄_n, ḡ_n, V_n and the effective sample size from the whole history, as direct sums."""
    p = weights(len(xs), beta, w)
    x, g = np.array(xs), np.array(gs)
    x_mean = p @ x
    return x_mean, p @ g, float(p @ ((x - x_mean) ** 2).sum(1)), float(1 / (p**2).sum())
