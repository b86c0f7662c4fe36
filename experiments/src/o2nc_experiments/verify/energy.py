"""The energy theorem: plain momentum, any lr and any β; and the output law under which its bound is best.

With m_n = Σ_{t<=n} β^{n−t}g_t the learner plays Δ_{n+1} = −ηβm_n, and T = 2F*/η + A²N bounds the energy of a run,
(1 − β²) Σ_{n<N} E‖m_n‖² + E‖m_N‖². The formulas are written here once more, apart from `o2nc.theory`.
"""

import math

import numpy as np

from o2nc import ExponentiatedO2NC
from o2nc.learners import OGD
from o2nc.problems import Additive, Climber, Cosine, DoubleWell, MultiKink, Oracle, Problem, Resonance, Washboard
from o2nc_experiments.batch import Algorithm2, run_algorithm_2
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, mean_error, statement
from o2nc_experiments.verify.traces import Array, discounted, trace

OUTPUTS = ("geometric", "uniform")


def spread_factor(beta: float) -> float:
    """Return C of the variance lemma."""
    return 2 * beta * (1 + beta * math.sqrt(2 - beta**2)) / (1 + beta) ** 2


def energy_bound(
    lr: float, beta: float, steps: int, c: float, *, gap: float, lipschitz: float, noise: float, output: str
) -> float:
    """Return the bound on E‖∇F(x̄)‖_c, x̄ = x̄_n with n uniform or drawn by `output_law`."""
    alpha, q = 1 - beta, 1 - beta**2
    energy = 2 * gap / lr + (lipschitz**2 + noise**2) * steps
    spread = c * spread_factor(beta) * lr**2 * beta**2 * energy / (alpha**2 * q * steps)
    if output == "geometric":
        mean = math.sqrt((alpha**2 * (steps - 1) / q + 1) * energy) / steps
        return mean + noise * (alpha * (steps - 1) + 1) / (steps * math.sqrt(q)) + spread
    mean = alpha / steps * math.sqrt(((steps - 1) / q + 1) * energy)
    return beta * lipschitz / (alpha * steps) + mean + noise * alpha / math.sqrt(q) + spread


