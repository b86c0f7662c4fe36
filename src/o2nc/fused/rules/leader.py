"""Learners with M ← keep·M + gain·g, Δ ← lead·M: FTRL, ScaleFree by the joint norm, CoinBetting."""

import triton
import triton.language as tl

from o2nc.backends.triton.rules.linear import at_least, clip_to


@triton.jit
def play_leader(x, g, slots, scale, coefficients, FLOOR: tl.constexpr):
    keep, gain, lead = coefficients
    m = keep * slots[1] + gain * g
    delta = lead * m
    return x + scale * delta, slots[0], (delta, m)


@triton.jit
def measure_leader(g, slots, lr, constants, FLOOR: tl.constexpr):
    m = constants[0] * slots[1] + g
    return g * g, m * m, g * 0  # ‖g‖² and ‖M‖²


@triton.jit
def ftrl_lead(lr, decay_weight, constants):
    beta, decay, radius = constants
    return -lr * beta / (1 + lr * decay * decay_weight)


@triton.jit
def gather_ftrl(lr, kept, sums, constants):
    lead = ftrl_lead(lr, 1 + constants[0] * kept[0], constants)
    return lead * lead * sums[1], 0.0, 0.0, 0.0


@triton.jit
def settle_ftrl(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, decay, radius = constants
    decay_weight = 1 + beta * kept[0]
    lead = ftrl_lead(group[0], decay_weight, constants) * clip_to(radius, joint[0])
    return 1.0, (beta, weight, lead), (decay_weight,)


@triton.jit
def gather_scale_free(lr, kept, sums, constants):
    return constants[1] * kept[0] + sums[0], lr * lr * sums[1], 0.0, 0.0


@triton.jit
def settle_scale_free(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, beta2, radius, floor = constants
    norm = at_least(tl.sqrt(joint[0]), floor)
    clip = clip_to(radius, joint[1] / (norm * norm))
    return 1.0, (beta, weight, -group[0] / norm * clip), (beta2 * kept[0] + sums[0],)


@triton.jit
def gather_coin(lr, kept, sums, constants):
    return sums[0], sums[1], kept[0], kept[1]


@triton.jit
def settle_coin(group, is_new, kept, sums, joint, draw, constants):
    s, weight = draw
    beta, endowment, lipschitz, most = constants
    gain, norms = kept
    square, slope, all_gains, all_norms = joint
    norm = tl.sqrt(square)
    shorten = clip_to(lipschitz, square)
    share = sums[0] / at_least(norm, 2.2250738585072014e-308)
    wealth = endowment + beta * all_gains - shorten * slope
    wealth = at_least(tl.where(wealth > most, most, wealth), 0.0)
    total = beta * all_norms + shorten * norm
    bet = -beta * beta * wealth / (lipschitz * (lipschitz + beta * total))
    kept = (beta * gain - shorten * sums[1], beta * norms + shorten * share)
    return 1.0, (beta, shorten * weight, bet * group[0]), kept
