"""A step that somebody else takes: iterates and gradients are only taken in; the slot is the last iterate."""

import triton
import triton.language as tl


@triton.jit
def settle_observed(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    return 1.0 / s, (s,), kept


@triton.jit
def play_observed(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    return x, x - slots[0], (x,)
