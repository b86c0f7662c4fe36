"""Learners by coordinate: AdaGrad (b is v) and ScaleFree, which is Adam (b is M, c is v)."""

import triton
import triton.language as tl

from o2nc.backends.triton.rules.linear import adagrad_sizes, at_least, clip_to


@triton.jit
def settle_diagonal_adagrad(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    scale = tl.load(at)
    last = tl.where(h0 == 0, scale, h0)
    # c3 = μ/β; κ rides on the sign of c4 = ±β
    kappa = tl.load(k + 2)
    beta = tl.load(k)
    return s, 1.0, 0.0, scale, w, last, tl.load(k + 1) / beta, tl.where(kappa == 2, -beta, beta), scale, h1


@triton.jit
def play_diagonal_adagrad(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    g = c1 * d
    beta = tl.abs(c4)
    v = beta * beta * b + g * g
    stopped = c0 == 0
    kappa = tl.where(c4 < 0, 2.0, 1.0)
    e, growth = adagrad_sizes(b, v, c2, tl.where(stopped, 1.0, c0), beta, kappa, FLOOR)
    delta = (a - e * g) / (1 + e * c3 + growth)
    delta = tl.where(stopped, 0.0, delta)
    return delta, delta, v, c


@triton.jit
def play_adam(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    g = c1 * d
    m = c0 * b + g
    v = c2 * c + g * g
    delta = c3 * (m / at_least(tl.sqrt(v), FLOOR))
    return delta, delta, m, v


@triton.jit
def measure_adam(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    beta = tl.load(k)
    r = (beta * b + d) / at_least(tl.sqrt(beta * beta * c + d * d), FLOOR)
    return r * r, d * 0


@triton.jit
def gather_adam(lr, h0, h1, p, q, k):
    return lr * lr * p, p * 0, p * 0, p * 0


@triton.jit
def settle_adam(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    clip = clip_to(tl.load(k + 1), j0)
    return s, 1.0, 0.0, beta, w, beta * beta, -tl.load(at) * clip, 0.0, h0, h1
