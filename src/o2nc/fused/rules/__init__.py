"""The rules as device functions, which the kernels of `o2nc.backends.triton.kernels` call.

    measure(g, slots, lr, constants, FLOOR) → three terms
        per element, before anything moves: ``sums`` are those terms added up over a tensor (joint norms only)
    gather(lr, kept, sums, constants) → four terms
        per tensor: ``joint`` are those terms added up over all tensors
    settle(group, is_new, kept, sums, joint, draw, constants) → rate, coefficients, kept
        per tensor: Δ = rate·direction, what `play` needs to know, and the numbers that survive
    play(x, g, slots, scale, coefficients, FLOOR) → x, last, slots
        per element: x + scale·direction, with scale = s·rate; ``last`` is the direction that led to x

``slots`` is the state of the parameter's shape, up to three. ``kept`` is the state that is a number, ``constants``
what the rule was made with, ``group`` the lr and four more numbers of the parameter group, ``draw`` s and the weight
of the gradient: `play` applies that, `measure` finds it applied. They are tuples, whose entries get their names where
a rule takes them apart. FLOOR is compiled in, the smallest divisor. The formulas are those of `o2nc.learners` (whose
rate is 1, and whose first slot is Δ) and of `o2nc.optimizers`.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from o2nc import learners
from o2nc.backends.triton.rules.adamw import play_adamw, play_amsgrad, powers_, settle_adamw
from o2nc.backends.triton.rules.diagonal import (
    gather_adam,
    measure_adam,
    play_adam,
    play_diagonal_adagrad,
    settle_adam,
    settle_diagonal_adagrad,
)
from o2nc.backends.triton.rules.leader import (
    gather_coin,
    gather_ftrl,
    gather_scale_free,
    measure_leader,
    play_leader,
    settle_coin,
    settle_ftrl,
    settle_scale_free,
)
from o2nc.backends.triton.rules.linear import (
    gather_adagrad,
    gather_ball,
    gather_ball_adagrad,
    measure_ball,
    measure_gradient,
    play_linear,
    settle_adagrad,
    settle_ball,
    settle_ball_adagrad,
    settle_ogd,
)
from o2nc.backends.triton.rules.observed import play_observed, settle_observed
from o2nc.backends.triton.rules.sgd import SGD_PLAYS, play_momentum, settle_sgd
from o2nc.learners import Learner
from o2nc.optimizers.adamw import LAST, Adam
from o2nc.optimizers.learned import Learned
from o2nc.optimizers.observed import Observed
from o2nc.optimizers.sgdm import Momentum
from o2nc.step import Step
from o2nc.vector import wide

__all__ = ["SGD_PLAYS", "Rule", "device_rule", "play_adamw", "play_amsgrad", "play_observed"]


@dataclass(frozen=True)
class Rule:
    """One learner on the device."""

    settle: Any
    play: Any
    coefficients: int  # how many `settle` gives to `play`
    slots: tuple[str, ...] = ()  # state of the parameter's shape beside the direction itself
    numbers: tuple[str, ...] = ()  # state that is one number per parameter
    constants: tuple[float, ...] = ()
    measure: Any = None
    gather: Any = None
    prepare: Any = None  # fills in, by torch, what `settle` gets of every parameter in the place of sums
    prepared: int = 0  # how many numbers that is
    moves: bool = True  # whether x is written
    decoupled: bool = False  # whether decoupled weight decay is added to what it plays
    keeps: bool = True  # whether Δ is its first slot; if not, `play` finds the last one by its other state
    # where sums are made as well, as measured: elements at a time, and registers per thread (None: as it comes)
    block: int = 512
    registers: int | None = None

    @property
    def sums(self) -> int:
        """How many numbers `settle` gets of every parameter: of a joint learner three sums, or what is prepared."""
        return self.prepared if self.measure is None else 3


SGD = Rule(settle_sgd, play_momentum, 3)
OBSERVED = Rule(settle_observed, play_observed, 1, moves=False)
ADAMW = Rule(
    settle_adamw,
    play_adamw,
    14,
    numbers=("step", *LAST),
    prepare=powers_,
    prepared=4,
    block=256,
    registers=64,
)


def device_rule(step: Step) -> Rule | None:
    """Return the rule of a step on the device, or None for one that has no device form."""
    others = {Momentum: SGD, Observed: OBSERVED, Adam: ADAMW}
    if type(step.rule) is not Learned:
        return others.get(type(step.rule))
    dtypes = {wide(p.dtype) for group in step.groups for p in group["params"]}
    found = learner_rule(step.rule.learner, step.rule.beta, min(dtypes, key=lambda dtype: dtype.itemsize))
    decoupled = any(group.get("weight_decay") for group in step.groups)
    return replace(found, decoupled=decoupled) if found is not None else None


def learner_rule(learner: Learner, beta: float, dtype: torch.dtype) -> Rule | None:
    """Return a learner on the device, or None for one that has no line here, such as the user's own."""
    if type(learner).__module__.rpartition(".")[0] != learners.__name__:
        return None
    info = torch.finfo(dtype)
    floor = info.tiny**0.5
    constants: tuple[float, ...]
    slots: tuple[str, ...]
    numbers: tuple[str, ...]
    joint: tuple[Any, ...]
    match learner:
        case learners.OGD():
            return Rule(settle_ogd, play_linear, 2, (), ("last_lr",), (beta, learner.decay, float(learner.kappa)))
        case learners.BallOGD():
            constants = (beta, learner.decay, learner.radius)
            joint = (measure_ball, gather_ball) if learner.radius != float("inf") else ()
            return Rule(settle_ball, play_linear, 2, (), (), constants, *joint)
        case learners.AdaGrad(diagonal=True):
            constants = (beta, learner.decay, float(learner.kappa))
            return Rule(settle_diagonal_adagrad, play_diagonal_adagrad, 6, ("sum_squares",), ("last_lr",), constants)
        case learners.AdaGrad():
            constants = (beta, learner.decay, float(learner.kappa), floor)
            numbers = ("sum_squares", "last_lr")
            return Rule(settle_adagrad, play_linear, 2, (), numbers, constants, measure_gradient, gather_adagrad)
        case learners.BallAdaGrad():
            joint = (measure_gradient, gather_ball_adagrad)
            return Rule(settle_ball_adagrad, play_linear, 2, (), ("sum_squares",), (beta, floor), *joint)
        case learners.FTRL():
            constants = (beta, learner.decay, learner.radius)
            joint = (measure_leader, gather_ftrl) if learner.radius != float("inf") else ()
            return Rule(settle_ftrl, play_leader, 3, ("momentum",), ("decay_weight",), constants, *joint)
        case learners.ScaleFree(diagonal=True):
            joint = (measure_adam, gather_adam) if learner.radius != float("inf") else ()
            constants = (beta, beta**2 if learner.beta2 is None else learner.beta2, learner.radius)
            slots, numbers = ("momentum", "sum_squares"), ("lead",)
            measure, gather = joint or (None, None)
            return Rule(
                settle_adam, play_adam, 5, slots, numbers, constants, measure, gather, keeps=False, registers=80
            )
        case learners.ScaleFree():
            constants = (beta, beta**2 if learner.beta2 is None else learner.beta2, learner.radius, floor)
            slots, numbers = ("momentum",), ("sum_squares",)
            return Rule(
                settle_scale_free, play_leader, 3, slots, numbers, constants, measure_leader, gather_scale_free
            )
        case learners.CoinBetting():
            constants = (beta, learner.wealth, learner.lipschitz, info.max**0.5)
            slots, numbers = ("momentum",), ("gain", "sum_norms")
            return Rule(settle_coin, play_leader, 3, slots, numbers, constants, measure_gradient, gather_coin)
    return None
