"""Regret, exactly at its worst case, and the conversion of regret into stationarity (Theorems OGD and O2NC)."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from o2nc import Exponential, Law
from o2nc.learners import OGD
from o2nc.problems import Additive, DoubleWell, MultiKink, Oracle, Resonance
from o2nc_experiments.runs import scalars
from o2nc_experiments.verify.row import Array, Sides, Z, discounted, enough, mean_error, row, worst


class Trace(NamedTuple):
    """Runs of Algorithm 2, (runs, steps, d) each."""

    points: Array  # x_1, …, x_N
    updates: Array  # Δ_1 = 0, …, Δ_N
    gradients: Array  # g_1, …, g_N as the learner saw them
    full: Array  # ∇F(x_1), …, ∇F(x_N)

    def certificates(self, beta: float, c: float) -> tuple[Array, Array]:
        """Return the weighted means of the true gradients, and ‖∇̄_n‖ + cV_n, for every run and n."""
        weight = discounted(np.ones((self.points.shape[1], 1)), beta)
        mean, average = discounted(self.full, beta) / weight, discounted(self.points, beta) / weight
        squares = discounted((self.points**2).sum(-1, keepdims=True), beta) / weight
        return mean, np.linalg.norm(mean, axis=-1) + c * (squares[..., 0] - (average**2).sum(-1))


def traces(
    oracle: Oracle, learner: OGD, beta: float, steps: int, seeds: Sequence[int], law: Law = Exponential()
) -> Trace:
    """Run the library's `OGD` in Algorithm 2 once for every seed of s, all runs at once."""
    x = oracle.problem.start().expand(len(seeds), -1).clone()
    delta = torch.zeros_like(x)
    generator, state = torch.Generator().manual_seed(seeds[0]), learner.init(delta)
    rows = []
    for t in range(1, steps + 1):
        full = oracle.gradient(x)
        g = oracle.sample(x, generator) if oracle.noise else full
        rows.append((x.clone(), delta.clone(), g, full))
        learner.update([delta], [g], [state], [learner.lr], beta)
        x += scalars([law] * len(seeds), seeds, t + 1) * delta
    return Trace(*(torch.stack(part, dim=1).numpy() for part in zip(*rows, strict=True)))


# ---- Theorem O2NC: from the regret of a run to its certificate


def conversion(
    oracle: Oracle, beta: float, lr: float, c: float, radius: float, steps: int, seeds: Sequence[int]
) -> tuple[Array, Array]:
    """Return the left and the right side for every run, with its own regret.

    In discounted form, β^n Reg_n(u) = Σ_t β^{n−t}(⟨g_t, Δ_t − u⟩ + (μ/2)(‖Δ_t‖² − ‖u‖²)).
    """
    problem, alpha = oracle.problem, 1 - beta
    mu = 24 * c * radius / alpha**2
    runs = traces(oracle, OGD(lr, decay=mu), beta, steps, seeds)
    weight = discounted(np.ones((steps, 1)), beta)
    mean, certificates = runs.certificates(beta, c)
    u = -radius * mean / np.maximum(np.linalg.norm(mean, axis=-1), 1e-300)[..., None]
    losses = (runs.gradients * runs.updates).sum(-1) + mu / 2 * (runs.updates**2).sum(-1)
    regret = discounted(losses[..., None], beta)[..., 0] - (discounted(runs.gradients, beta) * u).sum(-1)
    regret -= mu / 2 * radius**2 * weight[:, 0]
    paid = beta * regret[:, -1] + alpha * regret.sum(1)
    known = problem.gap / (radius * steps) + 12 * c * radius**2 / alpha**2
    known += (2 * problem.lipschitz + oracle.noise) / (alpha * steps) + oracle.noise * math.sqrt(alpha)
    return certificates.mean(1), known + paid / (radius * steps)


@row("theorem-o2nc", "E‖∇F(x̄)‖_c ≤ F*/DN + … + regret/DN")
def theorem_o2nc(seed: int, scale: float) -> Sides:
    """Theorem O2NC with measured regrets: two kinked problems, and a trap, where it fails without random scaling."""
    trap = Resonance.zero(1, momentum=0.5)
    cases: list[tuple[Oracle, float, float, float, float]] = [
        (Additive(trap, 0.0), 0.5, trap.lr, 1e-6, 1.0),
        (Additive(DoubleWell(3), 0.5), 0.9, 0.05, 1e-3, 0.2),
        (Additive(MultiKink(2), 1.0), 0.95, 0.02, 1e-3, 0.1),
    ]
    seeds, steps = range(seed, seed + enough(48, scale, 6)), enough(300, scale, 150)
    found = []
    for case in cases:
        lefts, rights = conversion(*case, steps, seeds)
        left, right, error = lefts.mean(), rights.mean(), mean_error(rights - lefts)[1]
        found.append((left / (right + Z * error), left, right, error))
    _, left, right, error = worst(found)
    measured = f"tightest on 3 problems, {len(seeds)} runs of {steps} steps; right is {right:.4f} + {Z:g}·{error:.4f}"
    return Sides(measured, left, right + Z * error)


