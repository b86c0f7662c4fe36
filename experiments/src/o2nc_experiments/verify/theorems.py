"""Theorem SGDM, the energy theorem, the adaptive theorem, stability, rates, and the lower bound."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from o2nc import Exponential, ExponentiatedO2NC, Gamma, Jitter, ScaledSGDM, problems, theory
from o2nc.learners import OGD
from o2nc.problems import (
    Additive,
    Cosine,
    DoubleWell,
    MultiKink,
    Oracle,
    Problem,
    Resonance,
    hard_instance,
)
from o2nc_experiments.runs import Setting, algorithm_2
from o2nc_experiments.verify.lemmas import memory, spread_factor
from o2nc_experiments.verify.regret import traces
from o2nc_experiments.verify.row import Array, Sides, Z, discounted, enough, mean_error, row, worst

OUTPUTS = ("geometric", "uniform")

# ---- Theorem SGDM


class Bounded(NamedTuple):
    """A mean over seeds, its standard error, and the bound on it."""

    mean: float
    error: float
    bound: float


def tightest(found: Sequence[Bounded], measured: str, also: bool = True) -> Sides:
    """Return the mean that comes closest to its bound; all must be below theirs with `Z` standard errors."""
    _, left, right = worst([(f.mean / f.bound, f.mean, f.bound) for f in found])
    return Sides(measured, left, right, also=also and all(f.mean + Z * f.error <= f.bound for f in found))


def mean_certificates(oracle: Oracle, plans: Sequence[theory.Plan], seeds: Sequence[int]) -> Array:
    """Return the mean certificate of plans of equal length, a row for every plan and a column for every seed."""
    settings = [Setting(p.lr, p.beta, p.c, p.decay) for p in plans]
    runs = algorithm_2(oracle, settings, plans[0].steps, seeds)
    return np.stack([getattr(runs, p.output).view(len(plans), -1).numpy()[i] for i, p in enumerate(plans)])


@row("theorem-sgdm", "E‖∇F(x̄)‖_c ≤ B(N, c, F*, G, σ)")
def theorem_sgdm(seed: int, scale: float) -> Sides:
    """Theorem SGDM with its constants, printed and sharp."""
    found, seeds = [], range(seed, seed + enough(8, scale, 4))
    for problem in (DoubleWell(10), MultiKink(10), Cosine(10)):
        make = partial(theory.plan, gap=problem.gap, lipschitz=problem.lipschitz, noise=1.0)
        for n in (256, 2048):
            plans = [make(n, c, constants=constants) for c in (0.01, 1.0) for constants in theory.CONSTANTS]
            values = mean_certificates(Additive(problem, 1.0), plans, seeds)
            found += [Bounded(*mean_error(own), p.bound) for own, p in zip(values, plans, strict=True)]
    measured = f"tightest of {len(found)} means (3 problems, N = 256 and 2048, c = 0.01 and 1, all constants)"
    return tightest(found, measured)


@row("sgdm-map", "Algorithm 2 with OGD is SGDM with β̃, η̃")
def sgdm_map(seed: int, scale: float) -> Sides:
    """Section "Unraveling the update": m ← β̃m + (1 − β̃)g, x ← x − s·η̃·m, from the same gradients."""
    errors, size = [], 0.0
    problems: list[Problem] = [DoubleWell(5), MultiKink(3)]
    for constants in theory.CONSTANTS:
        for i, problem in enumerate(problems):
            p = theory.plan(400, 1.0, gap=problem.gap, lipschitz=problem.lipschitz, noise=1.0, constants=constants)
            x, y, m = problem.start().requires_grad_(), problem.start(), torch.zeros_like(problem.start())
            optimizer, oracle = p.optimizer([x], seed=seed + i), Additive(problem, 1.0)
            generator = torch.Generator().manual_seed(seed)
            for t in range(1, 101):
                errors.append((x.detach() - y).abs().max().item())
                x.grad = oracle.sample(x.detach(), generator)
                m = p.momentum * m + (1 - p.momentum) * x.grad
                y = y - Exponential().sample(seed + i, t + 1) * p.effective_lr * m
                optimizer.step()
            size = max(size, (x.detach() - problem.start()).abs().max().item())
    measured = f"largest difference of the iterates in 4 runs of 100 steps, which moved by up to {size:.2g}"
    return Sides(measured, float(np.max(errors)), 1e-12 * size)


# ---- The energy theorem: plain momentum, any lr and any β. With m_n = Σ_{t<=n} β^{n−t}g_t the learner plays
# Δ_{n+1} = −ηβm_n, and T = 2F*/η + A²N bounds the energy (1 − β²) Σ_{n<N} E‖m_n‖² + E‖m_N‖² of a run.


def energy_bound(setting: Setting, steps: int, gap: float, lipschitz: float, noise: float, output: str) -> float:
    """Return the bound on E‖∇F(x̄)‖_c, x̄ = x̄_n with n uniform or drawn by `output_law`; apart from `o2nc.theory`."""
    lr, beta, c, *_ = setting
    alpha, q = 1 - beta, 1 - beta**2
    energy = 2 * gap / lr + (lipschitz**2 + noise**2) * steps
    spread = c * spread_factor(beta) * lr**2 * beta**2 * energy / (alpha**2 * q * steps)
    if output == "geometric":
        mean = math.sqrt((alpha**2 * (steps - 1) / q + 1) * energy) / steps
        return mean + noise * (alpha * (steps - 1) + 1) / (steps * math.sqrt(q)) + spread
    mean = alpha / steps * math.sqrt(((steps - 1) / q + 1) * energy)
    return beta * lipschitz / (alpha * steps) + mean + noise * alpha / math.sqrt(q) + spread


def best_energy(steps: int, c: float, gap: float, lipschitz: float, noise: float) -> Setting:
    """Return the lr and the β at which the bound under `output_law` is least; on ever finer grids."""

    def setting(log_lr: float, log_alpha: float) -> Setting:
        return Setting(math.exp(log_lr), 1 - math.exp(log_alpha), c)

    unit = 2 * gap / ((lipschitz**2 + noise**2) * steps)
    x, y, width = math.log(unit), math.log(min(steps ** (-4 / 7), 0.3)), 4.0
    while width > 1e-6:
        grid = [(x + i * width, min(y + j * width, math.log(0.5))) for i in (-1, 0, 1) for j in (-1, 0, 1)]
        best = min(grid, key=lambda p: energy_bound(setting(*p), steps, gap, lipschitz, noise, "geometric"))
        width, (x, y) = (width / 2 if best == (x, y) else width), best
    return setting(x, y)


def bounded_runs(
    oracle: Oracle, settings: Sequence[Setting], bound: Callable[..., float], seeds: range, adaptive: bool
) -> list[Bounded]:
    """Run settings for 1000 steps and compare both outputs with their bounds."""
    runs = algorithm_2(oracle, settings, 1000, seeds, adaptive=adaptive)
    found = []
    for output in OUTPUTS:
        means = getattr(runs, output).view(len(settings), -1).numpy()
        found += [Bounded(*mean_error(m), bound(own, output=output)) for m, own in zip(means, settings, strict=True)]
    return found


def kinked(steps: int) -> list[tuple[Problem, float]]:
    """Return problems with their noise: the washboard, where momentum is as slow as its theorem says, and others."""
    lr, beta, *_ = best_energy(steps, 1.0, 1.0, 1.0, 0.0)
    others: list[tuple[Problem, float]] = [
        (DoubleWell(10), 1.0),
        (MultiKink(10), 0.0),
        (Cosine(10), 1.0),
        (problems.Climber(2), 0.3),
    ]
    return [(problems.Washboard.against(lr, beta, steps), 0.0), *others]


@row("theorem-energy", "E‖∇F(x̄)‖_c ≤ √(αT/2N) + … for any lr, β")
def theorem_energy(seed: int, scale: float) -> Sides:
    """The energy theorem for lr and β at random, on a trap, and on the washboard, where it is nearly tight."""
    rng, steps, trap = np.random.default_rng(seed), 1000, Resonance.zero(1, momentum=0.5)
    cases: list[tuple[Problem, float, list[Setting]]] = [(trap, 0.0, [Setting(trap.lr, trap.momentum, 1e-6)])]
    for i, (problem, noise) in enumerate(kinked(steps)):
        unit = 2 * problem.gap / ((problem.lipschitz**2 + noise**2) * steps)
        powers = rng.uniform([-1.5, -2.0], [1.5, -0.2], size=(enough(4, scale), 2)).tolist()
        settings = [Setting(unit * 10**p, 1 - 10**q) for p, q in powers]
        cases.append((problem, noise, settings if i else [best_energy(steps, 1.0, 1.0, 1.0, 0.0)]))
    found, seeds = [], range(seed, seed + enough(6, scale, 4))
    for problem, noise, settings in cases:
        known: dict[str, Any] = {"gap": problem.gap, "lipschitz": problem.lipschitz, "noise": noise}
        bound: Callable[..., float] = partial(energy_bound, steps=steps, **known)
        found += bounded_runs(Additive(problem, noise), settings, bound, seeds, adaptive=False)
    measured = f"tightest of {len(found)} means of {len(seeds)} runs of {steps} steps (6 problems, any lr, β)"
    return tightest(found, measured, also=max(f.mean / f.bound for f in found) > 0.9)


@row("energy-any-law", "energy ≤ 2F*/η + Σ‖g‖² + (2GL/η)Σ‖Δ⁺−Δ‖")
def energy_any_law(seed: int, scale: float) -> Sides:
    """The energy of runs under Gamma(2) and Gamma(4), at the price L of their memory; F's fall stands for F*."""
    trap = Resonance.zero(1, momentum=0.5)
    cases: list[Any] = [(Additive(trap, 0.0), trap.lr, trap.momentum), (Additive(MultiKink(3), 0.5), 0.1, 0.9)]
    seeds, found = range(seed, seed + enough(12, scale, 6)), []
    for r, (oracle, lr, beta) in ((r, case) for r in (2, 4) for case in cases):
        runs = traces(oracle, OGD(lr), beta, 150, seeds, Gamma(float(r)))
        energy = (discounted(runs.gradients, beta) ** 2).sum(2)
        lefts = (1 - beta**2) * energy[:, :-1].sum(1) + energy[:, -1]
        first, last = oracle.problem.value(torch.from_numpy(runs.points[:, [0, -1]])).numpy().T
        moved = np.linalg.norm(np.diff(runs.updates, axis=1), axis=2).sum(1)
        moved += np.linalg.norm(runs.updates[:, -1], axis=1)
        price = memory(r) * oracle.problem.lipschitz
        rights = 2 / lr * (first - last) + (runs.gradients**2).sum((1, 2)) + 2 / lr * price * moved
        right = rights.mean() + Z * mean_error(rights - lefts)[1]
        found.append((lefts.mean() / right, lefts.mean(), right))
    measured = f"tightest of 4: L = {memory(2):.3f}, {memory(4):.3f}, a trap and kinks, {len(seeds)} runs each"
    _, left, right = worst(found)
    return Sides(measured, left, right, also=all(a <= b for _, a, b in found))


