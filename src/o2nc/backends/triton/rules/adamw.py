"""AdamW as torch's fused kernel has it since 2.11, rounding included; slots m, v, and for amsgrad the largest v."""

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.interpreter import InterpretedFunction


@triton.jit
def nothing():
    pass


INTERPRETED = tl.constexpr(isinstance(nothing, InterpretedFunction))


@triton.jit
def root_of(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)  # as IEEE has it


@triton.jit
def ratio_of(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def power(beta, step):
    if INTERPRETED:
        return tl.where(beta > 0, tl.exp(step * tl.log(tl.where(beta > 0, beta, 1.0))), 0.0)
    else:
        return libdevice.pow(beta, step)


@triton.jit
def corrections(beta1, beta2, step):
    """Return 1 − β₁^t and √(1 − β₂^t)."""
    return 1 - power(beta1, step), root_of(1 - power(beta2, step))


@triton.jit
def settle_adamw(group, is_new, kept, sums, joint, draw, constants):
    lr, beta1, beta2, eps, decay = group
    s, weight = draw
    step, last_move, last_decay = kept
    move = lr * s
    first, root = corrections(beta1, beta2, step + 1)
    # for parameters of float32 and below torch does this in float32, too
    low_first, low_root = corrections(beta1.to(tl.float32), beta2.to(tl.float32), (step + 1).to(tl.float32))
    last_first, last_root = corrections(beta1, beta2, tl.where(step > 0, step, 1.0))
    back = 1 / (1 - last_move * last_decay)
    now = (beta1, beta2, eps, move, decay, first, root, low_first.to(tl.float64), low_root.to(tl.float64))
    before = (last_move, last_decay, 1 / last_first, 1 / last_root, back)  # of the step that led here
    return -lr, now + before, (step + 1, move, decay)


@triton.jit
def play_with(x, g, m, v, most, coefficients, AMSGRAD: tl.constexpr):
    """Return x, the direction of the Δ = −lr·u that led to it, m, v, and the largest v."""
    beta1, beta2, eps, move, decay = coefficients[0:5]
    first, root = coefficients[7:9] if x.dtype == tl.float32 else coefficients[5:7]
    last_move, last_decay, last_first, last_root, back = coefficients[9:14]
    u = m * last_first / (tl.sqrt(most) * last_root + eps)
    last = u + last_decay * ((x + last_move * u) * back)
    square = g * g
    m = tl.fma(beta1, m, tl.fma(-beta1, g, g))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    most = tl.maximum(most, v) if AMSGRAD else v
    x = tl.fma(-(move * decay), x, x)
    below = ratio_of(root_of(most), tl.zeros_like(most) + root) + eps
    return x - ratio_of(ratio_of(move, first) * m, below), last, m, v, most


@triton.jit
def play_adamw(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    x, last, m, v, most = play_with(x, g, slots[0], slots[1], slots[1], coefficients, False)
    return x, last, (m, v)


@triton.jit
def play_amsgrad(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    x, last, m, v, most = play_with(x, g, slots[0], slots[1], slots[2], coefficients, True)
    return x, last, (m, v, most)
