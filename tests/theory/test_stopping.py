"""Stopping times, ladders and checks with noise: the theorems of `o2nc.theory.stopping`, each with a twin."""

import math

import numpy as np
import pytest
from scipy import optimize

from o2nc import theory

UNIT = {"c": 1.0, "lipschitz": 1.0}


def written(alpha, eta, eps, c, g, sigma):
    """r, y and b of Theorem 1 as docs/paper.md prints them, with the root q by bisection."""
    beta, a2 = 1 - alpha, g**2 + sigma**2
    constant = 2 * beta * (1 + beta * math.sqrt(2 - beta**2)) / (1 + beta) ** 2
    k = c * constant * eta**2 * beta**2 / alpha**2
    e = eps - sigma * math.sqrt(alpha / (1 + beta))
    if e <= 0:
        return -1.0, -1.0, math.inf
    q = optimize.brentq(lambda q: alpha * math.sqrt(q) + k * q - e, 0, (e / alpha) ** 2, xtol=1e-15, rtol=1e-15)
    y = (1 - beta**2) * q / a2 - 1
    return eta / 2 * a2 * y, y, 2 / alpha * eps / e * (1 + 1 / y)


@pytest.mark.parametrize(("noise", "steps", "overhead"), [(0.0, 26_570, 546), (1.0, 166_594, 3_221)])
def test_plan_is_the_best_momentum_for_a_target(noise, steps, overhead):
    p = theory.stopping_plan(0.1, **UNIT, noise=noise)
    assert 1 / p.fall == pytest.approx(steps, rel=1e-4)
    assert p.overhead == pytest.approx(overhead, rel=1e-3)
    fall, excess, paid = written(p.alpha, p.lr / p.momentum, 0.1, 1.0, 1.0, noise)
    assert [p.fall, p.excess, p.overhead] == pytest.approx([fall, excess, paid], rel=1e-6)

    def minus(x):
        return -written(math.exp(x[0]), math.exp(x[1]), 0.1, 1.0, 1.0, noise)[0]

    start = [math.log(p.alpha) + 0.2, math.log(p.lr) - 0.2]
    best = optimize.minimize(minus, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-18})
    assert p.fall == pytest.approx(-best.fun, rel=1e-6)


def test_asymptotic_constants():
    """1/r = (7/6)^{7/2}√24·G²√c·ε^{−7/2} and y = 1 for σ = 0; in other units of x and F the same."""
    for eps, c, g in ((1e-3, 1.0, 1.0), (1e-3, 100.0, 2.0)):
        p = theory.stopping_plan(eps, c, lipschitz=g)
        assert 1 / p.fall == pytest.approx((7 / 6) ** 3.5 * math.sqrt(24) * g**2 * math.sqrt(c) * eps**-3.5, rel=1e-3)
        assert p.excess == pytest.approx(1, abs=1e-3)
    one, other = theory.stopping_plan(0.2, 3.0, lipschitz=1.0), theory.stopping_plan(0.4, 3.0 * 2 / 8, lipschitz=2.0)
    assert other.alpha == pytest.approx(one.alpha, rel=1e-4)  # x in units twice as long, F in units 4 times


def test_ladders():
    for noise, known in ((0.0, 30_421), (1.0, 183_372)):
        stages = theory.ladder(0.1, **UNIT, first=0.4, ratio=0.5, noise=noise)
        assert [stage.eps for stage in stages] == pytest.approx([0.4, 0.2, 0.1])
        found = theory.ladder_steps(stages, gap=1.0)
        assert found == pytest.approx(known, rel=1e-4)
        r, b, y = (np.array([getattr(s, name) for s in stages]) for name in ("fall", "overhead", "excess"))
        # Abel summation with the worst falls that the stages allow for, by a linear program
        most = optimize.linprog(
            -1 / r,
            A_ub=np.vstack([np.ones(3), np.tril(-np.ones((3, 3)))]),
            b_ub=np.concatenate([[1.0], np.cumsum(r * b / (1 + y))]),
            bounds=(None, None),
        )
        assert most.status == 0
        assert found >= -most.fun + b.sum()
    assert theory.stopping_plan(0.1, **UNIT).steps(1.0, checked=10.0, failure=0.5) == pytest.approx(
        26_570.5 + 546.43 * 21, rel=1e-4
    )


def test_noise_margin():
    """Signs of size σ: the error of their average exceeds u_j with probability p/(j(j + 1)) at most."""
    beta, n, runs, p = 0.9, 60, 20_000, 0.2
    rng = np.random.default_rng(0)
    weights = beta ** np.arange(n - 1, -1, -1.0)
    error = 2.0 * np.abs(rng.choice([-1.0, 1.0], (runs, n)) @ weights) / weights.sum()
    for j in (1, 3):
        margin = theory.noise_margin(j, n, beta, noise=2.0, failure=p)
        assert (error > margin).mean() <= p / (j * (j + 1))
        # Pinelis' r for Σβ^{2(n−t)} <= 1/(1 − β²), times α/(1 − β^n)
        r = 2.0 * math.sqrt(2 / (1 - beta**2) * math.log(2 * j * (j + 1) / p))
        assert margin == pytest.approx((1 - beta) / (1 - beta**n) * r, rel=1e-12)
    assert (error > theory.noise_margin(1, n, beta, noise=2.0, failure=p) / 2.5).mean() > p / 20  # not far too large


def test_holdout_samples():
    """The mean of K gradients of length Ā is off by more than the margin with probability p/(j(j + 1)) at most."""
    rng, largest, margin, p = np.random.default_rng(0), 2.0, 0.8, 0.3
    for j in (1, 2):
        k = theory.holdout_samples(j, margin, largest=largest, failure=p)
        assert 2 * math.exp(-k * margin**2 / (2 * (2 * largest) ** 2)) <= p / (j * (j + 1))
        assert 2 * math.exp(-(k - 1) * margin**2 / (2 * (2 * largest) ** 2)) > p / (j * (j + 1))
        means = largest * rng.choice([-1.0, 1.0], (2000, k)).mean(1)
        assert (np.abs(means) > margin).mean() <= p / (j * (j + 1))
