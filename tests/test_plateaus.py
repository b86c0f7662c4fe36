"""Plateaus, kinks, convex and sharp functions, and a learned scale: theorems against simulated runs."""

import math

import numpy as np
import pytest
import torch

import o2nc
from o2nc import learners, problems, theory


def draws(law, rng, runs):
    """s for all runs, by NumPy's own generators."""
    if law is None:
        return np.ones(runs)
    if isinstance(law, o2nc.Exponential):
        return rng.exponential(size=runs)
    if isinstance(law, o2nc.Gamma):
        return rng.gamma(law.shape, law.scale, runs)
    return rng.uniform(law.low, law.high, runs)


def value(x):
    """Kinks, some of them concave, and a bowl."""
    return (np.abs(x) - 0.6 * np.abs(x - 1) + 0.1 * x**2).sum(1)


def slope(x):
    return np.sign(x) - 0.6 * np.sign(x - 1) + 0.2 * x


def momentum_run(start, lr, b, steps, law, seed, noise=0.0, slope=slope):
    """Return x_t, g_t and m_t for t = 1, …, steps, of all runs."""
    rng, x, m, found = np.random.default_rng(seed), start.copy(), np.zeros_like(start), []
    for _ in range(steps):
        g = slope(x) + noise * rng.standard_normal(x.shape)
        m = b * m + g
        found.append((x, g, m))
        x = x - (lr * draws(law, rng, len(x)))[:, None] * m
    return [np.stack(part) for part in zip(*found, strict=True)]


def is_zero(samples, errors=4.0):
    return abs(samples.mean()) < errors * samples.std() / len(samples) ** 0.5


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_plateau_identity(noise):
    """E[F(x_M) − F(x_N)] = (ℓ/2b)E[(1 − b²)Σ‖m_n‖² + ‖m_N‖² − ‖m_M‖² − Σ‖g_t‖²]; with s = 1 it fails."""
    b, lr, first, last = 0.8, 0.1, 7, 40
    differences = []
    for law in (o2nc.Exponential(), None):
        x, g, m = momentum_run(np.full((20_000, 2), 1.4), lr, b, last, law, 0, noise)
        m2, g2 = (m**2).sum(2), (g**2).sum(2)
        right = (1 - b**2) * m2[first - 1 : last - 1].sum(0) + m2[last - 1] - m2[first - 1] - g2[first:].sum(0)
        differences.append(value(x[first - 1]) - value(x[last - 1]) - lr / (2 * b) * right)
    assert is_zero(differences[0])
    assert not is_zero(differences[1], 8.0)


def test_energy_ratio_is_one_where_f_has_stopped_falling():
    """On |x|, b = 0.9: 1 under Exp(1), 0.62 under Gamma(2), 0.24 without randomness; more than 1 on a slope."""
    b = 0.9
    for law, known in ((o2nc.Exponential(), 1.0), (o2nc.Gamma(2.0), 0.62), (None, 0.24)):
        _, g, m = momentum_run(np.random.default_rng(1).normal(size=(400, 1)), 0.05, b, 3000, law, 0, slope=np.sign)
        m2, g2 = ((part[1000:] ** 2).mean() for part in (m, g))
        assert theory.energy_ratio(m2, g2, b) == pytest.approx(known, abs=0.02)
    _, g, m = momentum_run(np.full((400, 1), 50.0), 0.05, b, 200, o2nc.Exponential(), 0, 1.0, np.sign)
    assert theory.energy_ratio((m[100:] ** 2).mean(), (g[100:] ** 2).mean(), b) > 2


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_progress_knows_its_own_error(noise):
    """E(F(x_n) − F(x_0) − R)² = E Σ⟨g_t, Δ_t⟩² for Exp(1); with s = 1 the error is a bias of another size."""
    b, lr, steps = 0.8, 0.15, 25
    for law in (o2nc.Exponential(), None):
        x, g, m = momentum_run(np.full((40_000, 2), 1.4), lr, b, steps, law, 3, noise)
        gains = -lr * (g[1:] * m[:-1]).sum(2)
        error, squares = value(x[-1]) - value(x[0]) - gains.sum(0), (gains**2).sum(0)
        assert is_zero(error**2 - squares, 4.5) == (law is not None)
        if law is not None:
            z = 2.0  # Cantelli, with the true mean of Q
            wrong = -error <= -z * math.sqrt(squares.mean())
            assert wrong.mean() <= 1 / (1 + z**2)
    assert theory.fall_seen(-0.3, 0.01) == pytest.approx(3.0)


@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Gamma(2.0), o2nc.Jitter(0.25)], ids=str)
@pytest.mark.parametrize("b", [0.0, 0.5, 0.9])
def test_level_of_a_kink(law, b):
    """E F − F* = κℓ̄ρE‖g‖² for a stationary run on ‖x‖₁ with noise, under every law."""
    start = np.random.default_rng(1).normal(size=(300, 2))
    x, g, m = momentum_run(start, 0.02, b, 6000, law, 0, 0.5, np.sign)
    x, g, m = (part[2000:] for part in (x, g, m))
    m2, g2 = (float((part**2).sum(2).mean()) for part in (m, g))
    ratio = theory.energy_ratio(m2, g2, b)
    found = theory.kink_level(0.02, b, gradient_squares=g2, ratio=ratio, law=law)
    assert found == pytest.approx(np.abs(x).sum(2).mean(), rel=0.02)


