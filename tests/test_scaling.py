"""The laws of s: pure sampling, distributions, weights, and what a law without weights costs."""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import o2nc
from o2nc import renewal
from o2nc.scaling import Law, draw, uniform
from refusals import refusals

LAWS = {
    "exponential": (o2nc.Exponential(), scipy.stats.expon()),
    "exponential, rate 2.5": (o2nc.Exponential(rate=2.5), scipy.stats.expon(scale=0.4)),
    "uniform": (o2nc.Uniform(0, 2), scipy.stats.uniform(0, 2)),
    "uniform above 0": (o2nc.Uniform(0.75, 1.25), scipy.stats.uniform(0.75, 0.5)),
    "jitter 1": (o2nc.Jitter(1), scipy.stats.uniform(0, 2)),
    "jitter": (o2nc.Jitter(0.25), scipy.stats.uniform(0.75, 0.5)),
    "weibull .8": (o2nc.Weibull(0.8), scipy.stats.weibull_min(0.8, scale=1 / math.gamma(1 + 1 / 0.8))),
    "weibull 3": (o2nc.Weibull(3.0), scipy.stats.weibull_min(3.0, scale=1 / math.gamma(4 / 3))),
    "weibull 1.5": (o2nc.Weibull(1.5, scale=0.7), scipy.stats.weibull_min(1.5, scale=0.7)),
    "gamma .5": (o2nc.Gamma(0.5), scipy.stats.gamma(0.5, scale=2.0)),
    "gamma 3": (o2nc.Gamma(3.0, 2.0), scipy.stats.gamma(3.0, scale=2.0)),
    "gamma 1.7": (o2nc.Gamma(1.7, scale=0.9), scipy.stats.gamma(1.7, scale=0.9)),
}


@pytest.mark.parametrize(("law", "reference"), LAWS.values(), ids=list(LAWS))
def test_a_law_is_scipys(law, reference):
    """Its samples over steps and over seeds, its moments, and its weight, survival over density."""
    over_steps = [law.sample(3, step) for step in range(1, 20_001)]
    over_seeds = [law.sample(seed, 7) for seed in range(20_000)]
    for sample in (over_steps, over_seeds):
        assert scipy.stats.kstest(sample, reference.cdf).pvalue > 1e-4
    assert (law.mean, law.second_moment) == pytest.approx((reference.moment(1), reference.moment(2)))
    for s in reference.ppf([0.001, 0.1, 0.3, 0.5, 0.9, 0.999]):
        assert law.weight(s) == pytest.approx(reference.sf(s) / reference.pdf(s), rel=1e-10)
    assert isinstance(law, Law)
    assert eval(repr(law), vars(o2nc)) == copy.deepcopy(law) == law
    with pytest.raises(AttributeError):
        law.scale = 3.0


def test_samples_are_uncorrelated_between_steps_and_seeds():
    s = np.array([[o2nc.Exponential().sample(seed, step) for step in range(1, 2001)] for seed in range(6)])
    lag = [np.corrcoef(row[:-k], row[k:])[0, 1] for row in s for k in (1, 2, 7)]
    between = np.corrcoef(s)[np.triu_indices(6, 1)]
    assert max(map(abs, [*lag, *between])) < 4.5 / math.sqrt(2000)


@given(seed=st.integers(0, 2**200), step=st.integers(1, 2**70), stream=st.integers(0, 3), draw=st.integers(0, 9))
def test_uniform_is_pure_and_open(seed, step, stream, draw):
    u = uniform(seed, step, stream=stream, draw=draw)
    assert 0 < u < 1
    assert u == uniform(seed, step, stream=stream, draw=draw)
    assert u != uniform(seed + 1, step, stream=stream, draw=draw)
    assert u != uniform(seed, step + 1, stream=stream, draw=draw)
    assert u != uniform(seed, step, stream=stream + 1, draw=draw)
    assert u != uniform(seed, step, stream=stream, draw=draw + 1)


