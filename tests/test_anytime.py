"""Without a horizon, and with high probability: what docs/paper.md proves beyond the library's functions.

Momentum δ_n = 1 − α_n and the discount of the averages grow together, m_n = δ_nm_{n−1} + g_n = W_nḡ_n, and one run is
bounded at every N.
"""

import math

import numpy as np
import pytest
import torch

import o2nc
from o2nc import problems
from o2nc.problems import Additive


def discounts(count, a=2.0, shift=100.0, power=4 / 7):
    """α_1, …, α_count of the theorem, at most ½."""
    return np.minimum(a * (np.arange(1, count + 1) + shift) ** -power, 0.5)


def totals(alpha):
    """W_n = 1 + δ_nW_{n−1}."""
    found = np.ones(len(alpha))
    for n in range(1, len(alpha)):
        found[n] = 1 + (1 - alpha[n]) * found[n - 1]
    return found


def output_law(alpha, steps):
    """N·P(n) = W_nα_{n+1} for n < N, and W_N."""
    weights = totals(alpha)[:steps] * alpha[1 : steps + 1]
    weights[-1] = totals(alpha)[steps - 1]
    return weights


def prices(alpha, second_moment=2.0):
    """K_n = ((1 − α_n)²/(1 − ρ_n) + vα_n(1 − α_n))/α_n², ρ_n = 1/α_n − 1/α_{n−1}."""
    rho = np.diff(1 / alpha, prepend=1 / alpha[0])
    assert rho.min() >= 0
    assert rho.max() < 1
    return ((1 - alpha) ** 2 / (1 - rho) + second_moment * alpha * (1 - alpha)) / alpha**2


def bound(steps, alpha, lr, *, c, gap, lipschitz, noise):
    """The anytime theorem at N = steps; ``alpha`` and ``lr`` have at least N + 1 entries, from n = 1 on."""
    size = lipschitz**2 + noise**2
    delta = np.concatenate([[1 - alpha[1]], 1 - alpha[1 : steps + 1]])  # δ_1 := δ_2
    before = np.concatenate([lr[:1], lr[: steps - 1]])  # ℓ_0 := ℓ_1
    energy = 2 * gap + size * (before / delta[:steps]).sum()
    w = before / delta[:steps] - lr[:steps] * delta[1 : steps + 1]
    w[-1] = before[-1] / delta[steps - 1]
    u = alpha[1 : steps + 1].copy()
    u[-1] = 1.0
    squares, left = 0.0, 0.0
    for n in range(steps):
        squares = 1 + (1 - alpha[n]) ** 2 * squares
        left += u[n] * math.sqrt(squares)
    spread = (prices(alpha)[1:steps] * lr[: steps - 1] ** 2 / w[:-1]).max()
    return (math.sqrt(energy * (u**2 / w).sum()) + noise * left + c * energy * spread) / steps


@pytest.mark.parametrize("power", [4 / 7, 0.2, 1.0])
def test_the_output_law_sums_to_one(power):
    """t uniform, then a wait whose chance to end before n + 1 is α_{n+1}, at most to N."""
    alpha = discounts(401, shift=3.0, power=power)
    assert output_law(alpha, 400).sum() == pytest.approx(400)
    # by its description
    law = np.zeros(400)
    for t in range(400):
        stay = 1.0
        for n in range(t, 400):
            ends = alpha[n + 1] if n < 399 else 1.0
            law[n] += stay * ends / 400
            stay *= 1 - ends
    assert law * 400 == pytest.approx(output_law(alpha, 400))


def worst(alpha, price, steps, second_moment):
    """The largest α_nB_n in A_nV + B_n‖d‖², section 3's supremum of Σ ω_nE V_n − Σ K_nE‖Δ_n‖²; or inf."""
    weights, sums = output_law(alpha, steps), totals(alpha)
    a, b, most = 0.0, 0.0, 0.0
    for n in range(steps - 1, 0, -1):
        g = 1 / sums[n]
        m = (weights[n] + a) * (1 - g) * g + b * (1 - g) ** 2
        if price[n] <= second_moment * m:
            return math.inf
        a, b = (weights[n] + a) * (1 - g), m + m**2 / (price[n] - second_moment * m)
        assert abs(a / ((1 - alpha[n]) * sums[n - 1]) - 1) < 1e-9
        most = max(most, alpha[n - 1] * b)
    return most


