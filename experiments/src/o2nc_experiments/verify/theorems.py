"""Theorem SGDM, the energy theorem, the adaptive theorem, stability, and how many steps a bound asks for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from o2nc import Exponential, Gamma, Jitter, theory
from o2nc.learners import OGD
from o2nc.problems import (
    Additive,
    Climber,
    Cosine,
    DoubleWell,
    MultiKink,
    Oracle,
    Problem,
    Resonance,
)
from o2nc_experiments.runs import Setting, algorithm_2
from o2nc_experiments.verify.regret import traces
from o2nc_experiments.verify.row import Array, Sides, Z, discounted, enough, mean_error, row, worst

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


@dataclass(frozen=True)
class Washboard(Problem):
    """F(x) = a|x_1| + Σ_{i>1} f(x_i): a slope, and zigzags f of slopes ±z too fine to be seen; a² + (d − 1)z² = 1.

    A coordinate lands at a random phase each time, and what it sees of f' is a fresh sign: nothing is to be gained
    there, and nothing tells it from a gradient. Only x_1 descends, and the best plan for ``steps`` steps uses up the
    gap no sooner than at their end. So the energy theorem is nearly an equality.
    """

    steps: int
    dimension: ClassVar[int] = 150
    gap: ClassVar[float] = 1.0
    lipschitz: ClassVar[float] = 1.0

    @cached_property
    def setting(self) -> Setting:
        """The hyperparameters of the plan."""
        p = theory.plan(self.steps, 1.0, gap=self.gap, lipschitz=self.lipschitz)
        return Setting(p.lr, p.beta)

    @cached_property
    def sizes(self) -> tuple[float, float, float]:
        """a, z and the period of f, far below the length of a step."""
        lr, beta, *_ = self.setting
        moves = self.steps - (1 - beta**self.steps) / (1 - beta)  # Σ_{t<=N} (1 − β^{t−1})
        slope = math.sqrt((1 - beta) / (lr * beta * moves))
        zigzag = math.sqrt((1 - slope**2) / (self.dimension - 1))
        return slope, zigzag, 1e-4 * lr * beta * zigzag

    def start(self) -> Tensor:
        """Return a point with F = 1 where every zigzag has a phase of its own."""
        slope, _, period = self.sizes
        x = period * ((math.sqrt(5) - 1) / 2 * torch.arange(self.dimension, dtype=torch.float64) % 1)
        x[0] = (1 - self.value(x)) / slope
        return x

    def _value(self, x: Tensor) -> Tensor:
        slope, zigzag, period = self.sizes
        u = torch.remainder(x[..., 1:], period)
        return slope * x[..., 0].abs() + zigzag * torch.minimum(u, period - u).sum(-1)


BOARD = Washboard(1000)
NOISY: dict[Problem, float] = {DoubleWell(10): 1.0, MultiKink(10): 0.0, Cosine(10): 1.0, Climber(2): 0.3}


def energy_bound(own: Setting, output: str, problem: Problem, noise: float) -> float:
    """Return what the energy theorem guarantees."""
    ran: dict[str, Any] = {"lr": own.lr * own.beta, "momentum": own.beta, "steps": BOARD.steps, "output": output}
    known: dict[str, Any] = {"c": own.c, "gap": problem.gap, "lipschitz": problem.lipschitz, "noise": noise}
    return theory.guarantee(**ran, **known).bound


def adaptive_bound(own: Setting, problem: Problem, noise: float) -> float:
    """Return the adaptive theorem's right side, lr being the radius D; apart from `o2nc.theory`."""
    alpha, steps = 1 - own.beta, BOARD.steps
    size = noise + 2 * math.sqrt(2) * math.hypot(problem.lipschitz, noise)
    spread = own.c * theory.spread_constant(own.beta) * (own.lr / alpha) ** 2
    return problem.gap / (own.lr * steps) + size * (alpha + own.beta / steps) / math.sqrt(1 - own.beta**2) + spread


def bounded_runs(
    problem: Problem, noise: float, settings: Sequence[Setting], seeds: range, adaptive: bool
) -> list[Bounded]:
    """Run settings for as many steps as the washboard is made for, and compare means of certificates with bounds."""
    runs = algorithm_2(Additive(problem, noise), settings, BOARD.steps, seeds, adaptive=adaptive)
    found = []
    for output in ("geometric",) if adaptive else ("geometric", "uniform"):
        means = getattr(runs, output).view(len(settings), -1).numpy()
        for own, mean in zip(settings, means, strict=True):
            bound = adaptive_bound(own, problem, noise) if adaptive else energy_bound(own, output, problem, noise)
            found.append(Bounded(*mean_error(mean), bound))
    return found


