"""`theory.stable_lr`: the recursion of E x², E xm and E m² written out, its spectral radius, and runs."""

import math

import numpy as np
import pytest
import scipy.stats

import o2nc
from o2nc import theory

LAWS = {
    "none": (None, None),
    "exponential": (o2nc.Exponential(), scipy.stats.expon()),
    "uniform": (o2nc.Uniform(0, 2), scipy.stats.uniform(0, 2)),
    "jitter": (o2nc.Jitter(0.25), scipy.stats.uniform(0.75, 0.5)),
    "gamma": (o2nc.Gamma(16), scipy.stats.gamma(16, scale=1 / 16)),
    "of mean ½": (o2nc.Weibull(1.5, scale=0.5), scipy.stats.weibull_min(1.5, scale=0.5)),
}
MOMENTA = [0.0, 0.3, 0.5, 0.9, 0.99, 0.9999]


def factor(s, h, b, nesterov=False):
    """What one step multiplies (x, m/λ) by: m ← bm + λx, x ← x − ℓs·m, or x ← x − ℓs(λx + bm)."""
    p = np.array([1.0, b])
    return np.array([[1.0, 0.0] - h * s * (p if not nesterov else [1, 0] + b * p), p])


def moments(name, h, b, nesterov=False):
    """E A⊗A, which is quadratic in s: by its values at 0, 1, 2 and the moments that scipy has of the law."""
    reference = LAWS[name][1]
    at = [np.kron(*[factor(s, h, b, nesterov)] * 2) for s in range(3)]
    first, second = (1.0, 1.0) if reference is None else (reference.moment(1), reference.moment(2))
    return at[0] + first * (4 * at[1] - 3 * at[0] - at[2]) / 2 + second * (at[0] - 2 * at[1] + at[2]) / 2


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", LAWS)
def test_second_moments_stay_bounded_below_it_and_grow_above(name, nesterov):
    for b in (0.0, 0.6, 0.95, 0.999):
        h = theory.stable_lr(b, LAWS[name][0], nesterov=nesterov)
        assert radius(moments(name, 1.001 * h, b, nesterov)) > 1
        for part in (0.001, 0.01, 0.3, 0.7, 0.999):  # there is no gap below
            assert radius(moments(name, part * h, b, nesterov)) < 1


@pytest.mark.parametrize("b", MOMENTA)
def test_known_cases(b):
    assert theory.stable_lr(b, None) == pytest.approx(2 * (1 + b))
    assert theory.stable_lr(b) == pytest.approx(1 - b**2)  # Exp(1)
    assert theory.stable_lr(b, o2nc.Uniform(0, 2)) == pytest.approx(3 * (1 - b**2) / (2 - b))
    assert theory.stable_lr(b, None, nesterov=True) == pytest.approx(2 * (1 + b) / (1 + 2 * b))
    assert theory.stable_lr(0.0, o2nc.Gamma(3.0)) == pytest.approx(2 / (1 + 1 / 3))  # 2E s/E s² for SGD
    for width in (1e-3, 0.1, 0.5, 1.0):
        twice = 1 / theory.stable_lr(b, o2nc.Jitter(width))
        assert twice == pytest.approx(1 / (2 * (1 + b)) + width**2 / 3 / (2 * (1 - b)))


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