@pytest.mark.parametrize("second_moment", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(
    ("a", "shift", "power"), [(2.0, 100.0, 4 / 7), (1.0, 5.0, 0.9), (0.05, 0.0, 0.0), (3.0, 2.0, 1.0)]
)
def test_variance_lemma_with_growing_windows(a, shift, power, second_moment):
    """With power 1 it is `o2nc.Polynomial(3)`'s window, with power 0 a discount."""
    alpha = discounts(2001, a, shift, power)
    assert worst(alpha, prices(alpha, second_moment), 2000, second_moment) <= 1 + 1e-12


def test_variance_lemma_is_nearly_sharp():
    """For a constant α its K is (1 − α²)/α², where the best is C/α²; a tenth less is not enough."""
    alpha = np.full(3001, 0.05)
    price = prices(alpha)
    assert price[5] * 0.05**2 == pytest.approx(1 - 0.05**2)
    assert o2nc.theory.spread_constant(0.95) <= 1 - 0.05**2 < 1.001 * o2nc.theory.spread_constant(0.95)
    assert worst(alpha, 0.9 * price, 3000, 2.0) == math.inf


def trained(oracle, alpha, lr, steps, runs):
    """Σ_{n<=N} N·P(n)(‖∇̄_n‖ + cV_n)/N and the energies' sum by N, of one batch of runs; c = 1."""
    generator = torch.Generator().manual_seed(0)
    x = oracle.problem.start().expand(runs, -1).clone()
    m, mean, full, spread = (torch.zeros_like(x) for _ in range(4))
    spread = spread[:, 0]
    weights, found, energy = totals(alpha), np.zeros(steps), np.zeros(steps)
    law = o2nc.Exponential()
    for n in range(steps):
        share = 1 / weights[n]
        gradient = oracle.gradient(x)
        off = x - mean
        spread = (1 - share) * (spread + share * (off**2).sum(1))
        mean, full = mean + share * off, full + share * (gradient - full)
        found[n] = (full.norm(dim=1) + spread).mean()
        m = (1 - alpha[n]) * m + (oracle.sample(x, generator) if oracle.noise else gradient)
        energy[n] = (m**2).sum(1).mean()
        s = torch.tensor([law.sample(k, n + 2) for k in range(runs)], dtype=torch.float64)
        x = x - lr[n] * s[:, None] * m
    return found, energy


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("problem", [problems.MultiKink(5), problems.DoubleWell(3)], ids=lambda p: type(p).__name__)
def test_one_run_keeps_the_promise_at_every_n(problem, noise):
    steps, size = 600, problem.lipschitz**2 + noise**2
    alpha = discounts(steps + 1, 2.0, 20.0)
    lr = 2 * problem.gap / size / (np.arange(1, steps + 2) + 20.0)
    found, energy = trained(Additive(problem, noise), alpha, lr, steps, 24)
    known = {"c": 1.0, "gap": problem.gap, "lipschitz": problem.lipschitz, "noise": noise}
    for n in (50, 150, 400, 600):
        attained = output_law(alpha, n) @ found[:n] / n
        assert attained <= bound(n, alpha, lr, **known)
    # the energy inequality itself, at the end
    delta = np.concatenate([[1 - alpha[1]], 1 - alpha[1 : steps + 1]])
    before = np.concatenate([lr[:1], lr[: steps - 1]])
    w = before / delta[:steps] - lr[:steps] * delta[1:]
    w[-1] = before[-1] / delta[steps - 1]
    assert w @ energy <= 2 * problem.gap + size * (before / delta[:steps]).sum()


def test_one_setting_for_all_n_costs_less_than_twice_the_best_for_each():
    """α_n = 2(n + 1000)^{−4/7}, ℓ_n = 1/(n + 1000), at c = F* = G = 1."""
    n = np.arange(1, 100_002)
    alpha, lr = discounts(100_001, 2.0, 1000.0), 1 / (n + 1000.0)
    for noise in (0.0, 1.0):
        known = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": noise}
        for steps in (1000, 10_000, 100_000):
            assert 1 < bound(steps, alpha, lr, **known) / o2nc.theory.plan(steps, **known).bound < 1.65


# --- Polynomial averages


@pytest.mark.parametrize("r", [3, 12])
def test_no_rate_with_a_window_that_grows_with_the_run(r):
    """F = a|x| with a slope that is not used up in N steps: ‖ḡ‖ + cV is (3/2)(2κcF*²)^{1/3} at best, for every N.

    a = √(F*(1 − b)/(Nℓ)) would be used up; with 0.8 of it the way is 0.64·F*/a, and x stays off the kink.
    """
    kappa, b, c, gap = (r + 1) / ((r + 2) ** 2 * (r + 3)), 0.9, 1.0, 1.0
    floor = 1.5 * (2 * kappa * c * (0.64 * gap) ** 2) ** (1 / 3)
    for steps in (1000, 4000):
        before = np.arange(steps - 1, 0, -1)
        p = np.cumprod(np.concatenate([[1], before / (before + r)]))[::-1]  # as `o2nc.Polynomial` has it
        p = p / p.sum()
        s = np.array([o2nc.Exponential().sample(1, n) for n in range(2, steps + 1)])
        values = []
        for lr in np.geomspace(0.01, 100, 41) * (1 - b) / steps:
            a = 0.8 * math.sqrt(gap * (1 - b) / (steps * lr))
            m = a * (1 - b ** np.arange(1, steps)) / (1 - b)
            x = gap / a - lr * np.concatenate([[0], np.cumsum(s * m)])
            assert x.min() > 0
            values.append(a + c * (p @ x**2 - (p @ x) ** 2))
        assert min(values) == pytest.approx(floor, rel=0.1)


# --- high probability


def test_moments_behind_bernstein():
    """E(1 + s)^k = k!·Σ_{i<=k} 1/i! <= e·k! for s ~ Exp(1)."""
    for k in range(2, 12):
        moment = sum(math.comb(k, j) * math.factorial(j) for j in range(k + 1))
        assert moment == pytest.approx(math.factorial(k) * sum(1 / math.factorial(i) for i in range(k + 1)))
        # Bernstein's condition with the variance G²D² and the scale (16/3)GD, which k = 3 needs
        assert k == 2 or moment <= math.factorial(k) / 2 * (16 / 3) ** (k - 2) * (1 + 1e-12)


def test_variance_of_what_a_step_says():
    """E(f(s) − f′(s))² = E f′(s)² <= G²D² for f(0) = 0 and s ~ Exp(1): a zigzag of slopes ±1."""
    s = -np.log((np.arange(2_000_000) + 0.5) / 2_000_000)
    for period in (0.3, 1.0, 4.0):
        u = np.mod(s, period)
        slope = np.where(u < period / 2, 1.0, -1.0)
        f = np.minimum(u, period - u)
        assert ((f - slope) ** 2).mean() == pytest.approx((slope**2).mean(), abs=2e-3)


def test_tail_of_the_spread():
    """Q = E_{t,n}(S_n − S_t)² is above (4/α²)log²((e + 2)/p) with probability p at most; t uniform, n the output."""
    alpha, steps, runs = 0.05, 400, 2000
    rng = np.random.default_rng(0)
    places = np.cumsum(rng.exponential(size=(runs, steps)), axis=1)
    beta, q, weight = 1 - alpha, np.zeros(runs), np.zeros(runs)
    first, second = np.zeros(runs), np.zeros(runs)  # Σβ^{n−t}S_t, Σβ^{n−t}S_t²
    total = 0.0
    for n in range(steps):
        s = places[:, n]
        first, second, total = beta * first + s, beta * second + s**2, beta * total + 1
        ends = 1.0 if n == steps - 1 else alpha
        q += ends * (second - 2 * s * first + total * s**2) / steps
        weight += ends * total / steps
    assert weight == pytest.approx(1)
    for p in (0.5, 0.1, 0.01):
        assert (q > 4 / alpha**2 * math.log((math.e + 2) / p) ** 2).mean() <= p
    theta = alpha / 2  # the exponential moment behind it
    assert np.exp(np.maximum(1, theta * np.sqrt(q))).mean() <= math.e + 2


def confident(plan, p, *, lipschitz, noise):
    """The theorem with probability 1 − p, for noise that is at most σ long."""
    n, alpha, d, beta = plan.steps, plan.alpha, plan.radius, plan.beta
    log = math.log(4 / p)
    share = (alpha + beta / n) / math.sqrt(1 - beta**2)
    return (
        plan.gap / (d * n)
        + lipschitz * (math.sqrt(2 * log / n) + 16 / 3 * log / n)
        + noise * math.sqrt(2 * log / n)
        + share * (2 * math.sqrt(2) * (lipschitz + noise) + 2 * noise * math.sqrt(math.log(12 / p)))
        + 4 * plan.c * d**2 * math.log(4 * (math.e + 2) / p) ** 2 / alpha**2
    )


def test_high_probability():
    """Every run of `BallAdaGrad` with bounded noise stays below the bound for p = 0.1."""
    steps, runs, noise = 400, 200, 1.0
    problem = problems.MultiKink(5)
    plan = o2nc.theory.plan(steps, 1.0, gap=problem.gap)
    generator = torch.Generator().manual_seed(0)
    x = problem.start().expand(runs, -1).clone()
    delta, mean, full = (torch.zeros_like(x) for _ in range(3))
    v, spread, found = (torch.zeros(runs, 1, dtype=torch.float64) for _ in range(3))
    weight, law = 0.0, o2nc.Exponential()
    for n in range(1, steps + 1):
        weight = 1 + plan.beta * weight
        gradient, off = problem.gradient(x), x - mean
        spread = (1 - 1 / weight) * (spread + (off**2).sum(1, keepdim=True) / weight)
        mean, full = mean + off / weight, full + (gradient - full) / weight
        ends = weight * (1.0 if n == steps else plan.alpha) / steps
        found += ends * (full.norm(dim=1, keepdim=True) + plan.c * spread)
        sign = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        g = gradient + noise * sign / sign.norm(dim=1, keepdim=True)
        v = plan.beta**2 * v + (g**2).sum(1, keepdim=True)
        delta = delta - math.sqrt(2) * plan.radius * g / v.sqrt()
        delta = delta * (plan.radius / delta.norm(dim=1, keepdim=True)).clamp(max=1.0)
        s = torch.tensor([[law.sample(k, n + 1)] for k in range(runs)], dtype=torch.float64)
        x = x + s * delta
    assert found.max() < confident(plan, 0.1, lipschitz=problem.lipschitz, noise=noise)
    assert found.mean() < plan.bound(lipschitz=problem.lipschitz, noise=noise)
