"""Plateaus, kinks, convex and sharp functions as docs/paper.md prints them; `o2nc paper verify` has the runs."""

import math

import pytest

import o2nc
from o2nc import theory

MOMENTA = pytest.mark.parametrize("b", [0.0, 0.5, 0.9])
KNOWN = {"distance": 0.3, "gap": 0.2, "lipschitz": 1.5}


def kappa(b, law=o2nc.Exponential()):
    return (law.second_moment * (1 - b) + 2 * b) / (2 * (1 + b))


@MOMENTA
def test_ratio_and_level(b):
    """ρ = (1 − b²)E‖m‖²/E‖g‖², and E F − F* = κℓ̄ρE‖g‖² at a kink, under every law; t = −R/√Q."""
    assert theory.energy_ratio(7.0, 2.0, b) == pytest.approx((1 - b**2) * 3.5)
    for law in (o2nc.Exponential(), o2nc.Gamma(2.0), o2nc.Jitter(0.25)):
        found = theory.kink_level(0.02, b, gradient_squares=3.0, ratio=0.7, law=law)
        assert found == pytest.approx(kappa(b, law) * 0.02 / (1 - b) * 0.7 * 3)
    assert theory.fall_seen(-0.3, 0.01) == pytest.approx(3.0)


@MOMENTA
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_convex_bound(b, noise):
    """D²/(2ℓ̄n) + κℓ̄A² + 2bκΦ/((1 − b)n)."""
    longer, size = 0.03 / (1 - b), 1.5**2 + noise**2
    by_hand = 0.3**2 / (2 * longer * 100) + kappa(b) * longer * size + 2 * b * kappa(b) * 0.2 / ((1 - b) * 100)
    assert theory.convex_bound(100, 0.03, b, **KNOWN, noise=noise) == pytest.approx(by_hand)


@MOMENTA
def test_a_stage_halves_the_distance(b):
    """F − F* >= μ·dist, so that a bound of μD/2 at its lr and length is what it needs."""
    stage = theory.sharp_stage(0.5, b, distance=1.0, lipschitz=1.0, noise=1.0)
    known = {"distance": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": 1.0}
    assert theory.convex_bound(stage.steps, stage.lr, b, **known) <= 0.25 * (1 + 1e-9)
    assert stage.lr == pytest.approx((1 - b) * 0.5 / (4 * kappa(b) * 2))
    assert stage.steps == math.ceil(16 * kappa(b) * max(2 / 0.25, 2 * b / (1 - b)) - 1e-9)
