"""Learners with Δ ← c0·Δ + c1·g: OGD, BallOGD, AdaGrad by the joint norm."""

import triton
import triton.language as tl


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)  # unlike tl.maximum this hands a nan on, as torch's clamp does


@triton.jit
def clip_to(radius, square):
    return tl.where(square <= radius * radius, 1.0, radius / tl.sqrt(square))  # nan for nan


@triton.jit
def play_linear(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    delta = c0 * a + c1 * d
    return delta, delta, b, c


@triton.jit
def settle_ogd(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    decay = tl.load(k + 1)
    kappa = tl.load(k + 2)
    h_next = tl.load(at)
    h = tl.where(h0 == 0, h_next, h0)
    stopped = h_next == 0
    growth = h / (beta * tl.where(stopped, 1.0, h_next)) - 1
    growth = tl.where(kappa == 2, at_least(growth, 0.0), growth)
    shrink = 1 + h * decay / beta + kappa * growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    gain = tl.where(stopped, 0.0, -h / shrink) * w
    return s, 1.0, 0.0, keep, gain, 0.0, 0.0, 0.0, h_next, h1


@triton.jit
def measure_ball(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    y = (1 - lr * tl.load(k + 1)) * a - lr * d
    return y * y, d * 0


@triton.jit
def gather_ball(lr, h0, h1, p, q, k):
    return p, p * 0, p * 0, p * 0


@triton.jit
def settle_ball(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    lr = tl.load(at)
    clip = clip_to(tl.load(k + 2), j0)
    return s, 1.0, 0.0, (1 - lr * tl.load(k + 1)) * clip, -lr * w * clip, 0.0, 0.0, 0.0, h0, h1


@triton.jit
def measure_gradient(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    return d * d, d * a  # ‖g‖² and ⟨g, Δ⟩


@triton.jit
def gather_adagrad(lr, h0, h1, p, q, k):
    beta = tl.load(k)
    return h0, beta * beta * h0 + p, p * 0, p * 0  # v before and after


@triton.jit
def adagrad_sizes(v, v_next, last, scale, beta, kappa, floor):
    """Return e_t and κ(e_t/(βe_{t+1}) − 1)."""
    e_next = scale / (beta * at_least(tl.sqrt(v_next), floor))
    e = tl.where(v > 0, last / (beta * at_least(tl.sqrt(v), floor)), beta * e_next)
    growth = e / (beta * e_next) - 1
    return e, kappa * tl.where(kappa == 2, at_least(growth, 0.0), growth)


@triton.jit
def settle_adagrad(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    kappa = tl.load(k + 2)
    scale = tl.load(at)
    stopped = scale == 0
    last = tl.where(h1 == 0, scale, h1)
    e, growth = adagrad_sizes(j0, j1, last, tl.where(stopped, 1.0, scale), beta, kappa, tl.load(k + 3))
    shrink = 1 + e * tl.load(k + 1) / beta + growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    return s, 1.0, 0.0, keep, -e * w * keep, 0.0, 0.0, 0.0, beta * beta * h0 + p, scale
