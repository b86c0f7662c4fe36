"""Theorem OGD and its one-step lemma, at their exact worst cases.

In one dimension (which is enough: coordinates orthogonal to u gain nothing) Δ is a linear map of the gradients. The
map is obtained by running `OGD.update` on impulses, and then

    Reg_n(u) − ½ Σ_t η_t g̃_t² = −½(y'Qy + 2u⟨1/√η, y⟩ + Σ_t μ_t u²),     y_t = √η_t g̃_t,

is a quadratic form whose supremum over all gradients is ½(Σ_{st} (Q^{-1})_{st}/√(η_s η_t) − Σ_t μ_t)u².
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from o2nc.learners import OGD
from o2nc_experiments.verify.check import Finding, enough, greatest, statement
from o2nc_experiments.verify.traces import Array


@dataclass(frozen=True)
class Schedule:
    """A run of the learner: β, μ, and h_2, …, h_{n+1} with η_t = β^t h_t nonincreasing (h_1 = h_2)."""

    beta: float
    decay: float
    lrs: list[float]

    @property
    def steps(self) -> Array:
        """η_1, …, η_{n+1}."""
        return self.beta ** np.arange(1.0, len(self.lrs) + 2) * [self.lrs[0], *self.lrs]

    @property
    def decays(self) -> Array:
        """μ_1, …, μ_{n+1}."""
        return self.beta ** -np.arange(1.0, len(self.lrs) + 2) * self.decay


def schedules(seed: int, count: int) -> Iterator[Schedule]:
    """Yield random schedules: half without decay, some geometric, some with β = 1."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n, beta = int(rng.integers(2, 25)), float(rng.choice([1.0, rng.uniform(0.5, 1.0)]))
        ratios = rng.choice([1.0, beta, rng.uniform(0.2, 1.0)], size=n)  # η_{t+1}/η_t; the ratio β keeps h
        lrs = rng.uniform(0.1, 3.0) * np.cumprod(ratios) * beta ** -np.arange(float(n))
        yield Schedule(beta, 0.0 if i % 2 else float(10 ** rng.uniform(-3, 1)), lrs.tolist())


def worst_regret(kappa: int, run: Schedule) -> float:
    """Return the greatest (Reg_n(u) − ½ Σ η_t‖g̃_t‖²)/‖u‖² over all gradients and u."""
    n, learner = len(run.lrs), OGD(lr=1.0, decay=run.decay, kappa=kappa)
    eta, mu = run.steps[:-1], run.decays[:-1]
    delta = torch.zeros(n, dtype=torch.float64)  # coordinate j has its one gradient at time j
    state = learner.init(delta)
    rows = []
    for g, lr in zip(torch.eye(n, dtype=torch.float64), run.lrs, strict=True):
        rows.append(delta.clone().numpy())
        learner.update([delta], [g], [state], [lr], run.beta)
    played = np.array(rows) * run.beta ** np.arange(1.0, n + 1) / np.sqrt(eta)  # Δ = played @ y
    gains = played / np.sqrt(eta)[:, None]
    form = np.eye(n) - gains - gains.T - played.T @ (mu[:, None] * played)
    if np.linalg.eigvalsh(form).min() < -1e-10:
        return math.inf
    slope = 1 / np.sqrt(eta)
    # a singular form has its slope in its range, or else the small diagonal makes the answer huge
    return float(slope @ np.linalg.solve(form + 1e-11 * np.eye(n), slope) - mu.sum()) / 2


@statement("theorem-ogd-1", "κ=1: Reg_n(u) ≤ ‖u‖²/2η_n + ½Ση_t‖g̃_t‖²")
def ogd_1(seed: int, scale: float) -> Finding:
    """Theorem OGD for the printed update, with the better constant."""
    ratios = [worst_regret(1, run) * 2 * run.steps[-2] for run in schedules(seed, enough(1000, scale))]
    worst = greatest(ratios)
    measured = f"exact supremum over gradients and u, in units of ‖u‖²/2η_n, greatest of {len(ratios)} schedules"
    return Finding(measured, worst, 1.0, also=worst > 0.999)


