"""The adaptive theorem: `BallAdaGrad` knows neither G nor σ, and has its regret and its bound all the same."""

import math

import numpy as np
import torch

from o2nc.learners import BallAdaGrad
from o2nc.problems import Additive, Climber, Cosine, DoubleWell, MultiKink, Problem, Washboard
from o2nc.theory.adaptive import adaptive_plan
from o2nc_experiments.batch import Adaptive, run_algorithm_2
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, mean_error, statement
from o2nc_experiments.verify.energy import OUTPUTS, best_energy, spread_factor


def greedy_regret(radius: float, beta: float, rng: np.random.Generator, steps: int) -> float:
    """Return the greatest Reg_n(u)/(2√2·D√Q_n) along a run in which every gradient is the worst of many.

    The worst u is −D M_n/‖M_n‖, so that β^n Reg_n = Σ_t β^{n−t}⟨g_t, Δ_t⟩ + D‖M_n‖; and β^n√Q_n = √v_n.
    """
    learner, delta = BallAdaGrad(lr=radius), torch.zeros(2, dtype=torch.float64)
    state = learner.init(delta)
    loss, m, v, worst = 0.0, np.zeros(2), 0.0, 0.0
    for _ in range(steps):
        tried = rng.normal(size=(40, 2)) * np.exp(1.5 * rng.normal(size=(40, 1)))
        losses, sums, squares = beta * loss + tried @ delta.numpy(), beta * m + tried, beta**2 * v + (tried**2).sum(1)
        regrets = (losses + radius * np.linalg.norm(sums, axis=1)) / (2 * math.sqrt(2) * radius * np.sqrt(squares))
        best = int(regrets.argmax())
        loss, m, v, worst = losses[best], sums[best], squares[best], greatest(worst, float(regrets[best]))
        learner.update([delta], [torch.from_numpy(tried[best])], [state], [radius], beta)
    return worst


@statement("adaptive-regret", "BallAdaGrad: Reg_n(u) ≤ 2√2·D√Q_n, ‖u‖ ≤ D")
def adaptive_regret(seed: int, scale: float) -> Finding:
    """The regret of the adaptive learner against a greedy adversary."""
    rng = np.random.default_rng(seed)
    count = enough(24, scale, 8)
    ratios = [
        greedy_regret(float(10 ** rng.uniform(-2, 2)), (0.5, 0.9, 0.99, 1.0)[i % 4], rng, 100) for i in range(count)
    ]
    measured = f"greatest regret over the bound in {count} games of 100 steps, every gradient the worst of 40"
    return Finding(measured, greatest(ratios), 1.0, also=greatest(ratios) > 0.7)


def adaptive_bound(
    radius: float, beta: float, steps: int, c: float, *, problem: Problem, noise: float
) -> list[float]:
    """Return the theorem's right side, under the output law and for a uniform n."""
    alpha, a = 1 - beta, math.hypot(problem.lipschitz, noise)
    unknown = (noise + 2 * math.sqrt(2) * a) * (alpha + beta / steps) / math.sqrt(1 - beta**2)
    bound = problem.gap / (radius * steps) + unknown + c * spread_factor(beta) * radius**2 / alpha**2
    return [bound, bound + beta * problem.lipschitz / (alpha * steps)]


@statement("theorem-adaptive", "E‖∇F(x̄)‖_c ≤ F*/DN + (σ+2√2A)√(α/2) + …")
def theorem_adaptive(seed: int, scale: float) -> Finding:
    """The adaptive theorem, with its own D and β and with others, on problems whose G and σ it is not told."""
    rng = np.random.default_rng(seed)
    steps, seeds, worst, ratios, agree = 1000, enough(6, scale, 4), (0.0, 0.0, 1.0), [], True
    lr, beta, _ = best_energy(steps, 1.0, gap=1.0, lipschitz=1.0, noise=0.0)
    problems: list[tuple[Problem, float]]
    problems = [(Washboard.against(lr, beta, steps), 0.0), (DoubleWell(10), 3.0), (MultiKink(10), 0.0)]
    problems += [(Cosine(10), 1.0), (Climber(2), 0.3)]
    for problem, noise in problems:
        p = adaptive_plan(steps, 1.0, problem.gap)
        settings = [(p.radius, p.beta)]
        settings += [(p.radius * 10**a, 1 - 10**b) for a, b in rng.uniform([-1, -2], [1, -0.3], size=(2, 2)).tolist()]
        runs = [Adaptive(steps, d, beta, 1.0, seed + k) for d, beta in settings for k in range(seeds)]
        outcomes = run_algorithm_2(Additive(problem, noise), runs, noise_seed=seed)
        for i, (d, beta) in enumerate(settings):
            found = outcomes[i * seeds : (i + 1) * seeds]
            bounds = adaptive_bound(d, beta, steps, 1.0, problem=problem, noise=noise)
            for output, bound in zip(OUTPUTS, bounds, strict=True):
                mean, error = mean_error([o.geometric if output == "geometric" else o.certificate for o in found])
                ratios.append((mean + Z * error) / bound)
                worst = greatest(worst, (mean / bound, mean, bound))
                if i == 0:
                    told = p.bound(lipschitz=problem.lipschitz, noise=noise, output=output)
                    agree = agree and math.isclose(told, bound, rel_tol=1e-9)
    measured = (
        f"tightest of {len(ratios)} means over {seeds} runs of {steps} steps (5 problems, both outputs, the plan's "
        "D and β and others)"
    )
    return Finding(measured, worst[1], worst[2], also=agree and greatest(ratios) <= 1)
