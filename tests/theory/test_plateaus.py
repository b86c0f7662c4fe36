"""Plateaus, kinks, convex and sharp functions, and a learned scale: theorems against simulated runs."""

import numpy as np
import pytest

import o2nc
from o2nc import theory


def test_a_fall_that_is_seen():
    assert theory.fall_seen(-0.3, 0.01) == pytest.approx(3.0)


def draws(law, rng, runs):
    """s for all runs, by NumPy's own generators."""
    if law is None:
        return np.ones(runs)
    if isinstance(law, o2nc.Exponential):
        return rng.exponential(size=runs)
    if isinstance(law, o2nc.Gamma):
        return rng.gamma(law.shape, law.scale, runs)
    return rng.uniform(law.low, law.high, runs)


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
