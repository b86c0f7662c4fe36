"""Stopping times and ladders; row `stop-with-noise` of `o2nc paper verify` has the checks with noise."""

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


@pytest.mark.parametrize(("noise", "known"), [(0.0, 30_421), (1.0, 183_372)])
def test_ladders(noise, known):
    """(F* + Σ_{j<K} r_j b_j/(1 + y_j))/r_K + Σ_k b_k; row `ladder` has the linear program behind it."""
    stages = [theory.stopping_plan(eps, **UNIT, noise=noise) for eps in (0.4, 0.2, 0.1)]
    r, b, y = (np.array([getattr(s, name) for s in stages]) for name in ("fall", "overhead", "excess"))
    found = theory.ladder_steps(stages, gap=1.0)
    assert found == pytest.approx((1 + (r * b / (1 + y))[:-1].sum()) / r[-1] + b.sum())
    assert found == pytest.approx(known, rel=1e-4)
    assert stages[-1].steps(1.0, checked=10.0, failure=0.5) == pytest.approx(1 / r[-1] + 21 * b[-1])
