"""Averages of averages against those of a run, and against weights that are written out."""

import math

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

import o2nc
import twin
from o2nc import Polynomial, Snapshot, snapshots
from refusals import refusals


def weights_of(window, n):
    """Return p_{n,t} by their definition."""
    return torch.from_numpy(twin.weights(window, n))


def walk(steps, d=40):
    chance = torch.Generator().manual_seed(0)
    moves = torch.randn(steps, d, generator=chance, dtype=torch.float64)
    return 20 * torch.randn(d, generator=chance, dtype=torch.float64) + moves.cumsum(0) / steps**0.5


def taken(iterates, window, steps):
    """Return snapshots of x̄ of these iterates."""
    return [Snapshot(window, n, [weights_of(window, n) @ iterates[:n]]) for n in steps]


@hypothesis.settings(deadline=None)
@hypothesis.given(st.just(0.0) | st.floats(1, 40), st.integers(0, 5), st.integers(1, 9), st.integers(1, 60))
def test_the_weights_are_those_of_the_definition(power, start, every, beyond):
    window, n = Polynomial(power, start, every), start + beyond
    found = snapshots._weights(window, n, n + 3)
    torch.testing.assert_close(found[:n], weights_of(window, n), rtol=1e-9, atol=1e-13)
    assert not found[n:].any()


@pytest.mark.parametrize("wanted", [3.0, 5.0, 6.0, 9.0, 12.0])
def test_powers_between_two_tracks_a_factor_four_apart(wanted):
    iterates, steps = walk(800), range(50, 801, 50)
    kept = taken(iterates, Polynomial(3), steps) + taken(iterates, Polynomial(12), steps)
    found = o2nc.posthoc(kept, wanted)
    exact = weights_of(Polynomial(wanted), 800) @ iterates
    # 16 snapshots each: the weights are within 4e-3, x̄ far below 1e-3
    assert found.error < 4e-3
    assert (found.values[0] - exact).norm() < 1e-5 * exact.norm()
    made = sum(a * torch.nn.functional.pad(weights_of(s.window, s.step), (0, 800 - s.step))
               for a, s in zip(found.weights, sorted(kept, key=lambda s: s.step), strict=True))  # fmt: skip
    asked = weights_of(Polynomial(wanted), 800)
    assert found.error == pytest.approx(float((made - asked).norm() / asked.norm()), rel=1e-3, abs=1e-9)
    assert found.lowest == pytest.approx(float(made.min() / made.max()), rel=1e-3, abs=1e-12)
    assert math.fsum(found.weights) == pytest.approx(1)


def test_a_window_that_is_there_is_found_again():
    iterates = walk(60)
    kept = taken(iterates, Polynomial(2, start=10), (20, 40, 60))
    found = o2nc.posthoc(kept, Polynomial(2, start=10))
    assert found.error < 1e-12
    torch.testing.assert_close(found.values[0], kept[-1].values[0])


def test_a_snapshot_that_is_there_twice_changes_nothing():
    kept = taken(walk(60), Polynomial(4), (30, 60))
    once, twice = (o2nc.posthoc(some, 2) for some in (kept, kept + kept))
    assert (twice.error, twice.lowest) == pytest.approx((once.error, once.lowest))
    torch.testing.assert_close(twice.values, once.values)
    assert o2nc.posthoc(kept[:1], 2).weights == [1.0]


def test_what_is_no_average_says_so():
    iterates = walk(60)
    steps = (15, 30, 45, 60)
    near = o2nc.posthoc(taken(iterates, Polynomial(3), steps) + taken(iterates, Polynomial(12), steps), 3.5)
    far = o2nc.posthoc(taken(iterates, Polynomial(4), steps) + taken(iterates, Polynomial(16), steps), 8)
    assert far.error > 0.04 > near.error
    assert far.lowest < 0 < near.lowest


def test_state_dicts_are_combined_by_their_keys():
    """In the dtype of the last one, whose numbers that are no averages stay: BatchNorm's count of batches."""
    plain = taken(walk(60), Polynomial(4), (30, 60))
    kept = [s._replace(values={"w": s.values[0].float(), "n": torch.tensor(s.step)}) for s in plain]
    found = o2nc.posthoc(reversed(kept), 2)
    a, b = found.weights
    torch.testing.assert_close(found.values["w"], a * kept[0].values["w"] + b * kept[1].values["w"])
    assert found.values["n"] == 60


ONE = [torch.zeros(2)]
GOOD = (Polynomial(4), 10, ONE)


test_bad_input = refusals(
    (lambda: o2nc.posthoc([], 2), ValueError, "at least one"),
    (lambda: o2nc.posthoc([(0.9, 10, ONE)], 2), TypeError, "window of a snapshot must be an o2nc.Poly.* got 0.9"),
    (lambda: o2nc.posthoc([(GOOD[0], 0, ONE)], 2), ValueError, "step of a snapshot must be an integer >= 1, got 0"),
    (lambda: o2nc.posthoc([GOOD], -1), ValueError, "power"),
    (lambda: o2nc.posthoc([GOOD], Polynomial(4, start=20)), ValueError, "begins after 20 steps"),
    (lambda: o2nc.posthoc([(GOOD[0], n, {f"{n}": ONE[0]}) for n in (5, 6)], 2), ValueError, "same keys"),
    (lambda: o2nc.posthoc([GOOD, (GOOD[0], 5, [torch.zeros(3)])], 2), ValueError, "same shapes"),
    (lambda: o2nc.posthoc([GOOD, (GOOD[0], 5, [])], 2), ValueError, "equally many tensors"),
)
