"""AdamW as torch's fused kernel has it since 2.11, rounding included; slots m, v, and for amsgrad the largest v."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from o2nc.backends.triton.kernels import LR, NUMBERS


def powers_(out: Tensor, numbers: Tensor, group_of: Tensor, kept: Tensor) -> None:
    """Set β₁^t, β₂^t in float64, then in float32, of the step to come.

    By torch, whose fused step has the same power; those of Triton and of a host round otherwise.

    Args:
        out: four rows, a column for every parameter.
        numbers: of all groups, as `settle` gets them.
        group_of: the group of every parameter.
        kept: rows of the numbers that are kept of every parameter.
    """
    betas = numbers.view(-1, NUMBERS.value)[:, LR.value + 1 : LR.value + 3][group_of].T
    step = kept[0] + 1
    torch.pow(betas, step, out=out[:2])
    out[2:].copy_(torch.pow(betas.float(), step.float()))


@triton.jit
def root_of(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)  # as IEEE has it


@triton.jit
def ratio_of(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def settle_adamw(group, is_new, kept, sums, joint, draw, constants):
    lr, beta1, beta2, eps, decay = group
    s, weight = draw
    step, last_move, last_decay, last_ratio, last_floor = kept
    move = lr * s
    power1, power2, low1, low2 = sums
    # for parameters of float32 and below torch does this in float32, too
    low_first = (1 - low1.to(tl.float32)).to(tl.float64)
    low_root = root_of(1 - low2.to(tl.float32)).to(tl.float64)
    first = 1 - power1
    root = root_of(1 - power2)
    now = (beta1, beta2, eps, move, decay, first, root, low_first, low_root)
    last_floor = tl.where(last_ratio > 0, last_floor, 1.0)  # before the first one m and v are zero
    before = (last_move, last_decay, last_ratio, last_floor, 1 / (1 - last_move * last_decay))
    return -lr, now + before, (step + 1, move, decay, root / first, root * eps)


@triton.jit
def play_with(x, g, m, v, most, coefficients, AMSGRAD: tl.constexpr):
    """Return x, the direction of the Δ = −lr·u that led to it, m, v, and the largest v."""
    beta1, beta2, eps, move, decay = coefficients[0:5]
    first, root = coefficients[7:9] if x.dtype == tl.float32 else coefficients[5:7]
    last_move, last_decay, last_ratio, last_floor, back = coefficients[9:14]  # of the step that led here
    u = m * last_ratio / (tl.sqrt(most) + last_floor)
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
