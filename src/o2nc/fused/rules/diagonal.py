"""Learners by coordinate: AdaGrad, with slots Δ and v, and ScaleFree, which is Adam, with slots M and v."""

import triton
import triton.language as tl

from o2nc.backends.triton.rules.linear import adagrad_sizes, at_least, clip_to


@triton.jit
def settle_diagonal_adagrad(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, decay, kappa = constants
    scale = group[0]
    last = tl.where(kept[0] == 0, scale, kept[0])
    return 1.0, (scale, last, weight, beta, decay / beta, kappa), (scale,)


@triton.jit
def play_diagonal_adagrad(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    size, last, weight, beta, pull, kappa = coefficients
    last_delta, v = slots
    g = weight * g
    v_next = beta * beta * v + g * g
    stopped = size == 0
    e, growth = adagrad_sizes(v, v_next, last, tl.where(stopped, 1.0, size), beta, kappa, FLOOR)
    delta = tl.where(stopped, 0.0, (last_delta - e * g) / (1 + e * pull + growth))
    return x + scale * delta, last_delta, (delta, v_next)


@triton.jit
def play_adam(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    keep, keep_square, gain, lead, last_lead = coefficients
    m, v = slots
    last = -last_lead * (m / at_least(tl.sqrt(v), FLOOR))
    g = gain * g
    m = keep * m + g
    v = keep_square * v + g * g
    delta = lead * (m / at_least(tl.sqrt(v), FLOOR))
    return x + scale * delta, last, (m, v)


@triton.jit
def measure_adam(g, slots, lr, constants, FLOOR: tl.constexpr):
    m, v = slots
    ratio = (constants[0] * m + g) / at_least(tl.sqrt(constants[1] * v + g * g), FLOOR)
    return ratio * ratio, g * 0, g * 0


@triton.jit
def gather_adam(lr, kept, sums, constants):
    return lr * lr * sums[0], 0.0, 0.0, 0.0


@triton.jit
def settle_adam(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, beta2, radius = constants
    lead = group[0] * clip_to(radius, joint[0])
    return 1.0, (beta, beta2, weight, -lead, kept[0]), (lead,)
