"""The adaptive plan: its bound is the theorem of docs/paper.md, and runs that know neither G nor σ stay below it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc.problems import Additive, DoubleWell, MultiKink, Washboard
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
    uniform = p.bound(lipschitz=g, noise=sigma, output="uniform")
    assert uniform == pytest.approx(expected + b * g / (a * n))
    for k in (0.9, 1.1):  # no other D has a smaller bound, whatever G and σ are
        other = AdaptivePlan(n, c, gap, a, k * d)
        assert other.bound(lipschitz=g, noise=sigma) >= p.bound(lipschitz=g, noise=sigma) * (1 - 1e-12)


@pytest.mark.parametrize("g", [0.1, 1.0, 10.0])
def test_the_rate_is_the_best_whatever_g_is(g):
    few, many = (adaptive_plan(n, 1.0, 1.0).bound(lipschitz=g, noise=g) for n in (10**12, 10**14))
    assert math.log(few / many) / math.log(100) == pytest.approx(2 / 7, abs=1e-3)


def test_the_best_alpha_where_the_gradients_have_the_scale_of_gap_and_c():
    """adaptive.py: "where A = (F*²c)^{1/3} … it is 1.22·N^{−4/7} for σ = 0"."""
    n, c, gap = 10**12, 3.0, 7.0
    grid = n ** (-4 / 7) * np.linspace(0.5, 2, 301)

    def bound(alpha):
        d = (gap * alpha**2 / (2 * o2nc.theory.spread_constant(1 - alpha) * c * n)) ** (1 / 3)
        return AdaptivePlan(n, c, gap, alpha, d).bound(lipschitz=(gap**2 * c) ** (1 / 3))

    best = min(grid, key=bound)
    assert best * n ** (4 / 7) == pytest.approx(1.22, abs=0.01)


@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("problem", [DoubleWell(3), MultiKink(2), Washboard.against(1e-3, 0.95, 500, dimension=20)])
def test_a_run_stays_below_a_bound_that_it_did_not_know(problem, size):
    """F and its noise times ``size``, gap and c alike: the run has the same D and β whatever G is."""
    n, c = 500, 1.0
    p = adaptive_plan(n, c, problem.gap)
    oracle = Additive(problem, 0.5)
    x = problem.start()
    opt = p.optimizer([x], seed=1)
    generator = torch.Generator().manual_seed(0)
    mean, total, weight = torch.zeros_like(x), 0.0, 0.0
    for _ in range(n):
        weight = p.beta * weight + 1
        mean += (size * problem.gradient(x) - mean) / weight
        x.grad = size * oracle.sample(x, generator)
        opt.step()
        total += mean.norm().item() + c * opt.certificate(c).spread
    whole = AdaptivePlan(n, c, size * problem.gap, p.alpha, p.radius)
    bound = whole.bound(lipschitz=size * problem.lipschitz, noise=size * oracle.noise, output="uniform")
    assert total / n < bound
    assert opt.param_groups[0]["lr"] == p.radius


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"steps": 0, "c": 1.0, "gap": 1.0}, "steps"),
        ({"steps": 10, "c": 0.0, "gap": 1.0}, "c"),
        ({"steps": 10, "c": 1.0, "gap": -1.0}, "gap"),
    ],
)
def test_bad_constants_are_named(arguments, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        adaptive_plan(**arguments)


@pytest.mark.parametrize(("name", "value"), [("lipschitz", 0.0), ("noise", -1.0), ("output", "last")])
def test_bad_constants_of_the_bound_are_named(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        adaptive_plan(10, 1.0, 1.0).bound(**({"lipschitz": 1.0} | {name: value}))