def best_energy(steps: int, c: float, *, gap: float, lipschitz: float, noise: float) -> tuple[float, float, float]:
    """Return the lr and the β at which the bound under `output_law` is least, and that bound; on ever finer grids."""

    def at(log_lr: float, log_alpha: float) -> float:
        known = {"gap": gap, "lipschitz": lipschitz, "noise": noise}
        return energy_bound(math.exp(log_lr), 1 - math.exp(log_alpha), steps, c, **known, output="geometric")

    unit = 2 * gap / ((lipschitz**2 + noise**2) * steps)
    x, y, width = math.log(unit), math.log(min(steps ** (-4 / 7), 0.3)), 4.0
    while width > 1e-6:
        grid = [(x + i * width, min(y + j * width, math.log(0.5))) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        best = min(grid, key=lambda p: at(*p))
        width, (x, y) = (width / 2 if best == (x, y) else width), best
    return math.exp(x), 1 - math.exp(y), at(x, y)


@statement("energy-identity", "⟨g,Δ⟩ = −(η/2)(‖m_t‖²−β²‖m_{t−1}‖²−‖g‖²)")
def energy_identity(seed: int, scale: float) -> Finding:
    """The square of m_t = βm_{t−1} + g_t, with Δ as the library plays it."""
    rng = np.random.default_rng(seed)
    worst, count = 0.0, enough(6, scale)
    for i in range(count):
        problems: list[Problem] = [DoubleWell(3), MultiKink(2), Cosine(4)]
        oracle = Additive(problems[i % 3], 0.5)
        lr, beta = float(10 ** rng.uniform(-3, 0)), float(1 - 10 ** rng.uniform(-2.5, -0.3))
        x = oracle.problem.start().requires_grad_()
        run = trace(ExponentiatedO2NC([x], OGD(lr), beta=beta, seed=seed + i), oracle, 100, seed + i)
        energy = (discounted(run.gradients, beta) ** 2).sum(1)
        before, own = beta**2 * np.concatenate([[0.0], energy[:-1]]), (run.gradients**2).sum(1)
        left, right = (run.gradients * run.updates).sum(1), -lr / 2 * (energy - before - own)
        worst = greatest(worst, float((np.abs(left - right) / (lr * (energy + before + own))).max()))
    return Finding(f"largest difference, relative to the terms, in {count} runs of 100 steps", worst, 1e-12)


def energy_cases(seed: int, scale: float) -> list[tuple[Oracle, list[tuple[float, float]]]]:
    """Return problems, each with several lr and β: at random, or those that its theorem finds hardest."""
    rng = np.random.default_rng(seed)
    steps, trap = 1000, Resonance.zero(1, momentum=0.5)
    lr, beta, _ = best_energy(steps, 1.0, gap=1.0, lipschitz=1.0, noise=0.0)
    cases: list[tuple[Oracle, list[tuple[float, float]]]]
    cases = [
        (Additive(Washboard.against(lr, beta, steps), 0.0), [(lr, beta)]),
        (Additive(trap, 0.0), [(trap.lr, trap.momentum)]),
    ]
    for problem, noise in ((DoubleWell(10), 1.0), (MultiKink(10), 0.0), (Cosine(10), 1.0), (Climber(2), 0.3)):
        unit = 2 * problem.gap / ((problem.lipschitz**2 + noise**2) * steps)
        powers = rng.uniform([-1.5, -2.0], [1.5, -0.2], size=(enough(4, scale), 2))
        cases.append((Additive(problem, noise), [(unit * 10**p, 1 - 10**q) for p, q in powers.tolist()]))
    return cases


@statement("theorem-energy", "E‖∇F(x̄)‖_c ≤ √(αT/2N) + … for any lr, β")
def theorem_energy(seed: int, scale: float) -> Finding:
    """The energy theorem for lr and momentum that somebody chose, and for the washboard, where it is nearly tight."""
    steps, seeds, ratios, worst = 1000, enough(6, scale, 4), [], (0.0, 0.0, 1.0)
    for oracle, settings in energy_cases(seed, scale):
        c = 1e-6 if isinstance(oracle.problem, Resonance) else 1.0
        runs = [Algorithm2(steps, lr, 0.0, beta, c, seed + k) for lr, beta in settings for k in range(seeds)]
        outcomes = run_algorithm_2(oracle, runs, noise_seed=seed)
        known = {"gap": oracle.problem.gap, "lipschitz": oracle.problem.lipschitz, "noise": oracle.noise}
        for i, (lr, beta) in enumerate(settings):
            found = outcomes[i * seeds : (i + 1) * seeds]
            for output in OUTPUTS:
                bound = energy_bound(lr, beta, steps, c, **known, output=output)
                values = [o.geometric if output == "geometric" else o.certificate for o in found]
                mean, error = mean_error(values)
                ratios.append((mean + Z * error) / bound)
                worst = greatest(worst, (mean / bound, mean, bound))
    measured = (
        f"tightest of {len(ratios)} means over {seeds} runs of {steps} steps, on the washboard (6 problems, both "
        f"outputs, lr and β at random); with {Z:g} standard errors the greatest ratio is {greatest(ratios):.3f}"
    )
    return Finding(measured, worst[1], worst[2], also=greatest(ratios) <= 1 and worst[0] > 0.9)


def output_law(beta: float, steps: int) -> Array:
    """Return P(1), …, P(N): (1 − β^n)/N for n < N, (1 − β^N)/(αN) for N."""
    n = np.arange(1, steps + 1)
    return (1 - beta**n) / steps * np.where(n < steps, 1.0, 1 / (1 - beta))


@statement("output-law", "P(n) is the law of min(t + Geometric, N)")
def output_law_check(seed: int, scale: float) -> Finding:
    """The output law against its definition, t uniform on 1..N and P(Geometric = k) = αβ^k."""
    worst = total = 0.0
    for beta, steps in ((0.5, 1), (0.5, 7), (0.9, 100), (0.99, 300), (0.999, 300)):
        k = np.arange(steps)
        drawn = np.zeros(steps)
        for t in range(1, steps + 1):
            drawn[t - 1 :] += (1 - beta) * beta ** k[: steps - t + 1] / steps
            drawn[-1] += beta ** (steps - t + 1) / steps  # beyond N
        p = output_law(beta, steps)
        worst = greatest(worst, float(np.abs(p - drawn).max()))
        total = greatest(total, abs(float(p.sum()) - 1))
    return Finding(
        f"largest difference, five β and N; the sum is 1 up to {total:.0e}", worst, 1e-13, also=total < 1e-12
    )