@statement("theorem-ogd-2", "κ=2: Reg_n(u) ≤ (2/η+μ/2)‖u‖² + ½Ση‖g̃‖²")
def ogd_2(seed: int, scale: float) -> Finding:
    """Theorem OGD for the stated argmin."""
    ratios = [
        worst_regret(2, run) / (2 / run.steps[-1] + run.decays[-1] / 2)
        for run in schedules(seed, enough(1000, scale))
    ]
    measured = f"exact supremum, in units of (2/η_{{n+1}}+μ_{{n+1}}/2)‖u‖², greatest of {len(ratios)} schedules"
    return Finding(measured, greatest(ratios), 1.0)


def play(delta: Array, g: Array, *, kappa: int, decay: float, beta: float, lrs: tuple[float, float]) -> Array:
    """Return Δ_{t+1} as `OGD` plays it at t = 0 with lrs = (h, h'): η_t = h, η_{t+1} = βh', μ_{t+1} = μ/β."""
    h, h_next = lrs
    played = torch.from_numpy(delta.copy())
    learner = OGD(lr=1.0, decay=decay, kappa=kappa)
    learner.update([played], [torch.from_numpy(g)], [{"last_lr": h}], [h_next], beta)
    return played.numpy()


def one_step_excess(kappa: int, rng: np.random.Generator) -> float:
    """Return the greatest left minus right of the one-step lemma over u, relative to the size of its terms.

    ψ = ‖·‖²/(2η_t) and φ = (μ_{t+1} + κ(1/η_{t+1} − 1/η_t))‖·‖²/2; w_{t+1} is played by `OGD`. Right minus left is
    quadratic in u with the Hessian of φ, so that a central difference at w_{t+1} finds its minimum.
    """
    d, beta = int(rng.integers(1, 4)), float(rng.uniform(0.5, 1.0))
    h, h_next = 10 ** rng.uniform(-2, 1) * np.array([1.0, rng.uniform(0.2, 1 / beta)])
    decay = float(rng.choice([0.0, 10 ** rng.uniform(-2, 2)]))
    w, g = rng.normal(size=(2, d)) * 10 ** rng.uniform(-1, 1, size=(2, 1))
    w_next = play(w, g, kappa=kappa, decay=decay, beta=beta, lrs=(float(h), float(h_next)))
    curvature = decay / beta + kappa * (1 / (beta * h_next) - 1 / h)

    def psi(a: Array, b: Array) -> float:
        return float(((a - b) ** 2).sum() / (2 * h))

    def phi(a: Array) -> float:
        return float(curvature / 2 * (a**2).sum())

    def gap(u: Array) -> float:
        right = g @ (w - w_next) + psi(u, w) - psi(u, w_next) - psi(w_next, w) + phi(u) - phi(w_next)
        return float(right - g @ (w - u))

    unit = np.eye(d)
    slope = np.array([(gap(w_next + e) - gap(w_next - e)) / 2 for e in unit])
    candidates = [w_next, *(w_next + 10 ** rng.uniform(-3, 1) * rng.normal(size=d) for _ in range(5))]
    candidates += [w_next - slope / curvature] if curvature > 1e-9 else [w_next - 1e3 * slope]
    return greatest(-gap(u) / (psi(u, w) + phi(u) + psi(w_next, w) + abs(g @ w) + abs(g @ u)) for u in candidates)


@statement("omd-one-step", "⟨g̃,w−u⟩ ≤ ⟨g̃,w−w⁺⟩+D(u,w)−D(u,w⁺)−…")
def omd_one_step(seed: int, scale: float) -> Finding:
    """Lemma OMD-one-step, with w⁺ as the library plays it."""
    rng = np.random.default_rng(seed)
    count = enough(3000, scale)
    worst = greatest(one_step_excess(1 + i % 2, rng) for i in range(count))
    measured = f"greatest left − right over u, relative to the terms, in {count} steps with κ = 1, 2; 0 at u = w⁺"
    return Finding(measured, worst, 1e-10)