def test_every_process_sees_the_same_scalars():
    """Values are pinned: a change of generator would silently change every run that is resumed."""
    law = o2nc.Exponential()
    pinned = [0.525178978415534, 0.6333666627301492]
    assert [law.sample(0, 2), o2nc.Gamma(0.5).sample(0, 2)] == pytest.approx(pinned, rel=1e-12)


def test_progress_weights_have_a_finite_variance():
    """w(s) where it makes an unbiased estimate of finite variance, 1 elsewhere."""
    for law in (o2nc.Exponential(2.0), o2nc.Uniform(0, 2), o2nc.Weibull(1.5), o2nc.Gamma(0.5)):
        assert draw(law, 3, 7, counts=False, progress=True, k=0).weight == law.weight(law.sample(3, 7)) != 1
    for law in (None, o2nc.Uniform(0.75, 1.25), o2nc.Jitter(0.25), o2nc.Weibull(2.0), o2nc.Gamma(16)):
        assert draw(law, 3, 7, counts=False, progress=True, k=0).weight == 1


@pytest.mark.parametrize(
    ("law", "same"),
    [
        (o2nc.Exponential(np.float16(2)), o2nc.Exponential(2.0)),
        (o2nc.Uniform(np.float32(0.5), np.int64(2)), o2nc.Uniform(0.5, 2.0)),
        (o2nc.Jitter(np.float16(0.25)), o2nc.Jitter(0.25)),
        (o2nc.Jitter(Fraction(1, 4)), o2nc.Jitter(0.25)),
        (o2nc.Weibull(np.float32(1.5)), o2nc.Weibull(1.5)),
        (o2nc.Gamma(np.float32(16), np.float32(0.0625)), o2nc.Gamma(16.0, 0.0625)),
    ],
)
def test_numbers_of_any_kind_are_the_same_law(law, same):
    """s has all its digits, whatever type its law's numbers have."""
    assert repr(law) == repr(same)
    for step in range(1, 6):
        s = law.sample(3, step)
        assert type(s) is float
        assert s == same.sample(3, step)


test_bad_arguments = refusals(
    (lambda: o2nc.Exponential(0), ValueError, "rate must be a finite number > 0, got 0"),
    (lambda: o2nc.Exponential(float("nan")), ValueError, "rate"),
    (lambda: o2nc.Uniform(-1, 2), ValueError, "low"),
    (lambda: o2nc.Uniform(1, 1), ValueError, "high"),
    (lambda: o2nc.Jitter(0), ValueError, r"width must be a number in \(0, 1\], got 0"),
    (lambda: o2nc.Jitter(1.01), ValueError, r"width must be a number in \(0, 1\], got 1.01"),
    (lambda: o2nc.Jitter(1e-17), ValueError, "width"),
    (lambda: o2nc.Weibull(-1), ValueError, "shape"),
    (lambda: o2nc.Weibull(0.005), ValueError, "shape"),
    (lambda: o2nc.Weibull(1.2, scale=0), ValueError, "scale"),
    (lambda: o2nc.Gamma(0.5, scale="x"), TypeError, "scale"),
    (lambda: uniform(0, 0), ValueError, "step must be an integer >= 1, got 0"),
)


def test_laws_at_the_edge():
    """Shapes from which s is nearly always tiny, or nearly always its mean: finite, with finite weights, mean 1."""
    for law in (o2nc.Gamma(0.01), o2nc.Gamma(1e6), o2nc.Weibull(0.01), o2nc.Weibull(200.0), o2nc.Jitter(1e-6)):
        found = [law.sample(0, n) for n in range(1, 3000)]
        assert all(math.isfinite(s) and s >= 0 and math.isfinite(law.weight(s)) for s in found)
        if law.second_moment < 1.1:
            assert np.mean(found) == pytest.approx(1, abs=1e-3)
        assert law.mean == pytest.approx(1)
    torch.set_flush_denormal(True)  # as some versions of torch's compiler do
    try:
        assert math.isfinite(o2nc.Gamma(0.01).weight(0.0))
    finally:
        torch.set_flush_denormal(False)
    with torch.device("meta"):
        assert o2nc.Gamma(1.5).weight(0.3) > 0


# --- what a law costs without weights: L = ∫ u|dk(u)|, k its renewal density less 1


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
