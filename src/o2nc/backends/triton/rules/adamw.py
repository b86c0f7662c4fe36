"""AdamW as torch's fused kernel has it since 2.11, rounding included; slots m, v, and for amsgrad the largest v."""

import triton
import triton.language as tl


@triton.jit
def root_of(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)  # as IEEE has it


@triton.jit
def ratio_of(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def corrections(beta1, beta2, step):
    """Return 1 − β₁^t and √(1 − β₂^t); 1 before the first step."""
    first = 1 - tl.where(beta1 > 0, tl.exp(step * tl.log(tl.where(beta1 > 0, beta1, 1.0))), 0.0)
    second = 1 - tl.where(beta2 > 0, tl.exp(step * tl.log(tl.where(beta2 > 0, beta2, 1.0))), 0.0)
    return tl.where(step > 0, first, 1.0), tl.where(step > 0, tl.sqrt(second), 1.0)


@triton.jit
def settle_adamw(group, is_new, kept, sums, joint, draw, constants):
    lr, beta1, beta2, eps, decay = group
    s, weight = draw
    step, last_move, last_decay = kept
    move = lr * s
    first, root = corrections(beta1, beta2, step + 1)
    last_first, last_root = corrections(beta1, beta2, step)
    back = 1 / (1 - last_move * last_decay)
    before = (last_move, last_decay, 1 / last_first, 1 / last_root, back)  # of the step that led here
    return -lr, (beta1, beta2, eps, move, decay, first, root) + before, (step + 1, move, decay)


@triton.jit
def play_with(x, g, m, v, most, coefficients, AMSGRAD: tl.constexpr):
    """Return x, the direction of the Δ = −lr·u that led to it, m, v, and the largest v."""
    beta1, beta2, eps, move, decay, first, root, last_move, last_decay, last_first, last_root, back = coefficients
    u = m * last_first / (tl.sqrt(most) * last_root + eps)
    last = u + last_decay * ((x + last_move * u) * back)
    square = g * g
    m = tl.fma(beta1, m, tl.fma(-beta1, g, g))
    v = tl.fma(beta2, v, tl.fma(-beta2, square, square))
    most = tl.maximum(most, v) if AMSGRAD else v
    x = tl.fma(-(move * decay), x, x)
    below = ratio_of(root_of(most), root + x * 0) + eps
    return x - ratio_of(ratio_of(move, first) * m, below), last, m, v, most


@triton.jit
def play_adamw(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    x, last, m, v, most = play_with(x, g, slots[0], slots[1], slots[1], coefficients, False)
    return x, last, (m, v)


@triton.jit
def play_amsgrad(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    x, last, m, v, most = play_with(x, g, slots[0], slots[1], slots[2], coefficients, True)
    return x, last, (m, v, most)