@row("theorem-energy", "E‖∇F(x̄)‖_c ≤ √(αT/2N) + … for any lr, β")
def theorem_energy(seed: int, scale: float) -> Sides:
    """The energy theorem for lr and β at random, on a trap, and on the washboard, where it is nearly tight."""
    rng, trap = np.random.default_rng(seed), Resonance.zero(1, momentum=0.5)
    cases: list[tuple[Problem, float, list[Setting]]] = [(trap, 0.0, [Setting(trap.lr, trap.momentum, 1e-6)])]
    cases.append((BOARD, 0.0, [BOARD.setting]))
    for problem, noise in NOISY.items():
        unit = 2 * problem.gap / ((problem.lipschitz**2 + noise**2) * BOARD.steps)
        powers = rng.uniform([-1.5, -2.0], [1.5, -0.2], size=(enough(4, scale), 2)).tolist()
        cases.append((problem, noise, [Setting(unit * 10**p, 1 - 10**q) for p, q in powers]))
    found, seeds = [], range(seed, seed + enough(6, scale, 4))
    for problem, noise, settings in cases:
        found += bounded_runs(problem, noise, settings, seeds, adaptive=False)
    measured = f"tightest of {len(found)} means of {len(seeds)} runs of {BOARD.steps} steps (6 problems, any lr, β)"
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
        price = Gamma(float(r)).price * oracle.problem.lipschitz
        rights = 2 / lr * (first - last) + (runs.gradients**2).sum((1, 2)) + 2 / lr * price * moved
        right = rights.mean() + Z * mean_error(rights - lefts)[1]
        found.append((lefts.mean() / right, lefts.mean(), right))
    prices = ", ".join(f"{Gamma(r).price:.3f}" for r in (2.0, 4.0))
    measured = f"tightest of 4: L = {prices}, a trap and kinks, {len(seeds)} runs each"
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


@row("theorem-adaptive", "E‖∇F(x̄)‖_c ≤ F*/DN + (σ+2√2A)√(α/2) + …")
def theorem_adaptive(seed: int, scale: float) -> Sides:
    """The adaptive theorem, with its own D and β and with others, on problems whose G and σ it is not told."""
    rng, seeds = np.random.default_rng(seed), range(seed, seed + enough(6, scale, 4))
    found, agrees = [], True
    for problem, noise in {BOARD: 0.0, **NOISY}.items():
        p = theory.adaptive_plan(BOARD.steps, 1.0, problem.gap)
        powers = rng.uniform([-1, -2], [1, -0.3], size=(2, 2)).tolist()
        settings = [Setting(p.radius, p.beta), *(Setting(p.radius * 10**a, 1 - 10**b) for a, b in powers)]
        found += bounded_runs(problem, noise, settings, seeds, adaptive=True)
        told = p.bound(lipschitz=problem.lipschitz, noise=noise)
        agrees = agrees and math.isclose(told, adaptive_bound(settings[0], problem, noise), rel_tol=1e-9)
    measured = f"tightest of {len(found)} means of {len(seeds)} runs of {BOARD.steps} steps (5 problems, any D, β)"
    return tightest(found, measured, also=agrees)


# ---- How many steps a bound asks for; `o2nc paper rates` measures how certificates fall with them


def exponent(constants: str, **regime: float) -> float:
    """Return d log steps_for / d log ε at small ε."""
    known: dict[str, Any] = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "constants": constants, **regime}
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
    # Theorem SGDM and Section 4.3; and while c is small, where the output law of the sharp bound leaves no start
    regimes = (("c", -3.5), ("second_order", -3.5), ("smoothness", -4.0))
    powers = [(exponent(constants, **{name: 1.0}), power) for constants in known for name, power in regimes]
    powers += [(exponent("paper", c=1e-12), -3.0), (exponent("sharp", c=1e-16), -2.0)]
    _, left, right = worst(found)
    grown = ", ".join(f"ε^{got:.2f}" for got, _ in powers)
    measured = f"the value furthest from the one known, ε = .5, .1, printed and sharp; N grows as {grown}"
    also = also and all(abs(got / want - 1) < 0.02 for got, want in powers)
    return Sides(measured, left, right, "==", also=also, tolerance=0.005 * right)
