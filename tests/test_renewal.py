"""What a law costs without weights: L = ∫ u|dk(u)|, k its renewal density less 1, and the identity that it is for."""

import math

import numpy as np
import pytest

import o2nc
from o2nc import renewal


@pytest.mark.parametrize(("n", "known"), [(2, 0.25), (3, 0.347), (4, 0.448), (16, 4.797)])
def test_price_of_gamma(n, known):
    """dk = Σ n(ω^j − 1)ω^j e^{n(ω^j − 1)u} du, integrated as it stands."""
    roots = np.exp(2j * np.pi * np.arange(1, n) / n)
    u = np.linspace(0.0, 40 / (n * (1 - math.cos(2 * math.pi / n))), 400_001)
    slope = sum(n * (w - 1) * w * np.exp(n * (w - 1) * u) for w in roots).real
    direct = np.trapezoid(u * np.abs(slope), u)
    assert o2nc.Gamma(float(n)).price == pytest.approx(direct, rel=2e-4)
    assert direct == pytest.approx(known, rel=2e-3)


def delayed(low, cells):
    """L of U(low, high), mean 1, by the method of steps: k′(u) = (k(u − low) − k(u − high))/width, and jumps."""
    high, jump = 2 - low, 1 / (2 - 2 * low)
    a, b = round(low * cells), round(high * cells)
    count = round(40 * cells / min(1.0, 2 * (1 - low) ** 2))
    right = np.full(count + b + 1, -1.0)  # k(i/cells) from the right, from i = −b on
    left = right.copy()
    right[b] = -1 + (jump if a == 0 else 0)
    total = (low + high) * jump
    for i in range(count):
        late = (right[i] + left[i + 1]) / 2
        if a == 0:  # k itself is on the right side: the trapezoidal rule, solved
            h = jump / (2 * cells)
            end = (right[b + i] * (1 + h) - 2 * h * late) / (1 - h)
        else:
            end = right[b + i] + jump * ((right[b + i - a] + left[b + i + 1 - a]) / 2 - late) / cells
        total += abs(end - right[b + i]) * (i + 0.5) / cells
        left[b + i + 1] = end
        right[b + i + 1] = end + jump * ((i + 1 == a) - (i + 1 == b))
    return total


@pytest.mark.parametrize(("low", "known"), [(0.0, 2.8), (0.5, 5.0), (0.75, 40.0)])
def test_price_of_uniform(low, known):
    """The density jumps, and so does k: those atoms count."""
    price = o2nc.Uniform(low, 2 - low).price
    assert price == pytest.approx(delayed(low, 400), rel=5e-4)
    assert price == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("law", [o2nc.Exponential(3.0), o2nc.Gamma(0.5), o2nc.Gamma(1.5), o2nc.Weibull(0.8)])
def test_price_where_k_is_monotone(law):
    """Then L = |∫k| = |E s²/2 − 1|, as the renewal function is u + E s²/2 − 1 in the end."""
    assert law.price == pytest.approx(abs(law.second_moment / law.mean**2 / 2 - 1), abs=1e-12)


def test_monotone_forms_agree_with_the_grid():
    """Gamma(2) from both sides of the formula, Weibull through shape 1 where it is Exp."""
    grid = renewal.price(lambda u: 1 - (1 + 2 * u) * np.exp(-2 * u), variance=0.5)
    assert grid == pytest.approx(o2nc.Gamma(2.0).price, rel=2e-4)
    assert o2nc.Gamma(2.0001).price == pytest.approx(0.25, rel=1e-3)
    assert o2nc.Weibull(1.001).price == pytest.approx(o2nc.Weibull(0.999).price, rel=0.05)


def test_price_of_a_narrow_law_is_nearly_its_leading_term():
    """U′ is a sum of bells of variance m·Var around m; their variation is 8Σ_{odd j} e^{−2π²j²u·Var} at u."""
    assert 0.96 < o2nc.Jitter(0.1).price * 48 * (0.1**2 / 3) ** 2 <= 1
    for width in (0.02, 0.001, 1e-6):  # E s² − 1 has no digits left at the last
        assert o2nc.Jitter(width).price == pytest.approx(3 / (16 * width**4), rel=1e-6)


def test_price_does_not_depend_on_the_scale():
    assert o2nc.Gamma(4.0, 7.0).price == pytest.approx(o2nc.Gamma(4.0).price)
    assert o2nc.Uniform(0, 1).price == pytest.approx(o2nc.Uniform(0, 2).price)
