"""Learners with Δ ← keep·Δ + gain·g: OGD, BallOGD, AdaGrad by the joint norm, BallAdaGrad."""

from typing import Any

import triton
import triton.language as tl

from o2nc.fused.rule import Rule, learner_rule, smallest


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)  # unlike tl.maximum this hands a nan on, as torch's clamp does


@triton.jit
def clip_to(radius, square):
    return tl.where(square <= radius * radius, 1.0, radius / tl.sqrt(square))  # nan for nan


@triton.jit
def linear_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    keep, gain = own
    delta = keep * slots[0] + gain * g
    return x + scale * delta, slots[0], (delta,)


@triton.jit
def ogd_coefficients(group, kept, sums, joint, s, constants):
    beta, decay, kappa = constants
    h_next = group[0]
    h = tl.where(kept[0] == 0, h_next, kept[0])
    stopped = h_next == 0
    growth = h / (beta * tl.where(stopped, 1.0, h_next)) - 1
    growth = tl.where(kappa == 2, at_least(growth, 0.0), growth)
    shrink = 1 + h * decay / beta + kappa * growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    gain = tl.where(stopped, 0.0, -h / shrink)
    return 1.0, (keep, gain), (h_next,)


@triton.jit
def measure_ball(g, slots, lr, constants, FLOOR: tl.constexpr):
    y = (1 - lr * constants[1]) * slots[0] - lr * g
    return y * y, g * 0, g * 0


@triton.jit
def ball_terms(lr, kept, sums, constants):
    return sums[0], 0.0, 0.0, 0.0


@triton.jit
def ball_coefficients(group, kept, sums, joint, s, constants):
    beta, decay, radius = constants
    lr = group[0]
    clip = clip_to(radius, joint[0])
    return 1.0, ((1 - lr * decay) * clip, -lr * clip), kept


@triton.jit
def measure_gradient(g, slots, lr, constants, FLOOR: tl.constexpr):
    return g * g, g * slots[0], slots[0] * slots[0]  # ‖g‖², ⟨g, Δ⟩ and ‖Δ‖²


@triton.jit
def adagrad_terms(lr, kept, sums, constants):
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
def adagrad_coefficients(group, kept, sums, joint, s, constants):
    beta, decay, kappa, floor = constants
    v, last = kept
    scale = group[0]
    stopped = scale == 0
    last = tl.where(last == 0, scale, last)
    e, growth = adagrad_sizes(joint[0], joint[1], last, tl.where(stopped, 1.0, scale), beta, kappa, floor)
    keep = tl.where(stopped, 0.0, 1 / (1 + e * decay / beta + growth))
    return 1.0, (keep, -e * keep), (beta * beta * v + sums[0], scale)


@triton.jit
def ball_adagrad_terms(lr, kept, sums, constants):
    beta = constants[0]
    square, slope, length = sums
    stopped = lr == 0
    inverse = tl.where(stopped, 0.0, 1 / tl.where(stopped, 1.0, lr))
    slope = tl.where(stopped, 0.0, slope)
    # of v and of ‖g‖² in y = Δ/lr, ⟨g, Δ⟩, and ‖y‖²
    return lr * lr * (beta * beta * kept[0] + square), lr * lr * square, slope, length * inverse * inverse


@triton.jit
def ball_adagrad_coefficients(group, kept, sums, joint, s, constants):
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
    return 1.0, (keep, -size * keep), (beta * beta * kept[0] + sums[0],)


def ogd(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `OGD`."""
    constants = (beta, learner.decay, float(learner.kappa))
    functions = {"coefficients": ogd_coefficients, "own": 2}
    return learner_rule(groups, linear_update, "delta", numbers=("last_lr",), constants=constants, **functions)


def ball_ogd(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `BallOGD`."""
    constants = (beta, learner.decay, learner.radius)
    joint = {"measure": measure_ball, "reduce": ball_terms} if learner.radius != float("inf") else {}
    functions = {"coefficients": ball_coefficients, "own": 2} | joint
    return learner_rule(groups, linear_update, "delta", constants=constants, **functions)


def adagrad(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `AdaGrad` by the joint norm."""
    constants = (beta, learner.decay, float(learner.kappa), smallest(groups).tiny ** 0.5)
    joint = {"measure": measure_gradient, "reduce": adagrad_terms}
    functions = {"coefficients": adagrad_coefficients, "own": 2, "numbers": ("sum_squares", "last_lr")} | joint
    return learner_rule(groups, linear_update, "delta", constants=constants, **functions)


def ball_adagrad(groups: list[dict[str, Any]], learner: Any, beta: float) -> Rule:
    """Return the rule of `BallAdaGrad`."""
    constants = (beta, smallest(groups).tiny ** 0.5)
    joint = {"measure": measure_gradient, "reduce": ball_adagrad_terms}
    functions = {"coefficients": ball_adagrad_coefficients, "own": 2, "numbers": ("sum_squares",)} | joint
    return learner_rule(groups, linear_update, "delta", constants=constants, **functions)
