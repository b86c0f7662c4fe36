"""Formulas as docs/paper.md and docs/stability.md print them; `o2nc paper verify` has the runs and programs."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import o2nc
from o2nc import theory
from o2nc.theory.adaptive import AdaptivePlan, adaptive_plan

POSITIVE = st.floats(1e-3, 1e3)
UNIT = {"c": 1.0, "lipschitz": 1.0}

# ---- the adaptive plan: runs that know neither G nor σ stay below its bound


@given(st.integers(1, 10**9), POSITIVE, POSITIVE, POSITIVE, st.floats(0, 1e3))
@settings(deadline=None, max_examples=50)
def test_the_bound_is_the_theorems(n, c, gap, g, sigma):
    """docs/paper.md: "E_P‖∇F(x̄)‖_c ≤ F*/(DN) + (σ + 2√2·A)(α + β/N)/√(1−β²) + C·cD²/α²"."""
    p = adaptive_plan(n, c, gap)
    a, b, d = p.alpha, p.beta, p.radius
    constant = 2 * b * (1 + b * math.sqrt(2 - b * b)) / (1 + b) ** 2
    unknown = (sigma + 2 * math.sqrt(2) * math.hypot(g, sigma)) * (a + b / n) / math.sqrt(1 - b * b)
    expected = gap / (d * n) + unknown + constant * c * d**2 / a**2
    assert p.bound(lipschitz=g, noise=sigma) == pytest.approx(expected)
    for k in (0.9, 1.1):  # no other D has a smaller bound, whatever G and σ are
        other = AdaptivePlan(n, c, gap, a, k * d)
        assert other.bound(lipschitz=g, noise=sigma) >= p.bound(lipschitz=g, noise=sigma) * (1 - 1e-12)


@pytest.mark.parametrize("g", [0.1, 1.0, 10.0])
def test_the_rate_is_the_best_whatever_g_is(g):
    few, many = (adaptive_plan(n, 1.0, 1.0).bound(lipschitz=g, noise=g) for n in (10**12, 10**14))
    assert math.log(few / many) / math.log(100) == pytest.approx(2 / 7, abs=1e-3)


# ---- the greatest stable learning rate

LAWS = [None, o2nc.Exponential(), o2nc.Uniform(0, 2), o2nc.Jitter(0.25), o2nc.Gamma(16), o2nc.Weibull(1.5, scale=0.5)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("b", [0.0, 0.3, 0.5, 0.9, 0.99, 0.9999])
def test_the_printed_formulas(b, law):
    """1/h = 1/(2(1 + b)) + Var s/(2(1 − b)); with the lead vb(1 + 2b)h² + (v(1 + b) − 2b(1 + 2b))h = 2(1 − b²)."""
    mean, square = (1.0, 1.0) if law is None else (law.mean, law.second_moment)
    v = square / mean**2
    assert 1 / theory.stable_lr(b, law) == pytest.approx(mean * (1 / (2 * (1 + b)) + (v - 1) / (2 * (1 - b))))
    h = mean * theory.stable_lr(b, law, nesterov=True)
    left = v * b * (1 + 2 * b) * h**2 + (v * (1 + b) - 2 * b * (1 + 2 * b)) * h
    assert h > 0
    assert left == pytest.approx(2 * (1 - b**2), rel=1e-6)


def test_the_lead_keeps_some_however_long_the_momentum():
    """As b → 1: 2(3 − v)/(3v) with it, 0 without."""
    for law in (o2nc.Jitter(0.25), o2nc.Jitter(1), o2nc.Exponential()):
        v = law.second_moment
        assert theory.stable_lr(1 - 1e-7, law, nesterov=True) == pytest.approx(2 * (3 - v) / (3 * v), rel=1e-5)
        assert theory.stable_lr(1 - 1e-7, law) < 1e-4


def test_units():
    """Of the curvature, of the law's mean, and of a momentum that is a mean: Adam's 38/lr at 0.9."""
    assert theory.stable_lr(0.9, curvature=4.0) == pytest.approx(theory.stable_lr(0.9) / 4)
    assert theory.stable_lr(0.9, o2nc.Exponential(2.0)) == pytest.approx(2 * theory.stable_lr(0.9))
    assert theory.stable_lr(0.9, None, dampening=0.9) == pytest.approx(38)
    assert theory.stable_lr(0.9, dampening=0.9) == pytest.approx(1.9)


def test_a_law_of_an_extreme_shape():
    """C(200, 100), although 200! is beyond all floats."""
    assert o2nc.Weibull(0.01).second_moment == pytest.approx(math.comb(200, 100), rel=1e-9)
    assert 0 < theory.stable_lr(0.9, o2nc.Weibull(0.01)) < 1e-59


# ---- stopping times and ladders


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
        assert p.steps(gap=3.0) == pytest.approx(3 / p.fall + p.overhead)
    one, other = theory.stopping_plan(0.2, 3.0, lipschitz=1.0), theory.stopping_plan(0.4, 3.0 * 2 / 8, lipschitz=2.0)
    assert other.alpha == pytest.approx(one.alpha, rel=1e-4)  # x in units twice as long, F in units 4 times
