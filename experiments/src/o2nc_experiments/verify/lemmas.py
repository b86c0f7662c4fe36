"""The two lemmas that the theorems stand on: random scaling, and how far the iterates spread around x̄.

E[F(x + sΔ) − F(x)] = E[w(s)⟨∇F(x + sΔ), Δ⟩] is checked with kinks all along the way. Every case is a law, a kinked
function, a point and a direction; the difference of the two sides is a mean over samples of the law, and must vanish
within `Z` of its standard errors. The case shown has the greatest z-score. Lemma variance-to-regularizer bounds the
spread by the lengths of the updates.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from o2nc import Exponential, Gamma, Law, Uniform, Weibull, theory
from o2nc.problems import Climber, DoubleWell, MultiKink, Problem
from o2nc_experiments.verify.check import Finding, Z, enough, greatest, least_of, statement
from o2nc_experiments.verify.energy import output_law, spread_factor

_STEP = 3.0  # the mean length of a move, over several kinks
BETAS = (0.5, 0.9, 0.99)


def _cases(seed: int, count: int) -> Iterator[tuple[Problem, torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        for problem in (MultiKink(1), MultiKink(5), DoubleWell(1), DoubleWell(4), Climber(2)):
            x, delta = torch.from_numpy(rng.normal(size=(2, problem.dimension)))
            yield problem, problem.start() + x, delta * (_STEP / delta.norm())


def worst_identity(laws: Sequence[Law], seed: int, samples: int, cases: int) -> Finding:
    """Return the two sides of the identity where they are furthest apart, in standard errors."""
    worst = (-1.0, 0.0, 0.0, 0.0)
    for law in laws:
        s = torch.tensor([law.sample(seed, n) for n in range(1, samples + 1)], dtype=torch.float64)
        w = torch.tensor([law.weight(v) for v in s.tolist()], dtype=torch.float64)
        for problem, x, delta in _cases(seed, cases):
            y = x + s[:, None] * delta
            gain = problem.value(y) - problem.value(x)
            slope = w * (problem.gradient(y) @ delta)
            error = ((gain - slope).std() / samples**0.5).item()
            z = abs((gain - slope).mean().item()) / error
            worst = greatest(worst, (z, gain.mean().item(), slope.mean().item(), error))
    z, left, right, error = worst
    count = len(laws) * 5 * cases
    measured = f"largest of {count} z-scores {z:.1f} (limit {Z:g}), {samples} samples of every law"
    return Finding(measured, left, right, "==", tolerance=Z * error)


@statement("exponential-scaling", "E[F(x+sΔ)−F(x)] = E⟨∇F(x+sΔ),Δ⟩/λ")
def exponential_scaling(seed: int, scale: float) -> Finding:
    """Lemma exp-scaling, for three rates λ."""
    laws = [Exponential(rate) for rate in (0.5, 1.0, 3.0)]
    return worst_identity(laws, seed, enough(50_000, scale), cases=2)


@statement("other-laws", "E[F(x+sΔ)−F(x)] = E[w(s)⟨∇F(x+sΔ),Δ⟩]")
def other_laws(seed: int, scale: float) -> Finding:
    """The same for laws with the weight w = survival/density."""
    laws: list[Law] = [Uniform(0, 2), Uniform(0, 1)]
    laws += [Weibull(0.8), Weibull(1.5), Gamma(0.5), Gamma(1.5)]
    return worst_identity(laws, seed, enough(15_000, scale), cases=2)


def double_sum(n: int, beta: float) -> NDArray[np.float64]:
    """Return λ_{n,1}, …, λ_{n,n} from the definition, 4 Σ_{i>=t>i'} p_i p_i'(i − i')."""
    i = np.arange(1, n + 1)
    p = beta ** (n - i) * (1 - beta) / (1 - beta**n)
    terms = np.tril(p[:, None] * p * (i[:, None] - i))  # row i, column i' < i
    return np.array([4 * terms[t - 1 :, : t - 1].sum() for t in i])


def summed_weights(beta: float, horizon: int) -> NDArray[np.float64]:
    """Return Σ_n λ_{n,t} over n = t, …, N for every t."""
    total = np.zeros(horizon)
    for n in range(1, horizon + 1):
        total[:n] += theory.variance_weights(n, beta)
    return total


@statement("variance-weights", "Σ_n λ_{n,t} ≤ 12/(1−β)² for every t")
def variance_weights(seed: int, scale: float) -> Finding:
    """Proposition tech-lam-t:N, and the closed form of λ against its definition."""
    error = 0.0
    for beta in BETAS:
        for n in (1, 2, 3, 10, 57):
            error = greatest(error, np.abs(theory.variance_weights(n, beta) - double_sum(n, beta)).max())
    worst = 0.0
    for beta in BETAS:
        horizon = enough(int(15 / (1 - beta)), min(scale, 1.0), 30)
        worst = greatest(worst, summed_weights(beta, horizon).max() * (1 - beta) ** 2)
    measured = f"(1−β)²·sum, greatest over t and β = .5, .9, .99; closed form off the double sum by {error:.0e}"
    return Finding(measured, worst, 12.0, also=error < 1e-11)


def future(k: float, beta: float, weights: NDArray[np.float64]) -> list[float] | None:
    """Return M_N, …, M_2 if Σ_n ω_n E V_n <= K Σ_n E‖Δ_n‖² for all adapted Δ, else None; by dynamic programming.

    With e = x_n − x̄_n, the greatest future Σ ωV − K Σ‖Δ‖² is A·V_n + B·‖e‖². Δ_{n+1} moves e to (1 − γ)(e + sΔ), and
    V to (1 − γ)(V + γ‖e + sΔ‖²); with E s = 1 and E s² = 2 the best Δ is M/(K − 2M)·e, and there is a finite one
    iff K > 2M, where M = (ω + A)(1 − γ)γ + B(1 − γ)².
    """
    a, b, found = 0.0, 0.0, []
    for n in range(len(weights) - 1, 0, -1):
        gamma = (1 - beta) / (1 - beta ** (n + 1))
        total = a + float(weights[n])  # ω_{n+1}
        m = total * (1 - gamma) * gamma + b * (1 - gamma) ** 2
        if k <= 2 * m:
            return None
        found.append(m)
        a, b = total * (1 - gamma), m * (k - m) / (k - 2 * m)
    return found


def worst_spread(beta: float, weights: NDArray[np.float64]) -> float:
    """Return (1 − β)² times the greatest Σ ω_n E V_n / Σ E‖Δ_n‖² over all adapted Δ."""
    low, high = 0.0, 12 / (1 - beta) ** 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if future(middle, beta, weights) is not None else (middle, high)
    return high * (1 - beta) ** 2


@statement("variance-sharp", "Σ E V_n ≤ (C/(1−β)²) Σ E‖Δ_n‖²")
def variance_sharp(seed: int, scale: float) -> Finding:
    """The lemma with the constant C of `theory.spread_constant`, which no smaller one can replace."""
    found = {beta: worst_spread(beta, np.ones(enough(int(60 / (1 - beta)), scale, 200))) for beta in BETAS}
    ratios = {beta: value / theory.spread_constant(beta) for beta, value in found.items()}
    paper = greatest(found[beta] / theory.spread_constant(beta, "paper") for beta in BETAS)
    worst = greatest(ratios, key=lambda beta: ratios[beta])
    measured = (
        f"exact supremum over adapted Δ at β = {worst:g}; at β = {', '.join(f'{beta:g}' for beta in BETAS)} it is "
        f"{', '.join(f'{found[beta]:.4f}' for beta in BETAS)}, at least {least_of(ratios.values()):.3f} of C, "
        f"at most {paper:.3f} of the printed 12"
    )
    tight = greatest(ratios.values()) > 0.99
    return Finding(measured, found[worst], theory.spread_constant(worst), also=tight and paper <= 1)


def on_a_tree(k: float, beta: float, weights: NDArray[np.float64]) -> float:
    """Return Σ ω_n E V_n − K Σ E‖Δ_n‖² of the best Δ with Δ_2 = 1, from the definitions, all paths of s in {0, 2}."""
    best = future(k, beta, weights)
    assert best is not None
    steps = len(weights)
    s = np.array(
        list(product((0.0, 2.0), repeat=steps - 1))
    )  # every path is as likely as any other: E s = 1, E s² = 2
    x, total = np.zeros((len(s), 1)), 0.0
    for n in range(2, steps + 1):
        p = beta ** np.arange(n - 2, -1, -1.0)
        mean = x @ p / p.sum()
        m = best[steps - n]
        delta = np.ones(len(s)) if n == 2 else m / (k - 2 * m) * (x[:, -1] - mean)
        x = np.column_stack([x, x[:, -1] + s[:, n - 2] * delta])
        p = beta ** np.arange(n - 1, -1, -1.0) / (beta ** np.arange(n)).sum()
        spread = ((x - (x @ p)[:, None]) ** 2) @ p
        total += float((weights[n - 1] * spread - k * delta**2).mean())
    return total


@statement("variance-output", "N·E_P V ≤ (C/(1−β)²) Σ E‖Δ_n‖², law P")
def variance_output(seed: int, scale: float) -> Finding:
    """The variance lemma under the output law P, with the same constant; the recursion against a tree of paths."""
    found = {}
    for beta in BETAS:
        steps = enough(int(60 / (1 - beta)), scale, 200)
        found[beta] = worst_spread(beta, steps * output_law(beta, steps))
    ratios = {beta: value / spread_factor(beta) for beta, value in found.items()}
    worst = greatest(ratios, key=lambda beta: ratios[beta])
    small = 9 * output_law(0.6, 9)
    k = 1.1 * worst_spread(0.6, small) / 0.4**2
    first = (future(k, 0.6, small) or [math.nan])[-1]
    error = abs(on_a_tree(k, 0.6, small) - (2 * first - k))
    measured = (
        f"exact supremum over adapted Δ at β = {worst:g}; at β = {', '.join(f'{beta:g}' for beta in BETAS)} it is "
        f"{', '.join(f'{found[beta]:.4f}' for beta in BETAS)}; off a tree of 256 paths by {error:.0e}"
    )
    also = 0.99 < greatest(ratios.values()) <= 1 and error < 1e-9
    return Finding(measured, found[worst], spread_factor(worst), also=also)
