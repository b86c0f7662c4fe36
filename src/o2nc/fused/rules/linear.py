"""Learners with Δ ← keep·Δ + gain·g: OGD, BallOGD, AdaGrad by the joint norm, BallAdaGrad."""

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
    return y * y, g * 0, g * 0


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
    return g * g, g * slots[0], slots[0] * slots[0]  # ‖g‖², ⟨g, Δ⟩ and ‖Δ‖²


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


@triton.jit
def gather_ball_adagrad(lr, kept, sums, constants):
    beta = constants[0]
    square, slope, length = sums
    stopped = lr == 0
    inverse = tl.where(stopped, 0.0, 1 / tl.where(stopped, 1.0, lr))
    slope = tl.where(stopped, 0.0, slope)
    # of v and of ‖g‖² in y = Δ/lr, ⟨g, Δ⟩, and ‖y‖²
    return lr * lr * (beta * beta * kept[0] + square), lr * lr * square, slope, length * inverse * inverse


@triton.jit
def settle_ball_adagrad(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, floor = constants
    lr = group[0]
    v, square, slope, length = joint
    stopped = lr == 0
    root = tl.sqrt(v)
    size = 1.4142135623730951 * lr / at_least(root / tl.where(stopped, 1.0, lr), floor)
    # of y after the step, Δ_p − size_p·g_p with size_p = √2·lr_p²/root; where root = 0, g = 0
    per = tl.where(root > 0, 1.4142135623730951 / tl.where(root > 0, root, 1.0), 0.0)
    clip = clip_to(1.0, length - 2 * per * slope + per * per * square)
    keep = tl.where(stopped, 0.0, clip)
    return 1.0, (keep, -size * weight * keep), (beta * beta * kept[0] + sums[0],)
