"""The laws of s: pure sampling, distributions, weights, and the identity that they exist for."""

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
from o2nc.scaling import Law, progress_weight, uniform
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
        assert progress_weight(law, 3, 7) == law.weight(law.sample(3, 7)) != 1
    for law in (None, o2nc.Uniform(0.75, 1.25), o2nc.Jitter(0.25), o2nc.Weibull(2.0), o2nc.Gamma(16)):
        assert progress_weight(law, 3, 7) == 1


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
