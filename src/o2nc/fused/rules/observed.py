"""A step that somebody else takes: iterates and gradients are only taken in; the slot is the last iterate."""

import triton
import triton.language as tl


@triton.jit
def settle_observed(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    rate = 1.0 / tl.where(s > 0, s, 1.0)
    return tl.where((s > 0) & (rate < float("inf")), rate, 0.0), (s,), kept  # where nothing moves Δ is not seen


@triton.jit
def play_observed(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    last = x - slots[0]
    # x in either case, but not before the last one is there: storing it earlier costs a factor 3 on an H200
    return x, last, (tl.where(last == 0, slots[0], x),)
