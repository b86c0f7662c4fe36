"""The learners that large models are trained with: OGD, which is SGD with momentum, and ScaleFree, which is Adam."""

from typing import Any

import triton
import triton.language as tl

from o2nc.fused.rule import Layout, Rule, Scalars


@triton.jit
def at_least(x, low):
    return tl.where(x < low, low, x)  # unlike tl.maximum this hands a nan on, as torch's clamp does


@triton.jit
def ogd_coefficients(group, kept, prepared, s, constants):
    beta, decay, kappa = constants
    h_next = group[0]
    h = tl.where(kept == 0, h_next, kept)
    stopped = h_next == 0
    growth = h / (beta * tl.where(stopped, 1.0, h_next)) - 1
    growth = tl.where(kappa == 2, at_least(growth, 0.0), growth)
    shrink = 1 + h * decay / beta + kappa * growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    gain = tl.where(stopped, 0.0, -h / shrink)
    return 1.0, (keep, gain), h_next


@triton.jit
def ogd_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    keep, gain = own
    delta = keep * slots[0] + gain * g
    return x + scale * delta, slots[0], (delta,)


@triton.jit
def scale_free_coefficients(group, kept, prepared, s, constants):
    beta, beta2, _ = constants
    return 1.0, (beta, beta2, -group[0], kept), group[0]


@triton.jit
def scale_free_update(x, g, slots, scale, own, FLOOR: tl.constexpr):
    keep, keep_square, lead, last_lead = own
    m, v = slots
    last = -last_lead * (m / at_least(tl.sqrt(v), FLOOR))  # the last Δ, by M and v
    m = keep * m + g
    v = keep_square * v + g * g
    delta = lead * (m / at_least(tl.sqrt(v), FLOOR))
    return x + scale * delta, last, (m, v)


def _scalars(group: dict[str, Any]) -> Scalars:
    return Scalars(-1.0 if group["maximize"] else 1.0, lr=group["lr"], first=group["weight_decay"])


def _rule(coefficients: Any, own: int, update: Any, *slots: str, **others: Any) -> Rule:
    """Return the rule of a learner: its Δ is the direction, and its lr that of the group."""
    layout = Layout(update, slots)
    return Rule(coefficients, own, lambda group: layout, _scalars, progress=True, decoupled=True, **others)


def ogd(learner: Any, beta: float) -> Rule:
    """Return the rule of `OGD`."""
    constants = (beta, learner.decay, float(learner.kappa))
    return _rule(ogd_coefficients, 2, ogd_update, "delta", number="last_lr", constants=constants)


def scale_free(learner: Any, beta: float) -> Rule:
    """Return the rule of `ScaleFree` by coordinate, without a radius."""
    constants, slots = (beta, beta**2 if learner.beta2 is None else learner.beta2, 0.0), ("momentum", "sum_squares")
    options = {"number": "lead", "constants": constants, "registers": 80}
    return _rule(scale_free_coefficients, 4, scale_free_update, *slots, **options)
