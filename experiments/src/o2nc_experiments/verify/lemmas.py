"""What a certificate says of gradients; the lemmas on random scaling and on the spread of the iterates."""

import math
import warnings
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy import stats

from o2nc import Certificate, Exponential, Gamma, Law, Uniform, Weibull, theory
from o2nc.problems import Climber, DoubleWell, MultiKink
from o2nc_experiments.verify.row import Array, Sides, Z, enough, mean_error, row, worst

BETAS = (0.5, 0.9, 0.99)

# ---- reductions: functions of one variable that make a certificate as wrong as possible, found by random search.
# Their derivative is constant on pieces and at most 1: the slope of ∇F for smooth F, of ∇²F for second-order
# smooth F, ∇F itself for Lipschitz F. Function, random point y and price c are improved together.

POINTS, PIECES = 4, 8
SIZE = 2 * POINTS + PIECES + 2  # numbers of one candidate
EDGES = np.linspace(-4.0, 4.0, PIECES + 1)  # of the pieces
CONSTANTS = {1: "smoothness", 2: "second_order"}  # by the order of the derivative that has the constant


def climb(score: Callable[[Array], Array], rng: np.random.Generator, starts: int, rounds: int) -> float:
    """Return the greatest score found: random steps on some of the coordinates, kept where they help."""
    x = rng.normal(size=(starts, SIZE))
    best, length = score(x), np.ones(starts)
    for _ in range(rounds):
        moved = rng.normal(size=x.shape) * (rng.random(x.shape) < 0.3) * length[:, None]
        found = score(x + moved)
        better = found > best
        x[better] += moved[better]
        best[better] = found[better]
        length = np.clip(length * np.where(better, 1.5, 0.93), 1e-4, 2.0)
    return float(best.max())


