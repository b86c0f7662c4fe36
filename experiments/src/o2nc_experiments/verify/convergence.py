"""How fast: the convergence theorems on kinked problems, with their constants and rates; and how fast at best.

The lower bound is that of Corollary lower-bound: on the hard chain nobody is fast.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from o2nc import Exponential, ExponentiatedO2NC, ScaledSGDM, theory
from o2nc.learners import OGD
from o2nc.problems import Additive, Cosine, DoubleWell, MultiKink, Oracle, Problem, Resonance, Ripple, hard_instance
from o2nc_experiments.batch import Algorithm2, run_algorithm_2
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, least_of, mean_error, statement
from o2nc_experiments.verify.energy import output_law, spread_factor
from o2nc_experiments.verify.traces import Array, discounted, trace

NOISE = 1.0  # of gradients, except in Theorem O2NC
EPS, DELTA = 0.01, 1e-4  # of the lower bound
ORACLE = hard_instance(EPS, gap=30.0, smoothness=1.0, noise=1.0)


def conversion(
    oracle: Oracle, beta: float, lr: float, c: float, radius: float, *, steps: int, seed: int, forms: Sequence[str]
) -> list[float]:
    """Return the left and the right side of Theorem O2NC for one run with its own regrets, form by form.

    In discounted form, β^n Reg_n(u) = Σ_t β^{n−t}(⟨g_t, Δ_t − u⟩ + (μ/2)(‖Δ_t‖² − ‖u‖²)). The forms are the printed
    one alone, or the sharp ones of docs/paper.md, for the uniform output and for the law P.
    """
    problem, alpha = oracle.problem, 1 - beta
    plan = theory.Plan(steps, c, problem.gap, problem.lipschitz, oracle.noise, "paper", alpha, radius)
    mu = plan.decay if "paper" in forms else 2 * spread_factor(beta) * c * radius / alpha**2
    x = problem.start().requires_grad_()
    run = trace(ExponentiatedO2NC([x], OGD(lr, decay=mu), beta=beta, seed=seed), oracle, steps, seed)
    weight = discounted(np.ones((steps, 1)), beta)[:, 0]
    mean = discounted(run.full, beta) / weight[:, None]
    norm = np.linalg.norm(mean, axis=1)
    u = -radius * mean / np.maximum(norm, 1e-300)[:, None]
    losses = (run.gradients * run.updates).sum(1) + mu / 2 * (run.updates**2).sum(1)
    regret = discounted(losses[:, None], beta)[:, 0] - (discounted(run.gradients, beta) * u).sum(1)
    regret -= mu / 2 * radius**2 * weight
    certificates, paid, sides = norm + c * run.spreads, {}, []
    paid["paper"] = paid["uniform"] = beta * regret[-1] + alpha * regret.sum()
    paid["geometric"] = regret[-1] + alpha * regret[:-1].sum()
    for form in forms:
        others = (
            sum(v for k, v in plan.terms.items() if k != "regret") if form == "paper" else sharp_terms(plan, form)
        )
        left = output_law(beta, steps) @ certificates if form == "geometric" else certificates.mean()
        sides += [float(left), others + float(paid[form]) / (radius * steps)]
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
        runs = np.array([conversion(*case, steps=steps, seed=seed + i, forms=forms) for i in range(seeds)])
        for lefts, rights in zip(runs.T[0::2], runs.T[1::2], strict=True):
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


def fitted(
    problem: Problem, seed: int, scale: float, *, constants: str = "regret", **regime: Any
) -> tuple[float, float]:
    """Return the slope over N of the mean certificate, and the upper end of its 95 % bootstrap interval."""
    steps, seeds = [2**k for k in range(8, 14 if scale >= 1 else 12)], enough(16, scale, 8)
    make = partial(theory.plan, gap=problem.gap, lipschitz=problem.lipschitz, noise=NOISE, constants=constants)
    plans = [make(n, **regime) for n in steps]
    values = mean_certificates(Additive(problem, NOISE), plans, range(seed, seed + seeds))
    rng = np.random.default_rng(seed)
    again = [
        slope(rng.permuted(values[:, rng.integers(seeds, size=seeds)], axis=1), np.array(steps)) for _ in range(400)
    ]
    return slope(values, np.array(steps)), float(np.quantile(again, 0.975))


def exponent(**regime: Any) -> float:
    """Return d log steps_for / d log ε at small ε."""
    known: dict[str, Any] = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "constants": "regret", **regime}
    few, many = (theory.steps_for(eps, **known) for eps in (1e-2, 1e-3))
    return math.log(few / many) / math.log(10)


Cases = dict[str, tuple[Problem, dict[str, Any]]]  # by name: a problem, and what chooses c


def _rate(cases: Cases, right: float, exponents: dict[float, float], seed: int, scale: float) -> Finding:
    """Make the finding: fitted slopes at most ``right``, and exponents of steps_for as they should be, within 2 %.

    The slopes of the printed plans are named but not judged: so few steps are before their asymptotics.
    """
    found = {name: fitted(problem, seed, scale, **regime) for name, (problem, regime) in cases.items()}
    printed = [fitted(problem, seed, scale, **regime, constants="paper")[0] for problem, regime in cases.values()]
    worst = greatest(found, key=lambda name: found[name][1])
    fits = ", ".join(f"{name} {fit:.3f}" for name, (fit, _) in found.items())
    powers = ", ".join(f"ε^{got:.2f}" for got in exponents.values())
    measured = (
        f"slope in N from 256 on, regret plans ({fits}), upper end of its 95 % interval; steps_for as {powers}; "
        f"not judged, printed plans: {', '.join(f'{fit:.3f}' for fit in printed)}"
    )
    also = all(abs(got / want - 1) < 0.02 for want, got in exponents.items())
    # both sides are negative; a slope as an order of decay reads the other way round
    return Finding(measured, -found[worst][1], -right, ">=", also=also)


@statement("rate-nonsmooth", "decay of E‖∇F(x̄)‖_c: N^{−2/7}, N^{−1/3}")
def rate_nonsmooth(seed: int, scale: float) -> Finding:
    """Theorem SGDM: N^{−2/7} at fixed c, and N^{−1/3} while c is small."""
    cases: Cases = {"double well": (DoubleWell(10), {"c": 1.0}), "multi-kink": (MultiKink(10), {"c": 1.0})}
    finding = _rate(cases, -2 / 7, {-3.5: exponent(c=1.0), -3.0: exponent(c=1e-12)}, seed, scale)
    printed, upper = fitted(DoubleWell(10), seed, scale, c=1e-3, constants="paper")
    regret, _ = fitted(DoubleWell(10), seed, scale, c=1e-3)
    measured = f"{finding.measured}; at c = 0.001 the printed {printed:.3f}, judged, the regret {regret:.3f}, not"
    return replace(finding, measured=measured, also=finding.also and upper <= -1 / 3)


def _smooth_cases(regime: str) -> Cases:
    problems: dict[str, Problem] = {"cosine": Cosine(10), "ripple": Ripple(4)}
    return {name: (problem, {regime: getattr(problem, regime)}) for name, problem in problems.items()}


@statement("rate-smooth", "decay for smooth F, c = H²/ε: N^{−1/4}")
def rate_smooth(seed: int, scale: float) -> Finding:
    """Section 4.3, smooth case."""
    return _rate(_smooth_cases("smoothness"), -1 / 4, {-4.0: exponent(smoothness=1.0)}, seed, scale)


@statement("rate-second-order", "decay for ρ-smooth ∇²F, c = ρ/2: N^{−2/7}")
def rate_second_order(seed: int, scale: float) -> Finding:
    """Section 4.3, second-order smooth case."""
    return _rate(_smooth_cases("second_order"), -2 / 7, {-3.5: exponent(second_order=1.0)}, seed, scale)


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


def steps_to_the_end(lr: float, momentum: float, seed: int, most: int, *, named: bool) -> int:
    """Return after how many queries the last coordinate of the chain has moved; ``most`` if it never did."""
    x = ORACLE.problem.start().requires_grad_()
    optimizer = (
        ScaledSGDM([x], lr=lr * (1 - momentum), momentum=momentum, seed=seed)
        if named
        else ExponentiatedO2NC([x], OGD(lr * (1 - momentum) / momentum), beta=momentum, average=False, seed=seed)
    )
    generator = torch.Generator().manual_seed(seed)
    for t in range(1, most + 1):
        x.grad = ORACLE.sample(x.detach(), generator)
        optimizer.step()
        if x[-1].item() != 0:
            return t
    return most


def constants_hold(seed: int) -> bool:
    """Say whether the chain has the constants it was asked for, and a large gradient until its end."""
    chain, rng = ORACLE.problem, np.random.default_rng(seed)
    width = 2 * 152 * EPS  # of the links
    x = torch.from_numpy(rng.normal(size=(2000, chain.dimension)) * width)
    x[:, -1].clamp_(-width, width)  # the end is not reached
    h = torch.from_numpy(rng.normal(size=x.shape) * 1e-4)
    bend = (chain.gradient(x + h) - chain.gradient(x)).norm(dim=1) / h.norm(dim=1)
    error = ORACLE.sample(x.repeat(20, 1), torch.Generator().manual_seed(seed)) - chain.gradient(x).repeat(20, 1)
    return (
        chain.gap <= 30.0
        and bool(bend.max() <= chain.smoothness * 1.001 <= 1.001 * 1.001)
        and bool(chain.gradient(x).norm(dim=1).min() > 2 * EPS)
        and bool(error.square().sum(1).mean().sqrt() <= ORACLE.noise <= 1 + 1e-9)
    )


@statement("lower-bound", "no fewer than Ω(F*G²c^½ε^{−7/2}) steps")
def lower_bound(seed: int, scale: float) -> Finding:
    """Corollary lower-bound, for zero-respecting algorithms: the end of the chain is not found before `steps`."""
    right = ORACLE.steps(DELTA)
    counts = [
        steps_to_the_end(lr, momentum, seed + i, 6 * right, named=named)
        for i in range(enough(3, scale))
        for lr, momentum, named in ((30.0, 0.5, False), (100.0, 0.5, True), (100.0, 0.9, False))
    ]
    # H = √(cε) and σ = G, as in the proof
    many = [
        hard_instance(eps, gap=1.0, smoothness=math.sqrt(1e4 * eps), noise=1.0).steps(0.5)
        / theory.lower_bound(eps, 1e4, gap=1.0, lipschitz=10.0)
        for eps in (1e-4, 1e-5)
    ]
    measured = (
        f"fewest queries to the end of a chain of {ORACLE.problem.length}, of {len(counts)} runs, against what is "
        f"needed with probability {1 - DELTA}; its steps follow c^½ε^{{−7/2}} to {abs(many[0] / many[1] - 1):.0e}"
    )
    also = constants_hold(seed) and abs(many[0] / many[1] - 1) < 0.02
    return Finding(measured, least_of(counts), right, ">=", also=also)
