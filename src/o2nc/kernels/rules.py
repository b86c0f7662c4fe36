"""The learners as device functions, which the kernels of `o2nc.kernels.passes` call.

    measure   per element, before anything moves: two terms p, q whose sums the learner needs (joint norms only)
    gather    per tensor: up to four terms, added up over all tensors
    settle    per tensor: the coefficients c0…c4 of the update, and the numbers h0, h1 that survive
    play      per element: the direction of the update, and the slots a, b, c; a is the direction that was last added

The update is x ← x + scale·direction. ``at`` points at the numbers of the parameter group, ``k`` at the constants of
the learner, the first of which is β. The formulas are those of `o2nc.learners`, with the gradient weighted by w(s_t)
(``w``) under a law that reweights.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from o2nc import learners
from o2nc.learners import Learner


@dataclass(frozen=True)
class Rule:
    """One learner on the device."""

    settle: Any
    play: Any
    slots: tuple[str, ...] = ()  # state of the parameter's shape beside the direction itself
    numbers: tuple[str, ...] = ()  # state that is one number per parameter: h0, h1
    constants: tuple[float, ...] = ()
    measure: Any = None
    gather: Any = None


# ---- SGD with momentum, as torch.optim.SGD has it ----


@triton.jit
def settle_sgd(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    lr = tl.load(at)
    momentum = tl.load(at + 1)
    gain = tl.where(fresh, 1.0, 1 - tl.load(at + 2))  # torch starts the buffer at g_1, undampened
    # without a gradient a parameter is left as it is
    keep = tl.where(here, momentum, 1.0)
    gain = tl.where(here, gain, 0.0)
    decay = tl.where(here, tl.load(at + 3), 0.0)
    return -lr * s, -lr, decay, keep, gain, momentum, 0.0, 0.0, h0, h1


@triton.jit
def play_sgd(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    return d, d, b, c


@triton.jit
def play_momentum(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * a + c1 * d
    return m, m, b, c


@triton.jit
def play_kept_momentum(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    return m, m, m, c


@triton.jit
def play_nesterov(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * a + c1 * d
    return d + c2 * m, m, b, c


@triton.jit
def play_kept_nesterov(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    direction = d + c2 * m
    return direction, direction, m, c


SGD_PLAYS = {  # (has momentum, is Nesterov, keeps the direction beside the buffer)
    (False, False, True): play_sgd,
    (False, False, False): play_sgd,
    (True, False, False): play_momentum,
    (True, False, True): play_kept_momentum,
    (True, True, False): play_nesterov,
    (True, True, True): play_kept_nesterov,
}
SGD = Rule(settle_sgd, play_momentum)


# ---- Δ ← c0·Δ + c1·g: OGD, BallOGD, AdaGrad by the joint norm ----


@triton.jit
def play_linear(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    delta = c0 * a + c1 * d
    return delta, delta, b, c


@triton.jit
def settle_ogd(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    decay = tl.load(k + 1)
    kappa = tl.load(k + 2)
    h_next = tl.load(at)
    h = tl.where(h0 == 0, h_next, h0)
    stopped = h_next == 0
    growth = h / (beta * tl.where(stopped, 1.0, h_next)) - 1
    growth = tl.where(kappa == 2, tl.maximum(growth, 0.0), growth)
    shrink = 1 + h * decay / beta + kappa * growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    gain = tl.where(stopped, 0.0, -h / shrink) * w
    return s, 1.0, 0.0, keep, gain, 0.0, 0.0, 0.0, h_next, h1


@triton.jit
def measure_ball(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    y = (1 - lr * tl.load(k + 1)) * a - lr * d
    return y * y, d * 0


@triton.jit
def gather_ball(lr, h0, h1, p, q, k):
    return p, p * 0, p * 0, p * 0


@triton.jit
def settle_ball(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    lr = tl.load(at)
    clip = tl.minimum(1.0, tl.load(k + 2) / tl.sqrt(j0))
    return s, 1.0, 0.0, (1 - lr * tl.load(k + 1)) * clip, -lr * w * clip, 0.0, 0.0, 0.0, h0, h1


@triton.jit
def measure_gradient(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    return d * d, d * a  # ‖g‖² and ⟨g, Δ⟩


@triton.jit
def gather_adagrad(lr, h0, h1, p, q, k):
    beta = tl.load(k)
    return h0, beta * beta * h0 + p, p * 0, p * 0  # v before and after


@triton.jit
def adagrad_sizes(v, v_next, last, scale, beta, kappa, floor):
    """Return e_t and κ(e_t/(βe_{t+1}) − 1)."""
    e_next = scale / (beta * tl.maximum(tl.sqrt(v_next), floor))
    e = tl.where(v > 0, last / (beta * tl.maximum(tl.sqrt(v), floor)), beta * e_next)
    growth = e / (beta * e_next) - 1
    return e, kappa * tl.where(kappa == 2, tl.maximum(growth, 0.0), growth)


@triton.jit
def settle_adagrad(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    kappa = tl.load(k + 2)
    scale = tl.load(at)
    stopped = scale == 0
    last = tl.where(h1 == 0, scale, h1)
    e, growth = adagrad_sizes(j0, j1, last, tl.where(stopped, 1.0, scale), beta, kappa, tl.load(k + 3))
    shrink = 1 + e * tl.load(k + 1) / beta + growth
    keep = tl.where(stopped, 0.0, 1 / shrink)
    return s, 1.0, 0.0, keep, -e * w * keep, 0.0, 0.0, 0.0, beta * beta * h0 + p, scale


# ---- AdaGrad by coordinate: b is v ----


@triton.jit
def settle_diagonal_adagrad(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    scale = tl.load(at)
    last = tl.where(h0 == 0, scale, h0)
    # c3 = μ/β; κ rides on the sign of c4 = ±β
    kappa = tl.load(k + 2)
    beta = tl.load(k)
    return s, 1.0, 0.0, scale, w, last, tl.load(k + 1) / beta, tl.where(kappa == 2, -beta, beta), scale, h1


@triton.jit
def play_diagonal_adagrad(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    g = c1 * d
    beta = tl.abs(c4)
    v = beta * beta * b + g * g
    stopped = c0 == 0
    kappa = tl.where(c4 < 0, 2.0, 1.0)
    e, growth = adagrad_sizes(b, v, c2, tl.where(stopped, 1.0, c0), beta, kappa, FLOOR)
    delta = (a - e * g) / (1 + e * c3 + growth)
    delta = tl.where(stopped, 0.0, delta)
    return delta, delta, v, c


# ---- M ← c0·M + c1·g, Δ ← c2·M: FTRL, ScaleFree by the joint norm, CoinBetting; b is M ----


@triton.jit
def play_leader(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    delta = c2 * m
    return delta, delta, m, c


@triton.jit
def measure_leader(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    m = tl.load(k) * b + d
    return d * d, m * m  # ‖g‖² and ‖M‖²


@triton.jit
def ftrl_leader(lr, weight, k):
    return -lr * tl.load(k) / (1 + lr * tl.load(k + 1) * weight)


@triton.jit
def gather_ftrl(lr, h0, h1, p, q, k):
    lead = ftrl_leader(lr, 1 + tl.load(k) * h0, k)
    return lead * lead * q, p * 0, p * 0, p * 0


@triton.jit
def settle_ftrl(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    weight = 1 + beta * h0
    radius = tl.load(k + 2)
    clip = tl.where(j0 > radius * radius, radius / tl.sqrt(j0), 1.0)
    return s, 1.0, 0.0, beta, w, ftrl_leader(tl.load(at), weight, k) * clip, 0.0, 0.0, weight, h1


@triton.jit
def gather_scale_free(lr, h0, h1, p, q, k):
    beta = tl.load(k)
    return beta * beta * h0 + p, lr * lr * q, p * 0, p * 0


@triton.jit
def settle_scale_free(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    radius = tl.load(k + 1)
    norm = tl.maximum(tl.sqrt(j0), tl.load(k + 2))
    length = tl.sqrt(j1) / norm
    clip = tl.where(length > radius, radius / length, 1.0)
    return s, 1.0, 0.0, beta, w, -tl.load(at) / norm * clip, 0.0, 0.0, beta * beta * h0 + p, h1


@triton.jit
def gather_coin(lr, h0, h1, p, q, k):
    return p, q, h0, h1


@triton.jit
def settle_coin(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    lipschitz = tl.load(k + 2)
    norm = tl.sqrt(j0)
    shorten = tl.minimum(1.0, lipschitz / norm)
    share = p / tl.maximum(norm, 2.2250738585072014e-308)
    gain = beta * h0 - shorten * q
    norms = beta * h1 + shorten * share
    wealth = tl.load(k + 1) + beta * j2 - shorten * j1
    wealth = tl.minimum(tl.maximum(wealth, 0.0), tl.load(k + 3))
    total = beta * j3 + shorten * norm
    bet = -beta * beta * wealth / (lipschitz * (lipschitz + beta * total))
    return s, 1.0, 0.0, beta, shorten * w, bet * tl.load(at), 0.0, 0.0, gain, norms


# ---- ScaleFree by coordinate: b is M, c is v ----


@triton.jit
def play_adam(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    g = c1 * d
    m = c0 * b + g
    v = c2 * c + g * g
    delta = c3 * (m / tl.maximum(tl.sqrt(v), FLOOR))
    return delta, delta, m, v


@triton.jit
def measure_adam(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    beta = tl.load(k)
    r = (beta * b + d) / tl.maximum(tl.sqrt(beta * beta * c + d * d), FLOOR)
    return r * r, d * 0


@triton.jit
def gather_adam(lr, h0, h1, p, q, k):
    return lr * lr * p, p * 0, p * 0, p * 0


@triton.jit
def settle_adam(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    radius = tl.load(k + 1)
    clip = tl.where(j0 > radius * radius, radius / tl.sqrt(j0), 1.0)
    return s, 1.0, 0.0, beta, w, beta * beta, -tl.load(at) * clip, 0.0, h0, h1


def device_rule(learner: Learner, beta: float, wide: torch.dtype) -> Rule | None:
    """Return the learner on the device, or None for one that has no device form (one of the user's own)."""
    if type(learner).__module__.rpartition(".")[0] != learners.__name__:
        return None
    info = torch.finfo(wide)
    floor = info.tiny**0.5
    constants: tuple[float, ...]
    slots: tuple[str, ...]
    numbers: tuple[str, ...]
    joint: tuple[Any, ...]
    match learner:
        case learners.OGD():
            return Rule(settle_ogd, play_linear, (), ("last_lr",), (beta, learner.decay, float(learner.kappa)))
        case learners.BallOGD():
            constants = (beta, learner.decay, learner.radius)
            joint = (measure_ball, gather_ball) if learner.radius != float("inf") else ()
            return Rule(settle_ball, play_linear, (), (), constants, *joint)
        case learners.AdaGrad(diagonal=True):
            constants = (beta, learner.decay, float(learner.kappa))
            return Rule(settle_diagonal_adagrad, play_diagonal_adagrad, ("sum_squares",), ("last_lr",), constants)
        case learners.AdaGrad():
            constants = (beta, learner.decay, float(learner.kappa), floor)
            numbers = ("sum_squares", "last_lr")
            return Rule(settle_adagrad, play_linear, (), numbers, constants, measure_gradient, gather_adagrad)
        case learners.FTRL():
            constants = (beta, learner.decay, learner.radius)
            joint = (measure_leader, gather_ftrl) if learner.radius != float("inf") else ()
            return Rule(settle_ftrl, play_leader, ("momentum",), ("decay_weight",), constants, *joint)
        case learners.ScaleFree(diagonal=True):
            joint = (measure_adam, gather_adam) if learner.radius != float("inf") else ()
            return Rule(settle_adam, play_adam, ("momentum", "sum_squares"), (), (beta, learner.radius), *joint)
        case learners.ScaleFree():
            constants = (beta, learner.radius, floor)
            slots, numbers = ("momentum",), ("sum_squares",)
            return Rule(settle_scale_free, play_leader, slots, numbers, constants, measure_leader, gather_scale_free)
        case learners.CoinBetting():
            constants = (beta, learner.wealth, learner.lipschitz, info.max**0.5)
            slots, numbers = ("momentum",), ("gain", "sum_norms")
            return Rule(settle_coin, play_leader, slots, numbers, constants, measure_gradient, gather_coin)
    return None
