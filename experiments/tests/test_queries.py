"""Random queries on a parabola: thresholds against their formulas, and the motion against a loop written out."""

from functools import partial

import numpy as np
import pytest
from o2nc_experiments.verify.stability import UNIT_QUERY, growth, random_query, threshold, walk


def asked(b, nesterov, lag):
    """The threshold with a query that lags behind."""
    return threshold(partial(random_query, b=b, nesterov=nesterov), *lag)


@pytest.mark.parametrize("b", [0.0, 0.5, 0.9, 0.99])
def test_thresholds_of_queries(b):
    """(E ω² − E ω/2)h² + ((1 − b)/2 + 2bE ω)h = 1 − b²; half a step of lag bears 2(1 − b), a lead of b Nesterov's."""
    for first, square in (UNIT_QUERY, (0.5, 0.25), (0.0, 0.0), (0.2, 0.3)):
        h = asked(b, False, (first, square))
        assert (square - first / 2) * h**2 + ((1 - b) / 2 + 2 * b * first) * h == pytest.approx(1 - b**2, rel=1e-6)
    assert asked(b, False, (0.5, 0.25)) == pytest.approx(2 * (1 - b), rel=1e-5)
    assert asked(b, False, (-b, b**2)) == pytest.approx(2 * (1 + b) / (1 + 2 * b), rel=1e-5)
    assert asked(b, True, (0.0, 0.0)) == pytest.approx(2 * (1 + b) / (1 + 2 * b), rel=1e-5)


@pytest.mark.parametrize("b", [0.0, 0.5, 0.9, 0.99])
def test_threshold_of_the_query_with_the_lead(b):
    h = asked(b, True, UNIT_QUERY)
    left = b * (1 + 2 * b) ** 2 * h**3 + 2 * (4 * b**3 + 9 * b**2 + 5 * b + 1) * h**2
    assert left - 12 * (1 + b) * (b**2 + b - 1) * h == pytest.approx(24 * (1 - b**2), rel=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("b", [0.3, 0.9])
def test_there_is_one_threshold(b, nesterov):
    h = asked(b, nesterov, UNIT_QUERY)
    for part in (0.01, 0.1, 0.5, 0.99):
        assert growth(random_query(part * h, b, nesterov), *UNIT_QUERY) < 1
    for part in (1.01, 1.5, 2, 4):
        assert growth(random_query(part * h, b, nesterov), *UNIT_QUERY) > 1


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_motion_is_that_of_full_steps_with_random_queries(nesterov):
    """Gradient at x_{t−1} + uΔ_t, momentum, the whole step; from x = 1 without momentum."""
    h, b = 0.07, 0.8
    lags = np.random.default_rng(0).uniform(size=(3, 12))
    for row, found in zip(lags, walk(random_query(h, b, nesterov), lags), strict=True):
        x, m, delta = 1.0, 0.0, 0.0
        for lag in row:
            gradient = (x - delta) + (1 - lag) * delta
            m = b * m + gradient
            delta = -h * (gradient + b * m if nesterov else m)
            x += delta
        assert found == pytest.approx([x, m, delta], abs=1e-12)
