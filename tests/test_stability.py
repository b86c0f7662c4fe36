"""`theory.stable_lr`: the recursion of E x², E xm and E m² written out, its spectral radius, and runs."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
import sympy
import torch

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


def test_the_determinant_vanishes_there_and_nowhere_else():
    """det(I − E A⊗A), on symmetric matrices, over h is linear in h, quadratic with the lead: with one root > 0."""
    b, h, v = sympy.symbols("b h v", positive=True)
    for nesterov in (False, True):
        row = sympy.Matrix([[1 + b, b**2]]) if nesterov else sympy.Matrix([[1, b]])
        fixed, random = sympy.Matrix([[1, 0], [1, b]]), sympy.Matrix([-h * row, [0, 0]])
        kron = sympy.kronecker_product
        second = kron(fixed, fixed) + kron(fixed, random) + kron(random, fixed) + v * kron(random, random)
        merged = sympy.Matrix([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 1]]) * second  # E x², E xp, E p²
        merged = merged * sympy.Matrix([[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]])
        vanishes = sympy.cancel((sympy.eye(3) - merged).det() / h)
        if nesterov:
            stated = v * b * (1 + 2 * b) * h**2 + (v * (1 + b) - 2 * b * (1 + 2 * b)) * h - 2 * (1 - b**2)
        else:
            stated = 1 / (2 * (1 + b)) + (v - 1) / (2 * (1 - b)) - 1 / h
        assert not sympy.cancel(vanishes / stated).has(v)
        at = theory.stable_lr(0.7, o2nc.Gamma(2.5), nesterov=nesterov)
        assert abs(stated.subs({b: 0.7, v: 1 + 1 / 2.5, h: at})) < 1e-12


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


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.5}], ids=str)
def test_it_is_the_motion_of_the_optimizer(options):
    """A parabola of curvature 2.5, in float64: the state after every step is the product of the factors."""
    b, lr, curvature, law = 0.8, 0.11, 2.5, o2nc.Gamma(2.0)
    x = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    opt = o2nc.ScaledSGDM([x], lr=lr, momentum=b, scaling=law, seed=4, **options)
    scale = 1 - options.get("dampening", 0.0)
    # torch's first buffer is g_1, as if dampening began with the second
    state = np.array([1.5, (1 / scale - 1) * 1.5 / b])
    for t in range(1, 30):
        x.grad = curvature * x.detach().clone()
        opt.step()
        state = factor(law.sample(4, t + 1), lr * curvature * scale, b, options.get("nesterov", False)) @ state
        assert x.item() == pytest.approx(state[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", ["exponential", "jitter"])
def test_runs_have_these_second_moments(name, nesterov):
    """Many runs from (x, m) = (1, 0), by the law's own numbers."""
    h, b, runs, steps = 0.15, 0.8, 4000, 10
    x, p, expected = np.ones(runs), np.zeros(runs), np.array([1.0, 0, 0, 0])
    for t in range(2, steps + 2):
        s = np.array([LAWS[name][0].sample(k, t) for k in range(runs)])
        gradient = x
        p = b * p + gradient
        x = x - h * s * (gradient + b * p if nesterov else p)
        expected = moments(name, h, b, nesterov) @ expected
    for products, mean in zip((x * x, x * p, p * p), expected[[0, 1, 3]], strict=True):
        assert abs(products.mean() - mean) < 5 * products.std() / math.sqrt(runs)


def test_a_typical_run_bears_more_than_the_mean_square():
    """Products of random matrices: above the threshold E x² grows by rare runs, while log|x| still falls."""
    h = 1.5 * theory.stable_lr(0.9)
    assert radius(moments("exponential", h, 0.9)) > 1.02
    s, state, total = np.random.default_rng(1).exponential(size=20_000), np.ones(2), 0.0
    for number in s:
        state = factor(number, h, 0.9) @ state
        length = np.linalg.norm(state)
        total, state = total + math.log(length), state / length
    assert total / len(s) < -0.005


@pytest.mark.parametrize("b", [0.0, 0.5, 0.9])
def test_what_noise_leaves(b):
    """E x² → (ℓσ²/λ)(v(1−b) + 2b)/(2(1−b²)(1 − ℓλ/h)) with noisy gradients, by the recursion with their source."""
    for name in ("none", "jitter", "exponential"):
        law = LAWS[name][0]
        v = 1.0 if law is None else law.second_moment
        for part in (0.1, 0.8):
            h = part * theory.stable_lr(b, law)
            source = np.array([h**2 * v, -h, -h, 1.0])  # a gradient off by λ adds 1 to p, and −hs to x
            left = np.linalg.solve(np.eye(4) - moments(name, h, b), source)[0]
            assert left == pytest.approx(h * (v * (1 - b) + 2 * b) / (2 * (1 - b**2) * (1 - part)), rel=1e-7)


@dataclass(frozen=True)
class Untold:
    """A law that does not tell its moments."""

    def sample(self, seed, step):
        return 1.0

    def weight(self, s):
        return 1.0


class Mistold(Untold):
    """One that cannot be."""

    second_moment = 0.5


def test_a_law_of_an_extreme_shape():
    """C(200, 100), although 200! is beyond all floats."""
    assert o2nc.Weibull(0.01).second_moment == pytest.approx(math.comb(200, 100), rel=1e-9)
    assert 0 < theory.stable_lr(0.9, o2nc.Weibull(0.01)) < 1e-59


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((1.0,), {}, ValueError, r"momentum must be a number in \[0, 1\), got 1.0"),
        (("a",), {}, TypeError, "momentum"),
        ((0.9,), {"curvature": 0}, ValueError, "curvature must be a finite number > 0, got 0"),
        ((0.9,), {"nesterov": 1}, TypeError, "nesterov"),
        ((0.9,), {"dampening": 1}, ValueError, "dampening must be a number < 1, got 1"),
        ((0.9,), {"dampening": 0.5, "nesterov": True}, ValueError, "dampening must be 0 with nesterov=True, got 0.5"),
        ((0.9, Untold()), {}, ValueError, "have a second_moment"),
        ((0.9, 3), {}, TypeError, "law must be a law"),
        ((0.9, Mistold()), {}, ValueError, r"law's E s².* >= 1, got 0.5"),
    ],
)
def test_bad_arguments(arguments, options, error, words):
    with pytest.raises(error, match=words):
        theory.stable_lr(*arguments, **options)