@pytest.mark.parametrize("b", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_convex_bound(b, noise):
    """On ‖x‖ in three dimensions; the bound is nearly attained where the level of the kink is most of it."""

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    start = np.tile([[0.3, 0.0, 0.0]], (400, 1))
    lr = 0.03 * (1 - b)
    for steps in (20, 100, 4000):
        x, _, _ = momentum_run(start, lr, b, steps, o2nc.Exponential(), 0, noise / 3**0.5, unit)
        attained = np.linalg.norm(x, axis=2).mean(0)
        bound = theory.convex_bound(steps, lr, b, distance=0.3, gap=0.3, lipschitz=1.0, noise=noise)
        assert attained.mean() <= bound + 3 * attained.std() / 20
    assert attained.mean() > 0.9 * bound
    kappa = (2 * (1 - b) + 2 * b) / (2 * (1 + b))
    by_hand = 0.3**2 / (2 * 0.03 * 100) + kappa * 0.03 * (1 + noise**2) + 2 * b * kappa * 0.3 / ((1 - b) * 100)
    assert theory.convex_bound(100, lr, b, distance=0.3, gap=0.3, lipschitz=1.0, noise=noise) == pytest.approx(
        by_hand
    )


@pytest.mark.parametrize("b", [0.0, 0.9])
def test_sharp_stages_halve_the_distance(b):
    """F = max(0.5x, −x) + noise, μ = ½, G = 1: the mean iterate is half as far, stage by stage."""
    x, distance = np.full((2000, 1), 1.0), 1.0
    for _ in range(4):
        stage = theory.sharp_stage(0.5, b, distance=distance, lipschitz=1.0, noise=1.0)
        runs, _, _ = momentum_run(
            x, stage.lr, b, stage.steps, o2nc.Exponential(), 5, 1.0, lambda x: np.where(x > 0, 0.5, -1.0)
        )
        assert np.abs(runs).mean() <= distance / 2
        bound = theory.convex_bound(
            stage.steps, stage.lr, b, distance=distance, gap=distance, lipschitz=1.0, noise=1.0
        )
        assert bound <= 0.5 * distance / 2 * (1 + 1e-9)
        x, distance = runs.mean(0), distance / 2
        x = np.sign(x) * np.minimum(np.abs(x), distance)  # the theorem's stage starts within D


def bettor_run(problem, plan, largest, wealth, steps, seed):
    """Δ_t = z_t u_t: u by `BallAdaGrad`, z by `CoinBetting` in one dimension on z⟨g, u⟩ + κz³, kept in [0, Z]."""
    law, alpha = o2nc.Exponential(), plan.alpha
    kappa = 2 * plan.c * theory.spread_constant(plan.beta) / (3 * alpha**2)
    top = math.sqrt(largest / (3 * kappa))
    x = problem.start()
    direction, ball = learners.BallAdaGrad(lr=1.0), torch.zeros(problem.dimension, dtype=torch.float64)
    better, bet = learners.CoinBetting(wealth=wealth, lipschitz=2 * largest), torch.zeros(1, dtype=torch.float64)
    states, purse = [direction.init(ball)], [better.init(bet)]
    losses, mean, full, spread, weight, found = [], 0.0, 0.0, 0.0, 0.0, 0.0
    for n in range(1, steps + 1):
        z = min(max(bet.item(), 0.0), top)
        x = x + law.sample(seed, n) * z * ball
        g = problem.gradient(x)
        weight = 1 + plan.beta * weight
        off = x - mean
        spread = (1 - 1 / weight) * (spread + float(off @ off) / weight)
        mean, full = mean + off / weight, full + (g - full) / weight
        found += weight * (1.0 if n == steps else alpha) / steps * (float(full.norm()) + plan.c * spread)
        along = float(g @ ball)
        losses.append((along, z))
        push = along + 3 * kappa * z**2
        outside = (bet.item() < 0 and push > 0) or (bet.item() > top and push < 0)
        better.update([bet], [torch.tensor([0.0 if outside else push], dtype=torch.float64)], purse, [1.0], beta=1.0)
        direction.update([ball], [g], states, [1.0], beta=plan.beta)
    return found, np.array(losses), kappa, top


@pytest.mark.parametrize("wealth", [1.0, 0.01])
def test_learned_scale(wealth):
    """R_N(D) is at most what coin betting pays, and the run's mean certificate at most the bound for every D <= Z."""
    steps, problem = 800, problems.DoubleWell(3)
    g = problem.lipschitz
    plan = theory.plan(steps, 1.0, gap=problem.gap)
    found = []
    for seed in range(4):
        value, losses, kappa, top = bettor_run(problem, plan, g, wealth, steps, seed)
        found.append(value)
        along, z = losses.T
        for d in (0.3 * plan.radius, plan.radius, top):
            regret = (along * z + kappa * z**3).sum() - (along * d + kappa * d**3).sum()
            bets = 2 * g * d * (steps + 1)
            assert regret <= wealth + bets / math.sqrt(steps + 1) * math.sqrt(math.log1p((bets / wealth) ** 2))
    price = plan.price_of_the_gap(largest=g, wealth=wealth)
    bets = 2 * g * plan.radius * (steps + 1)
    regret = wealth + 2 * g * plan.radius * math.sqrt((steps + 1) * math.log(1 + (bets / wealth) ** 2))
    assert price == pytest.approx(regret / (plan.radius * steps), rel=1e-12)
    assert np.mean(found) <= plan.bound(lipschitz=g) + price
    with pytest.raises(ValueError, match="is too small here"):
        plan.price_of_the_gap(largest=1e-9, wealth=1.0)
