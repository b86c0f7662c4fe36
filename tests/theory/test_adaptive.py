"""The adaptive plan: its bound is the theorem of docs/paper.md, and runs that know neither G nor σ stay below it."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from o2nc.theory.adaptive import AdaptivePlan, adaptive_plan

POSITIVE = st.floats(1e-3, 1e3)


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


def test_the_price_of_the_gap():
    """docs/paper.md: not knowing F* costs the regret of coin betting over DN."""
    plan, g = adaptive_plan(400, 1.0, 7.0), 2.0
    n, d = plan.steps, plan.radius
    for wealth in (1.0, 0.01):
        bets = 2 * g * d * (n + 1)
        regret = wealth + 2 * g * d * math.sqrt((n + 1) * math.log(1 + (bets / wealth) ** 2))
        assert plan.price_of_the_gap(largest=g, wealth=wealth) == pytest.approx(regret / (d * n), rel=1e-12)
    with pytest.raises(ValueError, match="is too small here"):
        plan.price_of_the_gap(largest=1e-9, wealth=1.0)


@pytest.mark.parametrize("g", [0.1, 1.0, 10.0])
def test_the_rate_is_the_best_whatever_g_is(g):
    few, many = (adaptive_plan(n, 1.0, 1.0).bound(lipschitz=g, noise=g) for n in (10**12, 10**14))
    assert math.log(few / many) / math.log(100) == pytest.approx(2 / 7, abs=1e-3)
