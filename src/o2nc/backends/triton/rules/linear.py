"""Learners with Δ ← keep·Δ + gain·g: OGD, BallOGD, AdaGrad by the joint norm."""

import triton
import triton.language as tl


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)  # unlike tl.maximum this hands a nan on, as torch's clamp does


@triton.jit
def clip_to(radius, square):
    return tl.where(square <= radius * radius, 1.0, radius / tl.sqrt(square))  # nan for nan


@triton.jit
def play_linear(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    keep, gain = coefficients
    delta = keep * slots[0] + gain * g
    return x + scale * delta, slots[0], (delta,)


@triton.jit
def settle_ogd(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, decay, kappa = constants
    h_next = group[0]
    h = tl.where(kept[0] == 0, h_next, kept[0])
    stopped = h_next == 0
    growth = h / (beta * tl.where(stopped, 1.0, h_next)) - 1
    growth = tl.where(kappa == 2, at_least(growth, 0.0), growth)
    shrink = 1 + h * decay / beta + kappa * growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    gain = tl.where(stopped, 0.0, -h / shrink) * weight
    return 1.0, (keep, gain), (h_next,)


@triton.jit
def measure_ball(g, slots, lr, constants, FLOOR: tl.constexpr):
    y = (1 - lr * constants[1]) * slots[0] - lr * g
    return y * y, g * 0


@triton.jit
def gather_ball(lr, kept, sums, constants):
    return sums[0], 0.0, 0.0, 0.0


@triton.jit
def settle_ball(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, decay, radius = constants
    lr = group[0]
    clip = clip_to(radius, joint[0])
    return 1.0, ((1 - lr * decay) * clip, -lr * weight * clip), kept


@triton.jit
def measure_gradient(g, slots, lr, constants, FLOOR: tl.constexpr):
    return g * g, g * slots[0]  # ‖g‖² and ⟨g, Δ⟩


@triton.jit
def gather_adagrad(lr, kept, sums, constants):
    v, beta = kept[0], constants[0]
    return v, beta * beta * v + sums[0], 0.0, 0.0  # v before and after


@triton.jit
def adagrad_sizes(v, v_next, last, scale, beta, kappa, floor):
    """Return e_t and κ(e_t/(βe_{t+1}) − 1)."""
    e_next = scale / (beta * at_least(tl.sqrt(v_next), floor))
    e = tl.where(v > 0, last / (beta * at_least(tl.sqrt(v), floor)), beta * e_next)
    growth = e / (beta * e_next) - 1
    return e, kappa * tl.where(kappa == 2, at_least(growth, 0.0), growth)


@triton.jit
def settle_adagrad(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, decay, kappa, floor = constants
    v, last = kept
    scale = group[0]
    stopped = scale == 0
    last = tl.where(last == 0, scale, last)
    e, growth = adagrad_sizes(joint[0], joint[1], last, tl.where(stopped, 1.0, scale), beta, kappa, floor)
    keep = tl.where(stopped, 0.0, 1 / (1 + e * decay / beta + growth))
    return 1.0, (keep, -e * weight * keep), (beta * beta * v + sums[0], scale)