# ---- Stability on F = λx²/2: p ← bp + x, x ← x − hsp, with the lead x − hs(x + bp); h = ℓλ, p = m/λ. A step
# multiplies z = (x, p) by A + sB, and so E z⊗z by a matrix that depends on E s = 1 and E s² only.


def moment_matrices(h: float, b: float, nesterov: bool, square: float) -> tuple[Array, Array, Array]:
    """Return A, B and E (A + sB)⊗(A + sB)."""
    moved = [-h * (1 + b), -h * b**2] if nesterov else [-h, -h * b]
    fixed, random = np.array([[1, 0], [1, b]]), np.array([moved, [0, 0]])
    mixed = np.kron(fixed, random) + np.kron(random, fixed)
    return fixed, random, np.kron(fixed, fixed) + mixed + square * np.kron(random, random)


def threshold(b: float, nesterov: bool, square: float) -> float:
    """Return the h up to which second moments do not grow, by bisection; growth passes 1 once."""
    low, high = 0.0, 10.0  # nothing bears a larger h
    for _ in range(50):
        middle = (low + high) / 2
        grows = np.abs(np.linalg.eigvals(moment_matrices(middle, b, nesterov, square)[2])).max() > 1
        low, high = (low, middle) if grows else (middle, high)
    return low


@row("stability", "E x² bounded: 1/ℓλ > 1/(2+2b) + Var s/(2−2b)")
def stability(seed: int, scale: float) -> Sides:
    """The ℓλ that momentum bears against where the moments' recursion begins to grow, and runs that follow it."""
    found, deviation = [], 0.0
    for b, nesterov in product((0.0, 0.5, 0.9, 0.99), (False, True)):
        for law in (None, Jitter(0.25), Jitter(1), Gamma(4), Exponential()):
            left = theory.stable_lr(b, law, nesterov=nesterov)
            right = threshold(b, nesterov, 1.0 if law is None else law.second_moment)
            found.append((abs(left / right - 1), left, right))
    runs, steps = enough(1500, scale, 400), 12
    for law in (Exponential(), Jitter(1)):
        fixed, random, second = moment_matrices(0.5 * theory.stable_lr(0.9, law), 0.9, False, law.second_moment)
        z = np.tile([1.0, 0.0], (runs, 1))
        for n in range(2, steps + 2):
            z = z @ fixed.T + np.array([[law.sample(k, n)] for k in range(seed, seed + runs)]) * (z @ random.T)
        mean, error = mean_error(z[:, 0] ** 2)
        deviation = max(deviation, abs(mean - np.linalg.matrix_power(second, steps)[0, 0]) / error)
    _, left, right = worst(found)
    measured = f"furthest of {len(found)} thresholds; E x² of {runs} runs off by {deviation:.1f} errors (limit {Z:g})"
    return Sides(measured, left, right, "==", also=deviation <= Z, tolerance=1e-6 * right)


