"""Rates: how the measured quantity falls with N, and how the number of steps grows with 1/ε."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from o2nc import theory
from o2nc.problems import Additive, Cosine, DoubleWell, MultiKink, Problem, Ripple
from o2nc_experiments.batch import Trial, exponentiated
from o2nc_experiments.verify.rows import Finding, enough, greatest, statement
from o2nc_experiments.verify.runs import Array

NOISE = 1.0


def slope(values: Array, steps: Array) -> float:
    """Return the slope of log mean against log N; values has one row for every N."""
    return float(np.polyfit(np.log(steps), np.log(values.mean(1)), 1)[0])


def fitted(problem: Problem, seed: int, scale: float, **regime: Any) -> tuple[float, float]:
    """Return the slope over N of the mean certificate, and the upper end of its 95 % bootstrap interval."""
    steps, seeds = [2**k for k in range(8, 14 if scale >= 1 else 12)], enough(16, scale, 8)
    make = partial(theory.plan, gap=problem.gap, lipschitz=problem.lipschitz, noise=NOISE)
    plans = [make(n, **regime) for n in steps]
    trials = [Trial.of(p, seed + i) for p in plans for i in range(seeds)]
    outcomes = exponentiated(Additive(problem, NOISE), trials, noise_seed=seed)
    values = np.array([o.certificate for o in outcomes]).reshape(len(steps), seeds)
    rng = np.random.default_rng(seed)
    again = [
        slope(rng.permuted(values[:, rng.integers(seeds, size=seeds)], axis=1), np.array(steps)) for _ in range(400)
    ]
    return slope(values, np.array(steps)), float(np.quantile(again, 0.975))


def exponent(**regime: Any) -> float:
    """Return d log steps_for / d log ε at small ε."""
    few, many = (theory.steps_for(eps, gap=1.0, lipschitz=1.0, noise=1.0, **regime) for eps in (1e-2, 1e-3))
    return math.log(few / many) / math.log(10)


Cases = dict[str, tuple[Problem, dict[str, float]]]  # by name: a problem, and what chooses c


def _rate(cases: Cases, right: float, exponents: dict[float, float], seed: int, scale: float) -> Finding:
    """Make the finding: fitted slopes at most ``right``, and exponents of steps_for as they should be, within 2 %.

    The slopes of the printed plans are told but not judged: so few steps are before their asymptotics.
    """
    found = {name: fitted(problem, seed, scale, **regime) for name, (problem, regime) in cases.items()}
    printed = [fitted(problem, seed, scale, **regime, constants="paper")[0] for problem, regime in cases.values()]
    worst = greatest(found, key=lambda name: found[name][1])
    fits = ", ".join(f"{name} {fit:.3f}" for name, (fit, _) in found.items())
    powers = ", ".join(f"ε^{got:.2f}" for got in exponents.values())
    measured = (
        f"slope in N from 256 on, sharp plans ({fits}), upper end of its 95 % interval; steps_for as {powers}; "
        f"not judged, printed plans: {', '.join(f'{fit:.3f}' for fit in printed)}"
    )
    also = all(abs(got / want - 1) < 0.02 for want, got in exponents.items())
    # both sides are negative; a slope as an order of decay reads the other way round
    return Finding(measured, -found[worst][1], -right, ">=", also=also)


@statement("rate-nonsmooth", "decay of E‖∇F(x̄)‖_c: N^{−2/7}, N^{−1/3}")
def nonsmooth(seed: int, scale: float) -> Finding:
    """Theorem SGDM: N^{−2/7} at fixed c, and N^{−1/3} while c is small."""
    cases: Cases = {"double well": (DoubleWell(10), {"c": 1.0}), "multi-kink": (MultiKink(10), {"c": 1.0})}
    finding = _rate(cases, -2 / 7, {-3.5: exponent(c=1.0), -3.0: exponent(c=1e-12)}, seed, scale)
    printed, upper = fitted(DoubleWell(10), seed, scale, c=1e-3, constants="paper")
    sharp, _ = fitted(DoubleWell(10), seed, scale, c=1e-3)
    measured = (
        f"{finding.measured}; at c = 0.001 the printed plan {printed:.3f}, judged, the sharp one {sharp:.3f}, not"
    )
    return replace(finding, measured=measured, also=finding.also and upper <= -1 / 3)


def _smooth_cases(regime: str) -> Cases:
    problems: dict[str, Problem] = {"cosine": Cosine(10), "ripple": Ripple(4)}
    return {name: (problem, {regime: getattr(problem, regime)}) for name, problem in problems.items()}


@statement("rate-smooth", "decay for smooth F, c = H²/ε: N^{−1/4}")
def smooth(seed: int, scale: float) -> Finding:
    """Section 4.3, smooth case."""
    return _rate(_smooth_cases("smoothness"), -1 / 4, {-4.0: exponent(smoothness=1.0)}, seed, scale)


@statement("rate-second-order", "decay for ρ-smooth ∇²F, c = ρ/2: N^{−2/7}")
def second_order(seed: int, scale: float) -> Finding:
    """Section 4.3, second-order smooth case."""
    return _rate(_smooth_cases("second_order"), -2 / 7, {-3.5: exponent(second_order=1.0)}, seed, scale)


@statement("steps-for", "least N with B ≤ ε, to the last step")
def steps_for(seed: int, scale: float) -> Finding:
    """The numbers of steps that the bounds ask for, against values computed once; and that N is the least."""
    known = {"paper": (1.04e5, 1.12e6, 2.97e8), "sharp": (196, 1913, 453385)}
    unit = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": 1.0}
    worst, least, exact = (0.0, 0.0, 0.0), True, True
    for constants, values in known.items():
        for eps, value in zip((1.0, 0.5, 0.1), values, strict=True):
            n = theory.steps_for(eps, constants=constants, **unit)
            exact = exact and (constants == "paper" or n == value)
            worst = greatest(worst, (abs(n / value - 1), float(n), float(value)))
            below, at = (theory.bound(k, constants=constants, **unit) for k in (n - 1, n))
            least = least and at <= eps < below
    measured = "the value furthest from the one known, ε = 1, .5, .1, printed (known to 3 digits) and sharp (exactly)"
    return Finding(measured, worst[1], worst[2], "==", also=least and exact, tolerance=0.005 * worst[2])
