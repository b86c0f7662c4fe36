"""How fast: the convergence theorems on kinked problems, with their constants and rates."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from o2nc import Exponential, theory
from o2nc.learners import OGD
from o2nc.problems import Additive, Cosine, DoubleWell, MultiKink, Oracle, Problem, Resonance, Ripple
from o2nc_experiments.batch import Algorithm2, run_algorithm_2
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, least_of, mean_error, statement
from o2nc_experiments.verify.energy import output_law, spread_factor
from o2nc_experiments.verify.traces import Array, discounted, trace, traces

NOISE = 1.0  # of gradients, except in Theorem O2NC


def conversion(
    oracle: Oracle,
    beta: float,
    lr: float,
    c: float,
    radius: float,
    *,
    steps: int,
    seeds: Sequence[int],
    forms: Sequence[str],
) -> list[tuple[Array, Array]]:
    """Return the left and the right side of Theorem O2NC for runs with their own regrets, form by form.

    In discounted form, β^n Reg_n(u) = Σ_t β^{n−t}(⟨g_t, Δ_t − u⟩ + (μ/2)(‖Δ_t‖² − ‖u‖²)). The forms are the printed
    one alone, or the sharp ones of docs/paper.md, for the uniform output and for the law P.
    """
    problem, alpha = oracle.problem, 1 - beta
    plan = theory.Plan(steps, c, problem.gap, problem.lipschitz, oracle.noise, "paper", alpha, radius)
    mu = plan.decay if "paper" in forms else 2 * spread_factor(beta) * c * radius / alpha**2
    runs = traces(oracle, OGD(lr, decay=mu), beta, steps, seeds)
    weight = discounted(np.ones((steps, 1)), beta)[:, 0]
    mean = discounted(runs.full, beta) / weight[:, None]
    norm = np.linalg.norm(mean, axis=-1)
    u = -radius * mean / np.maximum(norm, 1e-300)[..., None]
    losses = (runs.gradients * runs.updates).sum(-1) + mu / 2 * (runs.updates**2).sum(-1)
    regret = discounted(losses[..., None], beta)[..., 0] - (discounted(runs.gradients, beta) * u).sum(-1)
    regret -= mu / 2 * radius**2 * weight
    certificates, paid, sides = norm + c * runs.spreads, {}, []
    paid["paper"] = paid["uniform"] = beta * regret[:, -1] + alpha * regret.sum(1)
    paid["geometric"] = regret[:, -1] + alpha * regret[:, :-1].sum(1)
    for form in forms:
        others = (
            sum(v for k, v in plan.terms.items() if k != "regret") if form == "paper" else sharp_terms(plan, form)
        )
        left = certificates @ output_law(beta, steps) if form == "geometric" else certificates.mean(1)
        sides.append((left, others + paid[form] / (radius * steps)))
    return sides


def sharp_terms(p: theory.Plan, output: str) -> float:
    """Return the sharp bound without its regret: descent, start, noise and spread."""
    known = p.gap / (p.radius * p.steps) + spread_factor(p.beta) * p.c * p.radius**2 / p.alpha**2
    noise = p.noise * (p.alpha + p.beta / p.steps) / math.sqrt(1 - p.beta**2)
    return known + noise + (0.0 if output == "geometric" else p.beta * p.lipschitz / (p.alpha * p.steps))


def _converted(forms: Sequence[str], seed: int, scale: float) -> Finding:
    """Make the finding on two kinked problems and on a trap, which holds the conversion to its random scaling."""
    trap = Resonance.zero(1, momentum=0.5)
    cases: list[tuple[Oracle, float, float, float, float]] = [
        (Additive(trap, 0.0), 0.5, trap.lr, 1e-6, 1.0),
        (Additive(DoubleWell(3), 0.5), 0.9, 0.05, 1e-3, 0.2),
        (Additive(MultiKink(2), 1.0), 0.95, 0.02, 1e-3, 0.1),
    ]
    seeds, steps = enough(48, scale, 6), enough(300, scale, 150)
    sides = []
    for case in cases:
        for lefts, rights in conversion(*case, steps=steps, seeds=range(seed, seed + seeds), forms=forms):
            _, error = mean_error((rights - lefts).tolist())
            sides.append((float(lefts.mean()), float(rights.mean()) + Z * error, float(rights.mean()), error))
    left, right, plain, error = least_of(sides, key=lambda side: side[1] / side[0])
    which = f"{len(cases)} problems" + (", each for both outputs" if len(forms) > 1 else "")
    measured = (
        f"tightest of {which}, means of {seeds} runs of {steps} steps, "
        f"the right one, {plain:.4f}, plus {Z:g} standard errors of the difference, {error:.4f} each"
    )
    return Finding(measured, left, right)


@statement("theorem-o2nc", "E‖∇F(x̄)‖_c ≤ F*/DN + … + regret/DN")
def theorem_o2nc(seed: int, scale: float) -> Finding:
    """Theorem O2NC, formal version, with measured regrets."""
    return _converted(["paper"], seed, scale)


@statement("conversion-sharp", "the same with sharp constants, μ = 2CcD/α²")
def conversion_sharp(seed: int, scale: float) -> Finding:
    """The conversion with the constants that docs/paper.md proves, for the uniform output and for the law P."""
    return _converted(["uniform", "geometric"], seed, scale / 2)


def mean_certificates(oracle: Oracle, plans: Sequence[theory.Plan], seeds: range) -> Array:
    """Return the mean of ‖Σp∇F‖ + cV over a run, one row for every plan and one column for every seed."""
    runs = [Algorithm2.of(plan, seed) for plan in plans for seed in seeds]
    outcomes = run_algorithm_2(oracle, runs, noise_seed=seeds[0])
    return np.array([outcome.certificate for outcome in outcomes]).reshape(len(plans), -1)


@statement("theorem-sgdm", "E‖∇F(x̄)‖_c ≤ B(N, c, F*, G, σ)")
def theorem_sgdm(seed: int, scale: float) -> Finding:
    """Theorem SGDM with its constants, printed and sharp."""
    problems: list[Problem] = [DoubleWell(10), MultiKink(10), Cosine(10)]
    worst, ratios = (0.0, 0.0, 1.0), []
    for problem in problems:
        plans = [
            theory.plan(n, c, gap=problem.gap, lipschitz=problem.lipschitz, noise=NOISE, constants=constants)
            for n in (256, 2048)
            for c in (0.01, 1.0)
            for constants in theory.CONSTANTS
        ]
        seeds = range(seed, seed + enough(8, scale))
        values = mean_certificates(Additive(problem, NOISE), plans, seeds)
        for p, row in zip(plans, values, strict=True):
            mean, error = mean_error(row.tolist())
            ratios.append((mean + Z * error) / p.bound)
            worst = greatest(worst, (mean / p.bound, mean, p.bound))
    measured = (
        f"mean of ‖Σp∇F‖+cV over n, by the plan's output law, against the bound, tightest of {len(ratios)} "
        f"(3 problems, N = 256 and 2048, c = 0.01 and 1, all constants)"
    )
    return Finding(measured, worst[1], worst[2], also=greatest(ratios) <= 1)


@statement("sgdm-map", "Algorithm 2 with OGD is SGDM with β̃, η̃")
def sgdm_map(seed: int, scale: float) -> Finding:
    """Section "Unraveling the update": m ← β̃m + (1 − β̃)g, x ← x − s·η̃·m, from the same gradients."""
    worst, size = 0.0, 0.0
    for constants in theory.CONSTANTS:
        problems: list[Problem] = [DoubleWell(5), MultiKink(3)]
        for i, problem in enumerate(problems):
            p = theory.plan(400, 1.0, gap=problem.gap, lipschitz=problem.lipschitz, noise=NOISE, constants=constants)
            x = problem.start().requires_grad_()
            run = trace(p.optimizer([x], seed=seed + i), Additive(problem, NOISE), 100, seed)
            y, m = problem.start().numpy(), 0.0
            for t, (point, g) in enumerate(zip(run.points, run.gradients, strict=True), 1):
                worst = greatest(worst, float(np.abs(point - y).max()))
                m = p.momentum * m + (1 - p.momentum) * g
                y = y - Exponential().sample(seed + i, t + 1) * p.effective_lr * m
            size = greatest(size, float(np.abs(run.points[-1] - run.points[0]).max()))
    measured = f"largest difference of the iterates in 6 runs of 100 steps, which moved by up to {size:.2g}"
    return Finding(measured, worst, 1e-12 * size)


def slope(values: Array, steps: Array) -> float:
    """Return the slope of log mean against log N; values has one row for every N."""
    return float(np.polyfit(np.log(steps), np.log(values.mean(1)), 1)[0])


Fit = tuple[float, float]  # a slope over N, and the upper end of its 95 % interval


def fitted(problem: Problem, regimes: Sequence[dict[str, Any]], seed: int, scale: float) -> list[Fit]:
    """Return the slope over N of the mean certificate and its 95 % bootstrap interval's end, regime by regime.

    A regime is what chooses c, and the constants. All runs are made at once, so that more of them cost little.
    """
    steps, seeds = np.array([2**k for k in range(8, 14 if scale >= 1 else 12)]), enough(32, scale, 32)
    make = partial(theory.plan, gap=problem.gap, lipschitz=problem.lipschitz, noise=NOISE)
    plans = [make(n, **regime) for regime in regimes for n in steps.tolist()]
    found = mean_certificates(Additive(problem, NOISE), plans, range(seed, seed + seeds))
    fits = []
    for values in found.reshape(len(regimes), len(steps), seeds):
        rng = np.random.default_rng(seed)
        again = [slope(rng.permuted(values[:, rng.integers(seeds, size=seeds)], axis=1), steps) for _ in range(400)]
        fits.append((slope(values, steps), float(np.quantile(again, 0.975))))
    return fits


def exponent(**regime: Any) -> float:
    """Return d log steps_for / d log ε at small ε."""
    known: dict[str, Any] = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "constants": "regret", **regime}
    few, many = (theory.steps_for(eps, **known) for eps in (1e-2, 1e-3))
    return math.log(few / many) / math.log(10)


def both(**regime: Any) -> list[dict[str, Any]]:
    """Return the regime with the constants of the regret and with the printed ones."""
    return [{**regime, "constants": constants} for constants in ("regret", "paper")]


def _rate(found: dict[str, list[Fit]], right: float, exponents: dict[float, float]) -> Finding:
    """Make the finding: fitted slopes at most ``right``, and exponents of steps_for as they should be, within 2 %.

    The slopes of the printed plans are named but not judged: so few steps are before their asymptotics.

    Args:
        found: by the problem's name, its fits in the regimes of `both`.
        right: the slope of the theorem.
        exponents: by the exponent wanted, the one measured.
    """
    worst = greatest(found, key=lambda name: found[name][0][1])
    fits = ", ".join(f"{name} {regret[0]:.3f}" for name, (regret, *_) in found.items())
    powers = ", ".join(f"ε^{got:.2f}" for got in exponents.values())
    measured = (
        f"slope in N from 256 on, regret plans ({fits}), upper end of its 95 % interval; steps_for as {powers}; "
        f"not judged, printed plans: {', '.join(f'{printed[0]:.3f}' for _, printed, *_ in found.values())}"
    )
    also = all(abs(got / want - 1) < 0.02 for want, got in exponents.items())
    # both sides are negative; a slope as an order of decay reads the other way round
    return Finding(measured, -found[worst][0][1], -right, ">=", also=also)


@statement("rate-nonsmooth", "decay of E‖∇F(x̄)‖_c: N^{−2/7}, N^{−1/3}")
def rate_nonsmooth(seed: int, scale: float) -> Finding:
    """Theorem SGDM: N^{−2/7} at fixed c, and N^{−1/3} while c is small."""
    well = fitted(DoubleWell(10), [*both(c=1.0), *both(c=1e-3)], seed, scale)
    found = {"double well": well, "multi-kink": fitted(MultiKink(10), both(c=1.0), seed, scale)}
    finding = _rate(found, -2 / 7, {-3.5: exponent(c=1.0), -3.0: exponent(c=1e-12)})
    (regret, _), (printed, upper) = well[2:]
    measured = f"{finding.measured}; at c = 0.001 the printed {printed:.3f}, judged, the regret {regret:.3f}, not"
    return replace(finding, measured=measured, also=finding.also and upper <= -1 / 3)


def _smooth_rates(regime: str, seed: int, scale: float) -> dict[str, list[Fit]]:
    problems: dict[str, Problem] = {"cosine": Cosine(10), "ripple": Ripple(4)}
    return {
        name: fitted(problem, both(**{regime: getattr(problem, regime)}), seed, scale)
        for name, problem in problems.items()
    }


@statement("rate-smooth", "decay for smooth F, c = H²/ε: N^{−1/4}")
def rate_smooth(seed: int, scale: float) -> Finding:
    """Section 4.3, smooth case."""
    return _rate(_smooth_rates("smoothness", seed, scale), -1 / 4, {-4.0: exponent(smoothness=1.0)})


@statement("rate-second-order", "decay for ρ-smooth ∇²F, c = ρ/2: N^{−2/7}")
def rate_second_order(seed: int, scale: float) -> Finding:
    """Section 4.3, second-order smooth case."""
    return _rate(_smooth_rates("second_order", seed, scale), -2 / 7, {-3.5: exponent(second_order=1.0)})


@statement("steps-for", "least N with B ≤ ε, to the last step")
def steps_for(seed: int, scale: float) -> Finding:
    """The numbers of steps that the bounds ask for, against values computed once; and that N is the least."""
    known = {"paper": (1.12e6, 2.97e8), "regret": (1913, 453385), "sharp": (682, 168894)}
    unit: dict[str, Any] = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": 1.0}
    worst, least, exact = (0.0, 0.0, 0.0), True, True
    for constants, values in known.items():
        for eps, value in zip((0.5, 0.1), values, strict=True):
            n = theory.steps_for(eps, constants=constants, **unit)
            exact = exact and (constants == "paper" or n == value)
            worst = greatest(worst, (abs(n / value - 1), float(n), float(value)))
            below, at = (theory.bound(k, constants=constants, **unit) for k in (n - 1, n))
            least = least and at <= eps < below
    measured = "the value furthest from the one known, ε = .5, .1, printed (to 3 digits), regret and sharp (exactly)"
    return Finding(measured, worst[1], worst[2], "==", also=least and exact, tolerance=0.005 * worst[2])
