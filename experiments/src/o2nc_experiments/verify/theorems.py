"""The convergence theorems, on kinked problems and against their constants."""

import math

import numpy as np

from o2nc import theory
from o2nc.learners import OGD
from o2nc.optimizers.exponentiated import ExponentiatedO2NC
from o2nc.problems import Additive, Cosine, DoubleWell, MultiKink, Oracle, Problem, Resonance
from o2nc.scaling import Exponential
from o2nc_experiments.batch import Trial, exponentiated
from o2nc_experiments.verify.rows import Finding, Z, enough, greatest, least_of, mean_error, statement
from o2nc_experiments.verify.runs import discounted, trace


def conversion(
    oracle: Oracle, beta: float, lr: float, c: float, radius: float, *, steps: int, seed: int
) -> list[float]:
    """Return the left and the right side of Theorem O2NC for one run, with its own regrets.

    In discounted form, β^n Reg_n(u) = Σ_t β^{n−t}(⟨g_t, Δ_t − u⟩ + (μ/2)(‖Δ_t‖² − ‖u‖²)).
    """
    problem, alpha = oracle.problem, 1 - beta
    mu = 2 * theory.spread_constant(beta, "paper") * c * radius / alpha**2
    x = problem.start().requires_grad_()
    run = trace(ExponentiatedO2NC([x], OGD(lr, decay=mu), beta=beta, seed=seed), oracle, steps, seed)
    weight = discounted(np.ones((steps, 1)), beta)[:, 0]
    mean = discounted(run.full, beta) / weight[:, None]
    norm = np.linalg.norm(mean, axis=1)
    u = -radius * mean / np.maximum(norm, 1e-300)[:, None]
    losses = (run.gradients * run.updates).sum(1) + mu / 2 * (run.updates**2).sum(1)
    regret = discounted(losses[:, None], beta)[:, 0] - (discounted(run.gradients, beta) * u).sum(1)
    regret -= mu / 2 * radius**2 * weight
    g, sigma = problem.lipschitz, oracle.noise
    right = problem.gap / (radius * steps) + (2 * g + sigma) / (alpha * steps) + sigma * math.sqrt(alpha)
    right += 12 * c * radius**2 / alpha**2 + (beta * regret[-1] + alpha * regret.sum()) / (radius * steps)
    return [float((norm + c * run.spreads).mean()), right]


@statement("theorem-o2nc", "E‖∇F(x̄)‖_c ≤ F*/DN + … + regret/DN")
def theorem_o2nc(seed: int, scale: float) -> Finding:
    """Theorem O2NC, formal version, with measured regrets; the trap holds the theorem to its random scaling."""
    trap = Resonance.zero(1, momentum=0.5)
    cases: list[tuple[Oracle, float, float, float, float]] = [
        (Additive(trap, 0.0), 0.5, trap.lr, 1e-6, 1.0),
        (Additive(DoubleWell(3), 0.5), 0.9, 0.05, 1e-3, 0.2),
        (Additive(MultiKink(2), 1.0), 0.95, 0.02, 1e-3, 0.1),
    ]
    seeds, steps = enough(48, scale, 6), enough(300, scale, 150)
    sides = []
    for case in cases:
        runs = [conversion(*case, steps=steps, seed=seed + i) for i in range(seeds)]
        _, error = mean_error([right - left for left, right in runs])
        left, right = np.mean(runs, axis=0).tolist()
        sides.append((left, right + Z * error, right, error))
    left, right, plain, error = least_of(sides, key=lambda side: side[1] / side[0])
    measured = (
        f"tightest of {len(cases)} problems, means of {seeds} runs of {steps} steps, "
        f"the right one, {plain:.4f}, plus {Z:g} standard errors of the difference, {error:.4f} each"
    )
    return Finding(measured, left, right)


@statement("theorem-sgdm", "E‖∇F(x̄)‖_c ≤ B(N, c, F*, G, σ)")
def theorem_sgdm(seed: int, scale: float) -> Finding:
    """Theorem SGDM with its constants, printed and sharp."""
    problems: list[Problem] = [DoubleWell(10), MultiKink(10), Cosine(10)]
    worst, ratios = (0.0, 0.0, 1.0), []
    for problem in problems:
        plans = [
            theory.plan(n, c, gap=problem.gap, lipschitz=problem.lipschitz, noise=1.0, constants=constants)
            for n in (256, 2048)
            for c in (0.01, 1.0)
            for constants in theory.CONSTANTS
        ]
        seeds = range(seed, seed + enough(8, scale))
        outcomes = exponentiated(
            Additive(problem, 1.0), [Trial.of(p, s) for p in plans for s in seeds], noise_seed=seed
        )
        values = np.array([o.certificate for o in outcomes]).reshape(len(plans), -1)
        for p, row in zip(plans, values, strict=True):
            mean, error = mean_error(row.tolist())
            ratios.append((mean + Z * error) / p.bound)
            worst = greatest(worst, (mean / p.bound, mean, p.bound))
    measured = (
        f"mean over n of ‖Σp∇F‖+cV against the bound, tightest of {len(ratios)} (3 problems, N = 256 and 2048, "
        f"c = 0.01 and 1, printed and sharp)"
    )
    return Finding(measured, worst[1], worst[2], also=greatest(ratios) <= 1)


@statement("sgdm-map", "Algorithm 2 with OGD is SGDM with β̃, η̃")
def sgdm_map(seed: int, scale: float) -> Finding:
    """Section "Unraveling the update": m ← β̃m + (1 − β̃)g, x ← x − s·η̃·m, from the same gradients."""
    worst, size = 0.0, 0.0
    for constants in theory.CONSTANTS:
        problems: list[Problem] = [DoubleWell(5), MultiKink(3)]
        for i, problem in enumerate(problems):
            p = theory.plan(400, 1.0, gap=problem.gap, lipschitz=problem.lipschitz, noise=1.0, constants=constants)
            x = problem.start().requires_grad_()
            run = trace(p.optimizer([x], seed=seed + i), Additive(problem, 1.0), 100, seed)
            y, m = problem.start().numpy(), 0.0
            for t, (point, g) in enumerate(zip(run.points, run.gradients, strict=True), 1):
                worst = greatest(worst, float(np.abs(point - y).max()))
                m = p.momentum * m + (1 - p.momentum) * g
                y = y - Exponential().sample(seed + i, t + 1) * p.effective_lr * m
            size = greatest(size, float(np.abs(run.points[-1] - run.points[0]).max()))
    measured = f"largest difference of the iterates in 4 runs of 100 steps, which moved by up to {size:.2g}"
    return Finding(measured, worst, 1e-12 * size)