# ---- The adaptive theorem: `BallAdaGrad` knows neither G nor σ


def adaptive_bound(setting: Setting, steps: int, gap: float, lipschitz: float, noise: float, output: str) -> float:
    """Return the theorem's right side, the setting's lr being the radius D; apart from `o2nc.theory`."""
    radius, beta, c, *_ = setting
    alpha, a = 1 - beta, math.hypot(lipschitz, noise)
    unknown = (noise + 2 * math.sqrt(2) * a) * (alpha + beta / steps) / math.sqrt(1 - beta**2)
    bound = gap / (radius * steps) + unknown + c * spread_factor(beta) * radius**2 / alpha**2
    return bound + (0.0 if output == "geometric" else beta * lipschitz / (alpha * steps))


@row("theorem-adaptive", "E‖∇F(x̄)‖_c ≤ F*/DN + (σ+2√2A)√(α/2) + …")
def theorem_adaptive(seed: int, scale: float) -> Sides:
    """The adaptive theorem, with its own D and β and with others, on problems whose G and σ it is not told."""
    rng, steps, seeds = np.random.default_rng(seed), 1000, range(seed, seed + enough(6, scale, 4))
    found, agrees = [], True
    for problem, noise in kinked(steps):
        p = theory.adaptive_plan(steps, 1.0, problem.gap)
        powers = rng.uniform([-1, -2], [1, -0.3], size=(2, 2)).tolist()
        settings = [Setting(p.radius, p.beta), *(Setting(p.radius * 10**a, 1 - 10**b) for a, b in powers)]
        known: dict[str, Any] = {"lipschitz": problem.lipschitz, "noise": noise}
        bound: Callable[..., float] = partial(adaptive_bound, steps=steps, gap=problem.gap, **known)
        found += bounded_runs(Additive(problem, noise), settings, bound, seeds, adaptive=True)
        for output in OUTPUTS:
            told = p.bound(**known, output=output)
            agrees = agrees and math.isclose(told, bound(settings[0], output=output), rel_tol=1e-9)
    measured = f"tightest of {len(found)} means of {len(seeds)} runs of {steps} steps (5 problems, any D, β)"
    return tightest(found, measured, also=agrees)


