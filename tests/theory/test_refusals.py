"""What no theorem speaks of is refused, by the name of the argument, its value and what is allowed."""

import math
from dataclasses import dataclass
from functools import partial

import torch

import o2nc
from o2nc import theory
from o2nc.learners import OGD
from o2nc.theory import Falling
from refusals import refusals

KNOWN = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0}


@dataclass(frozen=True)
class Untold:
    """A law that does not tell its moments."""

    def sample(self, seed, step):
        return 1.0

    def weight(self, s):
        return 1.0


class Mistold(Untold):
    """One that cannot be."""

    second_moment = 0.5


def plan(**change):
    return theory.plan(**({"steps": 100, **KNOWN, "noise": 1.0} | change))


def guarantee(*optimizer, **change):
    named = {} if optimizer else {"lr": 0.1, "momentum": 0.9}
    return theory.guarantee(*optimizer, **({"steps": 50, **KNOWN, **named} | change))


def sgdm():
    return o2nc.ScaledSGDM([torch.zeros(3)], lr=0.1, momentum=0.9, average=0.9)


def decayed():
    return o2nc.ExponentiatedO2NC([torch.zeros(3)], OGD(0.1, decay=1.0), beta=0.9)


stable, stop = theory.stable_lr, partial(theory.stopping_plan, 0.1, c=1.0)
adaptive = partial(theory.adaptive_plan, steps=10, c=1.0, gap=1.0)
TOGETHER = r"gap=.* are out of float64's range together"
VALUES = [
    (lambda: plan(steps=0), "steps must be an integer >= 1"),
    (lambda: plan(steps=2**73), "at most 2"),
    (lambda: plan(c=0.0), "c must be a finite number > 0"),
    (lambda: plan(c=None), "exactly one of c, smoothness and second_order, got none"),
    (lambda: plan(smoothness=1.0), "exactly one of c, smoothness and second_order"),
    (lambda: plan(lipschitz=math.nan), "lipschitz must be"),
    (lambda: plan(constants="best"), "constants must be one of"),
    (lambda: plan(law=None), "no theorem holds: without random scaling"),
    (lambda: plan(law=o2nc.Gamma(2.0), constants="paper"), "needs constants='sharp'"),
    (lambda: plan(gap=1e-200, lipschitz=1e200), TOGETHER),
    (lambda: plan(lipschitz=1e200), TOGETHER),
    (lambda: plan(c=None, smoothness=1e-300, gap=1e-200, noise=0.0), TOGETHER),
    (lambda: plan(c=None, second_order=1e-300, gap=1e-300, lipschitz=1e-300, noise=1e200), TOGETHER),
    (lambda: theory.steps_for(0.0, **KNOWN), "eps must be"),
    (lambda: theory.steps_for(1e-300, **KNOWN), "needs more than 2"),
    (lambda: theory.spread_constant(1.5), "beta must be"),
    (lambda: theory.spread_constant(0.5, second_moment=0.9), "second_moment must be a finite number >= 1"),
    (lambda: theory.lower_bound(1e-200, c=1.0, gap=1e-200, lipschitz=1.0), "eps=1e-200, .* range together"),
    (lambda: theory.lower_bound(2.0, **KNOWN), r"lipschitz must be a finite number >= .* = 1\.18921"),
    (lambda: guarantee(lr=1e300), r"lr=1e\+300, c=1.0, gap=1.0, .* are out of float64's range together"),
    (lambda: guarantee(lr=Falling(0.02, 0.005), law=o2nc.Gamma(4.0)), "s ~ Exp only, got Gamma"),
    (lambda: guarantee(lr=Falling(0.02, 0.03)), r"lr.least must be a number in \(0, lr.first = 0.02\], got 0.03"),
    (lambda: guarantee(lr=[0.001] * 2 + [0.01] * 48), r"1/momentum² = 1\.23457 a .* 0\.001 and then 0\.01 at step 3"),
    (lambda: guarantee(lr=[0.01] * 48 + [0.0] * 2), r"finite numbers > 0, got .*0\.0.* at step 49"),
    (lambda: guarantee(lr=[0.1, 0.1]), "one number for each of the 50 steps"),
    (lambda: guarantee(lr=["a"] * 50), "lr must be one number for each of the 50 steps"),
    (lambda: guarantee(decayed(), lr=[0.1] * 50), "with decay or kappa=2 a schedule"),
    (lambda: adaptive(steps=0), "steps must be"),
    (lambda: adaptive().bound(lipschitz=0.0), "lipschitz must be"),
    (lambda: stop(lipschitz=0.05), r"eps must be below lipschitz = 0\.05"),
    (lambda: theory.stopping_plan(0.0, 1.0, lipschitz=1.0), "eps must be"),
    (lambda: theory.stopping_plan(1e-200, 1e300, lipschitz=1.0), "out of float64's range together"),
    (lambda: stable(1.0), r"momentum must be a number in \[0, 1\), got 1.0"),
    (lambda: stable(0.9, curvature=0), "curvature must be a finite number > 0, got 0"),
    (lambda: stable(0.9, dampening=1), "dampening must be a number < 1, got 1"),
    (lambda: stable(0.9, dampening=0.5, nesterov=True), "dampening must be 0 with nesterov=True, got 0.5"),
    (lambda: stable(0.9, Untold()), "have a second_moment"),
    (lambda: stable(0.9, Mistold()), r"law's E s².* >= 1, got 0.5"),
]
TYPES = [
    (lambda: plan(steps=10.0), "steps must be"),
    (lambda: guarantee(sgdm(), momentum=0.9), "are read from the optimizer"),
    (lambda: theory.guarantee(lr=0.1, steps=10, **KNOWN), "give an optimizer, or lr and momentum"),
    (lambda: stable("a"), "momentum must be"),
    (lambda: stable(0.9, nesterov=1), "nesterov must be"),
    (lambda: stable(0.9, 3), "law must be a law"),
]
test_refusal = refusals(*((call, ValueError, words) for call, words in VALUES))
test_refusal_of_types = refusals(*((call, TypeError, words) for call, words in TYPES))