# ---- Theorem OGD at its exact worst case. In one dimension (coordinates orthogonal to u gain nothing) Δ is a linear
# map of the gradients, obtained by running `OGD.update` on impulses. With y_t = √η_t g̃_t,
#     Reg_n(u) − ½ Σ_t η_t g̃_t² = −½(y'Qy + 2u⟨1/√η, y⟩ + Σ_t μ_t u²),
# whose supremum over all gradients is ½(Σ_{st} (Q^{-1})_{st}/√(η_s η_t) − Σ_t μ_t)u².


def play(delta: Array, g: Array, *, kappa: int, decay: float, beta: float, lrs: tuple[float, float]) -> Array:
    """Return Δ_{t+1} as `OGD` plays it with lrs = (h, h'): η_t = h, η_{t+1} = βh', μ_{t+1} = μ/β."""
    learner, played = OGD(lr=1.0, decay=decay, kappa=kappa), torch.zeros(len(delta), dtype=torch.float64)
    state = learner.init(played)
    learner.update([played], [torch.zeros_like(played)], [state], [lrs[0]], beta)  # tells the learner h
    played.copy_(torch.from_numpy(delta))
    learner.update([played], [torch.from_numpy(g)], [state], [lrs[1]], beta)
    return played.numpy()


def schedules(seed: int, count: int) -> Iterator[tuple[float, float, Array]]:
    """Yield β, μ and h_2, …, h_{n+1} with nonincreasing η_t = β^t h_t: half with μ = 0, some geometric or β = 1."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        n, beta = int(rng.integers(2, 25)), float(rng.choice([1.0, rng.uniform(0.5, 1.0)]))
        ratios = rng.choice([1.0, beta, rng.uniform(0.2, 1.0)], size=n)  # η_{t+1}/η_t; the ratio β keeps h
        lrs = rng.uniform(0.1, 3.0) * np.cumprod(ratios) * beta ** -np.arange(float(n))
        yield beta, 0.0 if i % 2 else float(10 ** rng.uniform(-3, 1)), lrs


def worst_regret(kappa: int, beta: float, decay: float, lrs: Array) -> float:
    """Return the greatest Reg_n(u) − ½ Σ η_t‖g̃_t‖² over all gradients and u, over its bound."""
    n, learner = len(lrs), OGD(lr=1.0, decay=decay, kappa=kappa)
    powers = beta ** np.arange(1.0, n + 2)
    eta, mu = powers * [lrs[0], *lrs], decay / powers  # η_1, …, η_{n+1} with h_1 = h_2, and μ_1, …, μ_{n+1}
    bound = 1 / (2 * eta[-2]) if kappa == 1 else 2 / eta[-1] + mu[-1] / 2
    eta, mu = eta[:-1], mu[:-1]
    delta = torch.zeros(n, dtype=torch.float64)  # coordinate j has its one gradient at time j
    state, rows = learner.init(delta), []
    for g, lr in zip(torch.eye(n, dtype=torch.float64), lrs.tolist(), strict=True):
        rows.append(delta.clone().numpy())
        learner.update([delta], [g], [state], [lr], beta)
    played = np.array(rows) * powers[:-1] / np.sqrt(eta)  # Δ = played @ y
    gains = played / np.sqrt(eta)[:, None]
    form = np.eye(n) - gains - gains.T - played.T @ (mu[:, None] * played)
    if np.linalg.eigvalsh(form).min() < -1e-10:
        return math.inf
    slope = 1 / np.sqrt(eta)
    # a singular form has its slope in its range, or else the small diagonal makes the answer huge
    return float(slope @ np.linalg.solve(form + 1e-11 * np.eye(n), slope) - mu.sum()) / 2 / bound


@row("theorem-ogd-1", "κ=1: Reg_n(u) ≤ ‖u‖²/2η_n + ½Ση_t‖g̃_t‖²")
def ogd_1(seed: int, scale: float) -> Sides:
    """Theorem OGD for the printed update, with the better constant."""
    ratios = [worst_regret(1, *run) for run in schedules(seed, enough(1000, scale))]
    measured = f"exact supremum over gradients and u, in units of ‖u‖²/2η_n, greatest of {len(ratios)} schedules"
    return Sides(measured, float(np.max(ratios)), 1.0, also=max(ratios) > 0.999)


@row("theorem-ogd-2", "κ=2: Reg_n(u) ≤ (2/η+μ/2)‖u‖² + ½Ση‖g̃‖²")
def ogd_2(seed: int, scale: float) -> Sides:
    """Theorem OGD for the stated argmin."""
    ratios = [worst_regret(2, *run) for run in schedules(seed, enough(1000, scale))]
    measured = f"exact supremum, in units of (2/η_{{n+1}}+μ_{{n+1}}/2)‖u‖², greatest of {len(ratios)} schedules"
    return Sides(measured, float(np.max(ratios)), 1.0)