# ---- How many steps a bound asks for; `o2nc paper rates` measures how certificates fall with them


def exponent(**regime: float) -> float:
    """Return d log steps_for / d log ε at small ε."""
    known: dict[str, Any] = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "constants": "paper", **regime}
    few, many = (theory.steps_for(eps, **known) for eps in (1e-2, 1e-3))
    return math.log(few / many) / math.log(10)


@row("steps-for", "least N with B ≤ ε: as ε^{−7/2}, ε^{−3}, ε^{−4}")
def steps_for(seed: int, scale: float) -> Sides:
    """The N that bounds ask for, against values computed once; that N is the least, and how it grows with 1/ε."""
    known = {"paper": (1.12e6, 2.97e8), "sharp": (682, 168894)}
    unit: dict[str, Any] = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": 1.0}
    found, also = [], True
    for constants, values in known.items():
        for eps, value in zip((0.5, 0.1), values, strict=True):
            n = theory.steps_for(eps, constants=constants, **unit)
            found.append((abs(n / value - 1), float(n), float(value)))
            below, at = (theory.plan(k, constants=constants, **unit).bound for k in (n - 1, n))
            also = also and at <= eps < below and (constants == "paper" or n == value)
    # Theorem SGDM at a fixed c, while c is small, and Section 4.3 with c = ρ/2 and c = H²/ε
    wanted = {exponent(c=1.0): -3.5, exponent(c=1e-12): -3.0, exponent(second_order=1.0): -3.5}
    wanted[exponent(smoothness=1.0)] = -4.0
    _, left, right = worst(found)
    powers = ", ".join(f"ε^{got:.2f}" for got in wanted)
    measured = f"the value furthest from the one known, ε = .5, .1, printed and sharp; N grows as {powers}"
    also = also and all(abs(got / want - 1) < 0.02 for got, want in wanted.items())
    return Sides(measured, left, right, "==", also=also, tolerance=0.005 * right)


