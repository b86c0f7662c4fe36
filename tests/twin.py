"""Slow, obvious twins of the averages and of the energy theorem; a learner played without an optimizer around it.

Averages are summed directly: no recursion, no γ.
"""

import math

import numpy as np
import torch

from problem import flat


def weights(window, n, w=None):
    """Return p_{n,1}, …, p_{n,n}: β^{n−t} or Γ(j + r)/Γ(j) of those that count, times w_t, and 0 of the others."""
    if isinstance(window, float):
        return _normalized([window ** (n - t) for t in range(1, n + 1)], w)
    p, j = np.zeros(n), 0
    for t in range(1, n + 1):
        if t > window.start and (t - window.start - 1) % window.every == 0:
            j += 1
            if hasattr(window, "beta"):
                p[t - 1] = window.beta ** (n - t)
            else:
                p[t - 1] = math.exp(math.lgamma(j + window.power) - math.lgamma(j) - math.lgamma(window.power + 1))
    return _normalized(p, w)


def _normalized(p, w):
    p = np.asarray(p) * (1.0 if w is None else np.asarray(w))
    return p / p.sum()


def averages(xs, gs, window, w=None):
    """Return x̄_n, ḡ_n, V_n and the effective sample size from the whole history, as direct sums."""
    p = weights(window, len(xs), w)
    x, g = np.array(xs), np.array(gs)
    x_mean = p @ x
    return x_mean, p @ g, float(p @ ((x - x_mean) ** 2).sum(1)), float(1 / (p**2).sum())


def seen(gradients):
    """Return a parameter's gradients as ḡ has them: None is zero, but the first one stands for all before it."""
    first = next(t for t, g in enumerate(gradients) if g is not None)
    zero = np.zeros_like(gradients[first])
    return [gradients[first] if t < first else zero if g is None else g for t, g in enumerate(gradients)]


def joined(p, first):
    """Return the weights of a parameter whose first gradient, at this place, stands for all before it."""
    return np.array([p[: first + 1].sum(), *p[first + 1 :]])


def energy_bound(n, beta, eta, *, c, gap, lipschitz, noise=0.0, output="geometric", lib=math):
    """Return the bound of the theorem for β = b and a constant lr = ηβ, as docs/paper.md prints it."""
    alpha, a2 = 1 - beta, lipschitz**2 + noise**2
    spread = beta * ((beta + lib.sqrt(2 - beta**2)) / (1 + beta)) ** 2
    t, keep = 2 * gap / eta + a2 * n, 1 - beta**2
    last = c * spread * eta**2 * beta**2 * t / (alpha**2 * keep * n) if n > 1 else 0  # one point has no spread
    if output == "geometric":
        root = lib.sqrt((alpha**2 * (n - 1) / keep + 1) * t) / n
        return root + noise * (alpha * (n - 1) + 1) / (n * lib.sqrt(keep)) + last
    start = lipschitz * beta * (1 - beta**n) / (alpha * n)
    return start + alpha / n * lib.sqrt(((n - 1) / keep + 1) * t) + noise * alpha / lib.sqrt(keep) + last


def play(learner, gradient, beta, lrs=None, *, shapes=((2,), (), (1, 2)), dtype=torch.float64):
    """Return g_1, …, g_n and Δ_1, …, Δ_{n+1}, a row each, all tensors in one vector.

    ``gradient`` is a function of t and Δ_t, or has a row for each t; ``lrs`` has an lr, or one per tensor, each t, by
    default the learner's own.
    """
    lrs = [learner.lr] * len(gradient) if lrs is None else lrs
    deltas = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    states, gs, played = [learner.init(delta) for delta in deltas], [], [flat(deltas)]
    for t, lr in enumerate(lrs, 1):
        gs.append(gradient(t, played[-1]) if callable(gradient) else gradient[t - 1])
        parts = torch.as_tensor(gs[-1]).to(dtype).split([delta.numel() for delta in deltas])
        grads = [part.reshape(delta.shape) for part, delta in zip(parts, deltas, strict=True)]
        learner.update(deltas, grads, states, lr if isinstance(lr, list) else [lr] * len(deltas), beta)
        played.append(flat(deltas))
    return np.array(gs), np.array(played)
