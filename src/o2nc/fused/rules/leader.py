"""Learners with M ← keep·M + gain·g, Δ ← lead·M: FTRL, ScaleFree by the joint norm, CoinBetting."""

from typing import Any

import triton
import triton.language as tl

from o2nc.fused.rule import Rule, learner_rule, smallest
from o2nc.fused.rules.linear import at_least, clip_to, measure_gradient


@triton.jit
def leader_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    keep, gain, lead = own
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
def ftrl_terms(lr, kept, sums, constants):
    lead = ftrl_lead(lr, 1 + constants[0] * kept[0], constants)
    return lead * lead * sums[1], 0.0, 0.0, 0.0


@triton.jit
def ftrl_coefficients(group, kept, sums, joint, s, constants):
    beta, decay, radius = constants
    decay_weight = 1 + beta * kept[0]
    lead = ftrl_lead(group[0], decay_weight, constants) * clip_to(radius, joint[0])
    return 1.0, (beta, 1.0, lead), (decay_weight,)


@triton.jit
def scale_free_terms(lr, kept, sums, constants):
    return constants[1] * kept[0] + sums[0], lr * lr * sums[1], 0.0, 0.0


@triton.jit
def scale_free_coefficients(group, kept, sums, joint, s, constants):
    beta, beta2, radius, floor = constants
    norm = at_least(tl.sqrt(joint[0]), floor)
    clip = clip_to(radius, joint[1] / (norm * norm))
    return 1.0, (beta, 1.0, -group[0] / norm * clip), (beta2 * kept[0] + sums[0],)


@triton.jit
def coin_terms(lr, kept, sums, constants):
    return sums[0], sums[1], kept[0], kept[1]


@triton.jit
def coin_coefficients(group, kept, sums, joint, s, constants):
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
    return 1.0, (beta, shorten, bet * group[0]), kept


def ftrl(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `FTRL`."""
    constants = (beta, learner.decay, learner.radius)
    joint = {"measure": measure_leader, "reduce": ftrl_terms} if learner.radius != float("inf") else {}
    functions = {"coefficients": ftrl_coefficients, "own": 3, "numbers": ("decay_weight",)} | joint
    return learner_rule(groups, leader_update, "delta", "momentum", constants=constants, **functions)


def scale_free(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `ScaleFree` by the joint norm."""
    beta2 = beta**2 if learner.beta2 is None else learner.beta2
    constants = (beta, beta2, learner.radius, smallest(groups).tiny ** 0.5)
    joint = {"measure": measure_leader, "reduce": scale_free_terms}
    functions = {"coefficients": scale_free_coefficients, "own": 3, "numbers": ("sum_squares",)} | joint
    return learner_rule(groups, leader_update, "delta", "momentum", constants=constants, **functions)


def coin_betting(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `CoinBetting`."""
    constants = (beta, learner.wealth, learner.lipschitz, smallest(groups).max ** 0.5)
    joint = {"measure": measure_gradient, "reduce": coin_terms}
    functions = {"coefficients": coin_coefficients, "own": 3, "numbers": ("gain", "sum_norms")} | joint
    return learner_rule(groups, leader_update, "delta", "momentum", constants=constants, **functions)
