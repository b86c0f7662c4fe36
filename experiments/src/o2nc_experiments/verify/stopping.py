"""What a run tells about itself: stopping times, plateaus, kinks, convex functions, and a scale that is learned."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy import optimize

from o2nc import Exponential, Gamma, Law, problems, theory
from o2nc.learners import OGD, CoinBetting
from o2nc.problems import Additive
from o2nc_experiments.runs import scalars
from o2nc_experiments.verify.regret import traces
from o2nc_experiments.verify.row import Array, Sides, Z, discounted, enough, mean_error, row, worst

# ---- Stopping by the certificate


def rates_by_hand(alpha: float, eta: float, eps: float, c: float, size: float, noise: float) -> tuple[float, float]:
    """Return r and b of the stopping theorem for G² + σ² = size², with the root q by SciPy."""
    beta = 1 - alpha
    k, e = c * theory.spread_constant(beta) * (eta * beta / alpha) ** 2, eps - noise * math.sqrt(alpha / (1 + beta))
    q = optimize.brentq(lambda q: alpha * math.sqrt(q) + k * q - e, 0, (e / alpha) ** 2, xtol=1e-15, rtol=1e-14)
    y = (1 - beta**2) * q / size**2 - 1
    return eta * size**2 * y / 2, 2 / alpha * eps / e * (1 + 1 / y)


@row("stopping-time", "E τ ≤ E[F(x_0) − F(x_τ)]/r + b")
def stopping_time(seed: int, scale: float) -> Sides:
    """Runs that end when their certificate is ε; the energy identity at τ is exact in the mean."""
    found, agrees, deviation = [], True, 0.0
    for problem, noise in ((problems.MultiKink(4), 0.0), (problems.MultiKink(4), 0.5), (problems.DoubleWell(3), 0.0)):
        g, c = problem.lipschitz, problem.lipschitz**3 / problem.gap**2
        p = theory.stopping_plan(0.35 * g, c, lipschitz=g, noise=noise)
        beta, eta = p.momentum, p.lr / p.momentum
        agrees &= np.allclose(
            rates_by_hand(p.alpha, eta, p.eps, c, math.hypot(g, noise), noise), (p.fall, p.overhead), rtol=1e-5
        )
        runs = traces(Additive(problem, noise), OGD(eta), beta, 600, range(seed, seed + enough(100, scale, 50)))
        stops = runs.certificates(beta, c)[1] <= p.eps
        agrees &= bool(stops.any(1).all())
        at, every = stops.argmax(1), np.arange(len(stops))  # τ − 1
        values = problem.value(torch.from_numpy(runs.points)).numpy()
        fell = values[:, 0] - values[every, at]
        energy = (discounted(runs.gradients, beta) ** 2).sum(2)
        before = (energy.cumsum(1) - energy)[every, at]
        seen = (runs.gradients**2).sum(2).cumsum(1)[every, at]
        error = fell - eta / 2 * ((1 - beta**2) * before + energy[every, at] - seen)
        deviation = max(deviation, abs(error.mean()) / mean_error(error)[1])
        right = fell.mean() / p.fall + p.overhead
        found.append(((at.mean() + 1) / right, at.mean() + 1, right))
    _, left, right = worst(found)
    measured = (
        f"largest of {len(found)} means of τ; the energy identity at τ is off by {deviation:.1f} errors ({Z:g})"
    )
    return Sides(measured, left, right, also=agrees and deviation <= Z)


def ladder_steps(r: Array, b: Array, y: Array) -> float:
    """Return (F* + Σ_{j<K} r_jb_j/(1 + y_j))/r_K + Σb_k for F* = 1."""
    return float((1 + (r * b / (1 + y))[:-1].sum()) / r[-1] + b.sum())


@row("ladder", "E Στ_k ≤ (F* + Σ r_jb_j/(1+y_j))/r_K + Σb_k")
def ladder(seed: int, scale: float) -> Sides:
    """Stages that telescope: the worst falls of F that the stages allow for, by a linear program."""
    found = []
    for noise in (0.0, 1.0):
        stages = [theory.stopping_plan(eps, 1.0, lipschitz=1.0, noise=noise) for eps in (0.4, 0.2, 0.1)]
        r, b, y = (np.array([getattr(s, name) for s in stages]) for name in ("fall", "overhead", "excess"))
        partial = np.tril(np.ones((len(r), len(r))))
        limits = np.concatenate([[1.0], np.cumsum(r * b / (1 + y))])
        most = optimize.linprog(-1 / r, np.vstack([partial[-1:], -partial]), limits, bounds=(None, None))
        left, right = -most.fun + b.sum(), ladder_steps(r, b, y)
        found.append((left / right, left, right))
    ratio, left, right = worst(found)
    measured = "most steps that three stages down to ε = 0.1 can take, σ = 0 and 1, against the sum"
    return Sides(measured, left, right, also=ratio > 0.98)


@row("stop-with-noise", "P(‖ḡ−∇̄‖ > u_j or mean off by ωε) ≤ p_j")
def stop_with_noise(seed: int, scale: float) -> Sides:
    """Signs, the errors with the heaviest averages: the margin of ḡ, and the mean of K fresh gradients."""
    rng, beta, n, p, found = np.random.default_rng(seed), 0.9, 60, 0.2, []
    runs, weights, exact = enough(20_000, scale, 4000), beta ** np.arange(59, -1.0, -1), True
    errors = 2 * np.abs(rng.choice([-1.0, 1.0], (runs, n)) @ weights) / weights.sum()
    for j in (1, 3):
        share = p / (j * (j + 1))
        margin = 2 * math.sqrt(2 * (1 - beta) / (1 + beta) * math.log(2 / share)) / (1 - beta**n)
        found.append(((errors > margin).mean() / share, (errors > margin).mean(), share))
        k = theory.holdout_samples(j, 0.8, largest=2.0, failure=p)
        exact &= 2 * math.exp(-k * 0.8**2 / 32) <= share < 2 * math.exp(-(k - 1) * 0.8**2 / 32)
        off = np.abs(2 * rng.choice([-1.0, 1.0], (runs // 10, k)).mean(1)) > 0.8
        found.append((off.mean() / share, off.mean(), share))
    _, left, right = worst(found)
    measured = f"largest share of failures, checks 1 and 3, {runs} averages of signs and {runs // 10} hold-outs"
    return Sides(measured, left, right, also=exact)


# ---- Plateaus: m_t = b·m_{t−1} + g_t, x_{t+1} = x_t − s·ℓ·m_t


class Run(NamedTuple):
    """Many runs of momentum, (steps, runs, d) each."""

    x: Array
    g: Array
    m: Array


def momentum(
    start: Array, lr: float, b: float, steps: int, law: Law, seed: int, slope: Callable[[Array], Array], noise: float
) -> Run:
    """Run momentum from every row of ``start``, with s of its own."""
    rng, x, m, rows = np.random.default_rng(seed), start.copy(), np.zeros_like(start), []
    seeds = range(seed, seed + len(start))
    for t in range(1, steps + 1):
        g = slope(x) + noise * rng.standard_normal(x.shape)
        m = b * m + g
        rows.append((x, g, m))
        x = x - lr * scalars([law] * len(seeds), seeds, t).numpy() * m
    return Run(*(np.stack(part) for part in zip(*rows, strict=True)))


def bumpy(x: Array) -> Array:
    """Return a function with convex and concave kinks and a bowl."""
    return (np.abs(x) - 0.6 * np.abs(x - 1) + 0.1 * x**2).sum(-1)


def bumpy_slope(x: Array) -> Array:
    """Return its gradient."""
    return np.sign(x) - 0.6 * np.sign(x - 1) + 0.2 * x


@row("plateau", "F(x_M)−F(x_N) = (ℓ/2b)E[(1−b²)Σ‖m‖²+…−Σ‖g‖²]")
def plateau(seed: int, scale: float) -> Sides:
    """The energy identity over a stretch, with noise; under Gamma(16) it fails, and ρ = 1 where F is stationary."""
    b, lr, first, last, z = 0.8, 0.1, 7, 40, []
    sides = (0.0, 0.0, 1.0)
    for law in (Exponential(), Gamma(16.0)):
        run = momentum(np.full((enough(2500, scale, 1000), 2), 1.4), lr, b, last, law, seed, bumpy_slope, 0.5)
        m, g = (run.m**2).sum(2), (run.g**2).sum(2)
        fell = bumpy(run.x[first - 1]) - bumpy(run.x[-1])
        right = (1 - b**2) * m[first - 1 : -1].sum(0) + m[-1] - m[first - 1] - g[first:].sum(0)
        mean, error = mean_error(fell - lr / (2 * b) * right)
        z.append(abs(mean) / error)
        sides = sides if len(z) > 1 else (float(fell.mean()), float(lr / (2 * b) * right.mean()), error)
    run = momentum(np.ones((40, 1)), 0.05, 0.9, enough(1600, scale, 800), Exponential(), seed, np.sign, 0.0)
    m2, g2 = ((part[400:] ** 2).mean() for part in (run.m, run.g))
    ratio = (1 - 0.9**2) * m2 / g2
    measured = f"both sides in the mean; Gamma(16) is off by {z[1]:.0f} errors; on |x| ρ = {ratio:.3f}"
    also = z[1] > Z and abs(ratio - 1) < 0.1
    return Sides(measured, sides[0], sides[1], "==", also=also, tolerance=Z * sides[2])


@row("progress-error", "E(F(x_n) − F(x_0) − R_n)² = E Σ⟨g,Δ⟩²")
def progress_error(seed: int, scale: float) -> Sides:
    """The error that the progress has, and the sum that knows it."""
    b, lr = 0.8, 0.15
    run = momentum(np.full((enough(6000, scale, 1500), 2), 1.4), lr, b, 25, Exponential(), seed, bumpy_slope, 0.5)
    gains = -lr * (run.g[1:] * run.m[:-1]).sum(2)
    squared, known = (bumpy(run.x[-1]) - bumpy(run.x[0]) - gains.sum(0)) ** 2, (gains**2).sum(0)
    measured = f"both sides, mean of {squared.size} runs of 25 steps"
    tolerance = Z * mean_error(squared - known)[1]
    return Sides(measured, squared.mean(), known.mean(), "==", tolerance=tolerance)


def kappa(b: float, second_moment: float = 2.0) -> float:
    """Return κ = (v(1 − b) + 2b)/(2(1 + b)), v = E s²."""
    return (second_moment * (1 - b) + 2 * b) / (2 * (1 + b))


@row("kink-level", "at a kink E F − F* = κℓ̄ρE‖g‖², any law")
def kink_level(seed: int, scale: float) -> Sides:
    """The level of stationary runs on ‖x‖₁ with noise, under Exp(1) and Gamma(2)."""
    found = []
    for b, law in ((0.0, Exponential()), (0.9, Exponential()), (0.9, Gamma(2.0))):
        start = np.random.default_rng(seed).normal(size=(60, 2))
        run = momentum(start, 0.02, b, enough(4000, scale, 2000), law, seed, np.sign, 0.5)
        x, _, m = (part[1000:] for part in run)
        m2 = float((m**2).sum(2).mean())
        level = kappa(b, law.second_moment) * 0.02 / (1 - b) * (1 - b**2) * m2  # ρE‖g‖² = (1 − b²)E‖m‖²
        left = float(np.abs(x).sum(2).mean())
        found.append((abs(left / level - 1), left, level))
    _, left, right = worst(found)
    return Sides("level furthest from its formula, of 3 stationary runs", left, right, "==", tolerance=0.05 * right)


def convex_bound(steps: int, lr: float, b: float, distance: float, noise: float) -> float:
    """Return D²/(2ℓ̄n) + κℓ̄A² + 2bκΦ/((1 − b)n) for G = 1 and Φ = D."""
    longer, start = lr / (1 - b), 2 * b * kappa(b) * distance / (1 - b)
    return (distance**2 / (2 * longer) + start) / steps + kappa(b) * longer * (1 + noise**2)


@row("convex", "mean E F − F* ≤ D²/2ℓ̄n + κℓ̄A² + …, convex F")
def convex(seed: int, scale: float) -> Sides:
    """The bound for convex F on ‖x‖ in three dimensions, nearly attained; and stages that halve the distance."""
    found, halves = [], []
    for b, noise in ((0.0, 0.0), (0.9, 1.0)):
        lr, steps = 0.03 * (1 - b), enough(3000, scale, 1500)
        start = np.tile([[0.3, 0.0, 0.0]], (60, 1))
        run = momentum(
            start, lr, b, steps, Exponential(), seed,
            lambda x: x / np.linalg.norm(x, axis=1, keepdims=True), noise / 3**0.5,
        )  # fmt: skip
        levels = np.linalg.norm(run.x, axis=2).mean(0)
        bound = convex_bound(steps, lr, b, 0.3, noise)
        found.append((levels.mean() / bound, levels.mean() - Z * mean_error(levels)[1], bound))
        square = 4 * (1 + noise**2)  # (A/μ)² at G = D = 1, μ = ½
        lr, steps = (1 - b) / (2 * kappa(b) * square), math.ceil(16 * kappa(b) * max(square, 2 * b / (1 - b)))
        run = momentum(
            np.ones((200, 1)), lr, b, steps, Exponential(), seed,
            lambda x: np.where(x > 0, 0.5, -1.0), noise,
        )  # fmt: skip
        halves.append(np.abs(run.x).mean())
        halves.append(2 * convex_bound(steps, lr, b, 1.0, noise))  # at most μD/2
    ratio, left, right = worst(found)
    measured = f"closest of 2 means to its bound; a sharp stage leaves {max(halves):.2f} of the distance, at most ½"
    return Sides(measured, left, right, also=ratio > 0.9 and max(halves) <= 0.5 + 1e-9)


@row("learned-scale", "price of the gap: R_N(D)/DN, coin betting")
def learned_scale(seed: int, scale: float) -> Sides:
    """A bettor's regret on signs that turn late, the worst for it, against what the theorem charges."""
    plan, steps, largest, wealth = theory.adaptive_plan(400, 1.0, 1.0), 400, 1.0, 0.1
    bets = 2 * largest * plan.radius * (steps + 1)
    charged = wealth + bets / math.sqrt(steps + 1) * math.sqrt(math.log1p((bets / wealth) ** 2))
    better, ratios = CoinBetting(wealth=wealth, lipschitz=2 * largest), []
    rng = np.random.default_rng(seed)
    for share in np.linspace(0, 1, enough(12, scale, 6)):
        bet, total, lost = torch.zeros(1, dtype=torch.float64), 0.0, 0.0
        purse = [better.init(bet)]
        for t in range(steps):
            push = (-2.0 if t < share * steps else 2.0) * largest * rng.choice([1.0, -1.0], p=[0.75, 0.25])
            lost, total = lost + push * bet.item(), total + push
            better.update([bet], [torch.tensor([push], dtype=torch.float64)], purse, [1.0], beta=1.0)
        ratios.append((lost + abs(total) * plan.radius) / charged)
    measured = f"greatest regret over the charge in {len(ratios)} games of {steps} bets"
    return Sides(measured, float(np.max(ratios)), 1.0)