def unpack(x: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return points with mean 0, weights, derivatives on the pieces in [−1, 1], a number, and c > 0, row by row."""
    y, logits, pieces, number, log_c = np.split(x, np.cumsum([POINTS, POINTS, PIECES, 1]), axis=1)
    p = np.exp(np.clip(2 * logits, -5, 5))  # a smaller p would show rounding
    p /= p.sum(1, keepdims=True)
    return y - (p * y).sum(1, keepdims=True), p, np.clip(1.5 * pieces, -1, 1), number[:, 0], np.exp(log_c[:, 0])


def integral(y: Array, pieces: Array, order: int) -> Array:
    """Return the integral from 0 to y, taken ``order`` times, of the function with these values on the pieces."""
    total = np.zeros_like(y)
    for sign in (1.0, -1.0):
        near, far = np.maximum(0.0, np.sort(sign * np.stack([EDGES[:-1], EDGES[1:]]), axis=0))
        distance = np.maximum(sign * y, 0.0)[:, :, None]
        covered = np.maximum(distance - near, 0) ** order - np.maximum(distance - far, 0) ** order
        total += (sign if order == 1 else 1.0) * (covered * pieces[:, None, :]).sum(-1)
    return total / order


def norm_score(printed: bool, order: int) -> Callable[[Array], Array]:
    """Return the score |F'(0)|/bound for H = 1 (order 1) or ρ = 1 (order 2): ours at any c, 2ε at its own.

    Where the spread is less than a tenth of ε the score is 0: at y = x the second bound is an equality, always.
    """

    def score(x: Array) -> Array:
        y, p, pieces, number, c = unpack(x)
        mean = np.abs(number + (p * integral(y, pieces, order)).sum(1))  # F''(0)y has mean 0
        spread = (p * y**2).sum(1)
        if printed:
            c = (
                2 / (mean + np.sqrt(mean**2 + 4 * spread)) if order == 1 else np.full(len(x), 0.5)
            )  # ε = mean + spread/ε
        rows = zip(c.tolist(), mean.tolist(), spread.tolist(), strict=True)
        ours = [Certificate(price, g, v, 1.0).gradient_norm(**{CONSTANTS[order]: 1.0}) for price, g, v in rows]
        bounds = 2 * (mean + c * spread) if printed else ours
        return (c * spread > 0.1 * (mean + c * spread)) * np.abs(number) / np.maximum(bounds, 1e-12)

    return score


def criterion(order: int, seed: int, scale: float) -> Sides:
    """Search for functions that exceed the bounds."""
    rng, rounds = np.random.default_rng(seed), enough(400, scale, 100)
    sharp, paper = (climb(norm_score(printed, order), rng, 24, rounds) for printed in (False, True))
    # tight: F'(h) = 1.25 − |h| at y = ±½, c = 1; F'(h) = 1 − h²/2 with V = 0.8, c = ½
    tight = Certificate(1.0, 0.75, 0.25, 2.0) if order == 1 else Certificate(0.5, 0.6, 0.8, 2.0)
    known_ratio = (1.25 if order == 1 else 1.0) / tight.gradient_norm(**{CONSTANTS[order]: 1.0})
    measured = f"greatest ‖∇F(x)‖/bound: search {sharp:.4f}, known {known_ratio:.4f}; of the printed 2ε {paper:.3f}"
    also = known_ratio > 0.999 and sharp > 0.97 and paper <= 1
    return Sides(measured, max(sharp, known_ratio), 1.0, also=also)


@row("criterion-smooth", "‖∇F(x)‖ ≤ ‖∇F(x)‖_c + H²/4c  (printed: 2ε)")
def criterion_smooth(seed: int, scale: float) -> Sides:
    """Lemma criterion-reduction for H-smooth F."""
    return criterion(1, seed, scale)


@row("criterion-second-order", "‖∇F(x)‖ ≤ ‖∇F(x)‖_c, c ≥ ρ/2  (printed: 2ε)")
def criterion_second_order(seed: int, scale: float) -> Sides:
    """Lemma criterion-reduction for second-order smooth F."""
    return criterion(2, seed, scale)


def clipped_score(x: Array, part: int) -> Array:
    """Return distance, radius or mean gradient of the clipped points over what is promised, for δ = G = 1."""
    y, p, pieces, _, c = unpack(x)
    inside = np.clip(y, -1, 1)
    slopes = [np.take_along_axis(pieces, np.searchsorted(EDGES[1:-1], at), axis=1) for at in (y, inside)]
    mean, clipped = (np.abs((p * slope).sum(1)) for slope in slopes)
    spread, shift = (p * y**2).sum(1), (p * inside).sum(1)
    matters = c * spread > 0.1 * (mean + c * spread)  # at y = x the last ratio is 1, always
    truth = (np.abs(shift), np.abs(inside - shift[:, None]).max(1), clipped * matters)[part]
    rows = zip(c.tolist(), mean.tolist(), spread.tolist(), strict=True)
    promised = [Certificate(price, g, v, 1.0).goldstein(1.0, lipschitz=1.0) for price, g, v in rows]
    return truth / np.maximum([(q.distance, q.radius, q.epsilon)[part] for q in promised], 1e-12)


@row("goldstein", "‖E∇F(ŷ)‖ ≤ max(1, 2G/cδ²)ε, ‖x−x'‖ ≤ V/4δ")
def goldstein(seed: int, scale: float) -> Sides:
    """Lemma goldstein-reduction, with its improved constants and as printed."""
    rng, rounds = np.random.default_rng(seed), enough(300, scale, 100)
    with warnings.catch_warnings(action="ignore"):  # that epsilon says nothing
        near, wide, mean = (climb(lambda x, k=k: clipped_score(x, k), rng, 16, rounds) for k in range(3))  # type: ignore[misc]
        # F' = −1 up to |h| = 1 and 1 beyond, at 0 such that E F'(y) = 0; y = 0 or ±1⁺ with probabilities .6, .2, .2
        known = 0.8 / Certificate(2.0, 0.0, 0.4, 1.0).goldstein(1.0, lipschitz=1.0).epsilon
    measured = f"greatest ratios: ‖x − x'‖ {near:.4f}, ‖ŷ − x'‖ {wide:.4f}, ‖E∇F(ŷ)‖ {mean:.4f} (known {known:.4f})"
    return Sides(
        measured, float(np.max([near, wide, mean, known])), 1.0, also=near > 0.98 and known > 0.999 and mean > 0.8
    )


# ---- random scaling: a law, a kinked function, a point, a direction; the two sides differ by a mean over samples


def samples(law: Law, seed: int, count: int) -> Array:
    """Return s_1, s_2, … of a law."""
    return np.array([law.sample(seed, n) for n in range(1, count + 1)])


def identity(laws: Mapping[Law, Callable[..., Array]], seed: int, count: int) -> Sides:
    """Return E[F(x + sΔ) − F(x)] and E[w(s)⟨∇F(x + sΔ), Δ⟩] where they differ by most standard errors."""
    problems = (MultiKink(1), MultiKink(5), DoubleWell(1), DoubleWell(4), Climber(2))
    found = []
    for law, weight in laws.items():
        drawn, rng = samples(law, seed, count), np.random.default_rng(seed)
        s, w = torch.from_numpy(drawn), torch.from_numpy(weight(drawn))
        for problem in problems * 2:
            at, delta = torch.from_numpy(rng.normal(size=(2, problem.dimension)))
            x, delta = problem.start() + at, delta * (3 / delta.norm())  # over several kinks
            y = x + s[:, None] * delta
            gain, slope = problem.value(y) - problem.value(x), w * (problem.gradient(y) @ delta)
            mean, error = mean_error((gain - slope).numpy())
            found.append((abs(mean) / error, gain.mean().item(), slope.mean().item(), error))
    z, left, right, error = worst(found)
    measured = f"largest of {len(found)} z-scores {z:.1f} (limit {Z:g}), {count} samples of every law"
    return Sides(measured, left, right, "==", tolerance=Z * error)


@row("exponential-scaling", "E[F(x+sΔ)−F(x)] = E⟨∇F(x+sΔ),Δ⟩/λ")
def exponential_scaling(seed: int, scale: float) -> Sides:
    """Lemma exp-scaling, for three rates λ."""
    laws: dict[Law, Any] = {Exponential(rate): lambda s, rate=rate: 0 * s + 1 / rate for rate in (0.5, 1.0, 3.0)}
    return identity(laws, seed, enough(50_000, scale))


@row("other-laws", "E[F(x+sΔ)−F(x)] = E[w(s)⟨∇F(x+sΔ),Δ⟩]")
def other_laws(seed: int, scale: float) -> Sides:
    """The same for laws of mean 1 (U(0, 1): ½) with the weight w = survival/density."""
    laws: dict[Law, Any] = {Uniform(0, 2): stats.uniform(0, 2), Uniform(0, 1): stats.uniform(0, 1)}
    laws |= {Weibull(k): stats.weibull_min(k, scale=1 / math.gamma(1 + 1 / k)) for k in (0.8, 1.5)}
    laws |= {Gamma(k): stats.gamma(k, scale=1 / k) for k in (0.5, 1.5)}
    weights = {law: lambda s, own=own: own.sf(s) / own.pdf(s) for law, own in laws.items()}
    return identity(weights, seed, enough(15_000, scale))


# ---- the spread of the iterates


def double_sum(n: int, beta: float) -> Array:
    """Return λ_{n,1}, …, λ_{n,n} from the definition, 4 Σ_{i>=t>i'} p_i p_i'(i − i')."""
    i = np.arange(1, n + 1)
    p = beta ** (n - i) * (1 - beta) / (1 - beta**n)
    terms = np.tril(p[:, None] * p * (i[:, None] - i))  # row i, column i' < i
    return np.array([4 * terms[t - 1 :, : t - 1].sum() for t in i])


def variance_weights(n: int, beta: float) -> Array:
    """Return the same in closed form: i − i' is the sum of two distances, to t and from t."""
    p = beta ** np.arange(n - 1.0, -1, -1)
    p /= p.sum()
    since, before = p[::-1].cumsum()[::-1], p.cumsum() - p  # Σ_{i>=t} p_i, Σ_{i'<t} p_i'
    return 4 * (before * (since[::-1].cumsum()[::-1] - since) + since * before.cumsum())


def summed_weights(beta: float, horizon: int) -> Array:
    """Return Σ_n λ_{n,t} over n = t, …, N for every t."""
    total = np.zeros(horizon)
    for n in range(1, horizon + 1):
        total[:n] += variance_weights(n, beta)
    return total


@row("variance-weights", "Σ_n λ_{n,t} ≤ 12/(1−β)² for every t")
def weights_of_updates(seed: int, scale: float) -> Sides:
    """Proposition tech-lam-t:N, and the closed form of λ against its definition."""
    pairs = [(n, beta) for beta in BETAS for n in (1, 2, 3, 10, 57)]
    error = float(np.max([np.abs(variance_weights(*pair) - double_sum(*pair)).max() for pair in pairs]))
    horizons = {beta: enough(int(15 / (1 - beta)), min(scale, 1.0), 30) for beta in BETAS}
    greatest = float(np.max([summed_weights(b, h).max() * (1 - b) ** 2 for b, h in horizons.items()]))
    measured = f"(1−β)²·sum, greatest over t and β = .5, .9, .99; closed form off the double sum by {error:.0e}"
    return Sides(measured, greatest, 12.0, also=error < 1e-11)


def stays_finite(k: float, beta: float, weights: Array, moment: float) -> bool:
    """Return whether Σ ω_n E V_n <= K Σ E‖Δ_n‖² for all adapted Δ, if E s = 1 and E s² = v; by dynamic programming.

    With e = x_n − x̄_n, the greatest future Σ ωV − K Σ‖Δ‖² is A·V_n + B·‖e‖². Δ_{n+1} moves e to (1 − γ)(e + sΔ), and
    V to (1 − γ)(V + γ‖e + sΔ‖²); the best Δ is M/(K − vM)·e, and there is a finite one iff K > vM, where
    M = (ω + A)(1 − γ)γ + B(1 − γ)².
    """
    a, b = 0.0, 0.0
    for n in range(len(weights) - 1, 0, -1):
        gamma = (1 - beta) / (1 - beta ** (n + 1))
        total = a + float(weights[n])  # ω_{n+1}
        m = total * (1 - gamma) * gamma + b * (1 - gamma) ** 2
        if k <= moment * m:
            return False
        a, b = total * (1 - gamma), m + m**2 / (k - moment * m)
    return True


def worst_spread(beta: float, weights: Array, moment: float) -> float:
    """Return (1 − β)² times the greatest Σ ω_n E V_n / Σ E‖Δ_n‖² over all adapted Δ."""
    low, high = 0.0, 12 / (1 - beta) ** 2
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if stays_finite(middle, beta, weights, moment) else (middle, high)
    return high * (1 - beta) ** 2


@row("variance-sharp", "Σ ω_n E V_n ≤ (C/(1−β)²) Σ E‖Δ_n‖²")
def variance_sharp(seed: int, scale: float) -> Sides:
    """The lemma with C of `theory.spread_constant`, which no smaller one can replace (12 is printed).

    ω_n is 1, or N·P(n) with the output law P, and E s² that of Exp(1), or less or more.
    """
    found = []
    for beta, moment in product(BETAS, (2.0, 1.02, 3.0)):
        steps, constant = enough(int(60 / (1 - beta)), scale, 200), theory.spread_constant(beta, second_moment=moment)
        for weights in (np.ones(steps), steps * theory.output_weights(steps, beta)):
            value = worst_spread(beta, weights, moment)
            found.append((value / constant, value, constant))
    ratio, left, right = worst(found)
    values = ", ".join(f"{value:.4f}" for _, value, _ in found[::6])
    measured = f"exact supremum over adapted Δ, tightest of {len(found)}; for Exp(1), β = 0.5, 0.9, 0.99: {values}"
    tight = all(worst(found[law::2])[0] > 0.99 for law in (0, 1))
    return Sides(measured, left, right, also=tight and ratio <= 1)


@row("output-law", "P(n) is the law of min(t + Geometric, N)")
def output_law(seed: int, scale: float) -> Sides:
    """The output law against its definition, t uniform on 1..N and P(Geometric = k) = αβ^k."""
    errors = []
    for beta, steps in ((0.5, 1), (0.5, 7), (0.9, 100), (0.99, 300), (0.999, 300)):
        drawn = np.zeros(steps)
        for t in range(1, steps + 1):
            drawn[t - 1 :] += (1 - beta) * beta ** np.arange(steps - t + 1) / steps
            drawn[-1] += beta ** (steps - t + 1) / steps  # beyond N
        law = theory.output_weights(steps, beta)
        errors += [np.abs(law - drawn).max(), abs(law.sum() - 1) / 10]
    return Sides("largest difference, five β and N, and a tenth of |sum − 1|", float(np.max(errors)), 1e-13)
