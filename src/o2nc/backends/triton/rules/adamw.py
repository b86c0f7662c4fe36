"""AdamW as torch's fused kernel has it, rounding included; slots m and v, and the largest v so far for amsgrad.

Discounts and decay are applied in float64, the rest in the parameter's precision.
"""

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
    first = tl.where(step > 0, 1 - tl.exp(step * tl.log(beta1)), 1.0)
    second = tl.where(step > 0, 1 - tl.exp(step * tl.log(beta2)), 1.0)
    return tl.where(beta1 > 0, first, 1.0), tl.where(beta2 > 0, tl.sqrt(second), 1.0)


@triton.jit
def settle_adamw(group, is_new, kept, sums, joint, draw, constants):
    lr, beta1, beta2, eps, decay = group
    s, weight = draw
    step, last_move, last_decay = kept
    move = lr * s
    last_first, last_root = corrections(beta1, beta2, step)
    first, root = corrections(beta1, beta2, step + 1)
    coefficients = (beta1, beta2, eps, move, move * decay, first, root, last_move, last_decay, last_first, last_root)
    return -lr, coefficients, (step + 1, move, decay)


@triton.jit
def last_of(x, m, v, coefficients):
    """Return u of the Δ = −lr·u that led to x."""
    beta1, beta2, eps, move, shrink, first, root, last_move, last_decay, last_first, last_root = coefficients
    u = m / last_first.to(x.dtype) / (tl.sqrt(v) / last_root.to(x.dtype) + eps.to(x.dtype))
    before = (x + last_move.to(x.dtype) * u) / (1 - last_move * last_decay).to(x.dtype)
    return u + last_decay.to(x.dtype) * before


@triton.jit
def moved(x, m, v, coefficients):
    beta1, beta2, eps, move, shrink, first, root, last_move, last_decay, last_first, last_root = coefficients
    size = (move / first.to(x.dtype).to(tl.float64)).to(x.dtype)
    below = (ratio_of(root_of(v), root.to(x.dtype) + x * 0).to(tl.float64) + eps).to(x.dtype)
    x = (x.to(tl.float64) - shrink * x.to(tl.float64)).to(x.dtype)
    return x - ratio_of(size * m, below)


@triton.jit
def moments(g, m, v, coefficients):
    beta1, beta2, eps, move, shrink, first, root, last_move, last_decay, last_first, last_root = coefficients
    wide = g.to(tl.float64)
    m = (beta1 * m.to(tl.float64) + (1 - beta1) * wide).to(g.dtype)
    v = (beta2 * v.to(tl.float64) + (1 - beta2) * wide * wide).to(g.dtype)
    return m, v


@triton.jit
def play_adamw(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    last = last_of(x, slots[0], slots[1], coefficients)
    m, v = moments(g, slots[0], slots[1], coefficients)
    return moved(x, m, v, coefficients), last, (m, v)


@triton.jit
def play_amsgrad(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    last = last_of(x, slots[0], slots[2], coefficients)
    m, v = moments(g, slots[0], slots[1], coefficients)
    most = tl.maximum(slots[2], v)
    return moved(x, m, most, coefficients), last, (m, v, most)
