"""`theory.stable_lr` as docs/stability.md prints it; row `stability` of `o2nc paper verify` has the recursion."""

import math

import pytest

import o2nc
from o2nc import theory

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


def test_known_cases():
    assert theory.stable_lr(0.9, None) == pytest.approx(2 * 1.9)
    assert theory.stable_lr(0.9) == pytest.approx(1 - 0.9**2)  # Exp(1)
    assert theory.stable_lr(0.9, None, nesterov=True) == pytest.approx(2 * 1.9 / 2.8)
    assert theory.stable_lr(0.0, o2nc.Gamma(3.0)) == pytest.approx(2 / (1 + 1 / 3))  # 2E s/E s² for SGD


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