# ---- The lower bound, on the hard chain, where nobody is fast

EPS, DELTA = 0.01, 1e-4
CHAIN = hard_instance(EPS, gap=30.0, smoothness=1.0, noise=1.0)


def steps_to_the_end(optimizer: Optimizer, x: Tensor, seed: int, most: int) -> int:
    """Return after how many queries the last coordinate of the chain has moved; ``most`` if it never did."""
    generator = torch.Generator().manual_seed(seed)
    for t in range(1, most + 1):
        x.grad = CHAIN.sample(x.detach(), generator)
        optimizer.step()
        if x[-1].item() != 0:
            return t
    return most


@row("lower-bound", "no fewer than Ω(F*G²c^½ε^{−7/2}) steps")
def lower_bound(seed: int, scale: float) -> Sides:
    """Corollary lower-bound, for zero-respecting algorithms: the end of the chain is not found before `steps`."""
    right = CHAIN.steps(DELTA)
    counts = []
    for k in range(seed, seed + enough(3, scale)):
        x, y, z = (CHAIN.problem.start().requires_grad_() for _ in range(3))
        runs: dict[Tensor, Optimizer] = {
            x: ScaledSGDM([x], lr=50.0, momentum=0.5, seed=k),
            y: ExponentiatedO2NC([y], OGD(30.0), beta=0.5, seed=k + 1),
            z: ExponentiatedO2NC([z], OGD(11.0), beta=0.9, seed=k + 2),
        }
        counts += [steps_to_the_end(optimizer, at, k, 6 * right) for at, optimizer in runs.items()]
    # H = √(cε) and σ = G, as in the proof
    few, many = (
        hard_instance(eps, gap=1.0, smoothness=math.sqrt(1e4 * eps), noise=1.0).steps(0.5)
        / theory.lower_bound(eps, 1e4, gap=1.0, lipschitz=10.0)
        for eps in (1e-4, 1e-5)
    )
    measured = f"fewest queries of {len(counts)} runs to the end of a chain of {CHAIN.problem.length}"
    return Sides(measured, min(counts), right, ">=", also=abs(few / many - 1) < 0.02)
