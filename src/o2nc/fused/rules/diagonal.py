"""Learners by coordinate: AdaGrad, with slots Δ and v, and ScaleFree, which is Adam, with slots M and v."""

from typing import Any

import triton
import triton.language as tl

from o2nc.fused.rule import Rule, learner_rule
from o2nc.fused.rules.linear import adagrad_sizes, at_least, clip_to


@triton.jit
def diagonal_adagrad_coefficients(group, kept, sums, joint, s, constants):
    beta, decay, kappa = constants
    scale = group[0]
    last = tl.where(kept[0] == 0, scale, kept[0])
    return 1.0, (scale, last, beta, decay / beta, kappa), (scale,)


@triton.jit
def diagonal_adagrad_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    size, last, beta, pull, kappa = own
    last_delta, v = slots
    v_next = beta * beta * v + g * g
    stopped = size == 0
    e, growth = adagrad_sizes(v, v_next, last, tl.where(stopped, 1.0, size), beta, kappa, FLOOR)
    delta = tl.where(stopped, 0.0, (last_delta - e * g) / (1 + e * pull + growth))
    return x + scale * delta, last_delta, (delta, v_next)


@triton.jit
def adam_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    keep, keep_square, lead, last_lead = own
    m, v = slots
    last = -last_lead * (m / at_least(tl.sqrt(v), FLOOR))
    m = keep * m + g
    v = keep_square * v + g * g
    delta = lead * (m / at_least(tl.sqrt(v), FLOOR))
    return x + scale * delta, last, (m, v)


@triton.jit
def measure_adam(g, slots, lr, constants, FLOOR: tl.constexpr):
    m, v = slots
    ratio = (constants[0] * m + g) / at_least(tl.sqrt(constants[1] * v + g * g), FLOOR)
    return ratio * ratio, g * 0, g * 0


@triton.jit
def adam_terms(lr, kept, sums, constants):
    return lr * lr * sums[0], 0.0, 0.0, 0.0


@triton.jit
def adam_coefficients(group, kept, sums, joint, s, constants):
    beta, beta2, radius = constants
    lead = group[0] * clip_to(radius, joint[0])
    return 1.0, (beta, beta2, -lead, kept[0]), (lead,)


def adagrad_by_coordinate(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `AdaGrad` by coordinate."""
    constants = (beta, learner.decay, float(learner.kappa))
    functions = {"coefficients": diagonal_adagrad_coefficients, "own": 5, "numbers": ("last_lr",)}
    return learner_rule(groups, diagonal_adagrad_update, "delta", "sum_squares", constants=constants, **functions)


def scale_free_by_coordinate(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `ScaleFree` by coordinate, which finds the last Δ by M and v."""
    constants = (beta, beta**2 if learner.beta2 is None else learner.beta2, learner.radius)
    joint = {"measure": measure_adam, "reduce": adam_terms} if learner.radius != float("inf") else {}
    functions = {"coefficients": adam_coefficients, "own": 4, "numbers": ("lead",), "registers": 80} | joint
    return learner_rule(groups, adam_update, "momentum", "sum_squares", constants=constants, **functions)
