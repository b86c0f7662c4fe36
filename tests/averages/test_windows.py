"""Windows: which iterates count and how much, by their definition; other windows from snapshots of averages."""

import math
from functools import partial
from itertools import product

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import o2nc
import twin
from o2nc import Polynomial, Snapshot, snapshots
from problem import flat, parameters
from refusals import refusals
from registry import INF, OURS, WINDOWS, OwnWindow, advance, claims, identical, params_of, step, trained

EXTREME = [o2nc.Discount(1e-3), o2nc.Discount(0.999999), o2nc.Polynomial(40)]


@pytest.mark.parametrize("window", WINDOWS + EXTREME, ids=str)
def test_gamma_gives_the_weights_of_the_definition(window):
    p, n = np.zeros(0), 0
    for t in range(1, 61):
        if window.counts(t):
            n += 1
            gamma = window.gamma(n)
            assert 0 < gamma <= 1
            p = np.append(p * (1 - gamma), gamma)
        else:
            p = np.append(p, 0.0)
        assert window.count(t) == n
        if n:
            np.testing.assert_allclose(p, twin.weights(window, t), rtol=1e-8, atol=1e-15)
            assert window.ess(n) == pytest.approx(1 / (p**2).sum(), rel=1e-8)
    np.testing.assert_array_equal(window.gamma(np.arange(1, 9)), [window.gamma(k) for k in range(1, 9)])


def test_the_first_iterate_that_counts_is_the_average():
    """Whatever its γ is: what was before it, also before restart_averages(), is not a part."""
    opt = o2nc.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, average=OwnWindow(start=5), certificate=True)
    (p,) = params_of(opt)
    for t in range(1, 12):
        step(opt, 1.0)
        if t == 7:
            opt.restart_averages()
        if t in (6, 8):
            with opt.averaged():
                assert p.item() == 1 - t
    assert opt.certificate().ess == OwnWindow().ess(4)


def test_a_share_in_place_of_a_power_is_noticed():
    words = r"averages the last 93% of the run; for the last 0.08 of it.*Polynomial\(11.5\)"
    with pytest.warns(UserWarning, match=words):
        o2nc.Polynomial(0.08)


@pytest.mark.parametrize("average", [0.5, np.float32(0.5)], ids=repr)
def test_a_number_is_a_discount(average):
    identical(*(claims(trained("SGD", 3, average=given)) for given in (average, o2nc.Discount(0.5))))


@pytest.mark.parametrize("name", ["AdamW", "ScaledSGDM", "OGD"])
def test_a_window_of_ones_own(name):
    opt, xs = OURS[name](parameters(), average=OwnWindow(start=2, every=4)), []
    for t in range(1, 14):
        xs.append(flat(params_of(opt)))
        advance(opt, [t])
    p = np.array([1, 2, 4]) / 7  # with γ = 1, 4/6 and 4/7
    assert opt.certificate().ess == pytest.approx(1 / (p**2).sum())
    with opt.averaged():
        np.testing.assert_allclose(flat(params_of(opt)), p @ np.array([xs[2], xs[6], xs[10]]), rtol=1e-12)


BAD = (ValueError, TypeError)
AVERAGE = r"average must be a number in \(0, 1\), a window such as o2nc.Polynomial\(12\), or None"
NO_AVERAGES = (0.0, 1.0, -1, 2, math.nan, "0.9", [0.9], o2nc.Polynomial)
test_what_is_no_window = refusals(
    *((partial(o2nc.Polynomial, n), BAD, "power must be .*a finite number >= 0") for n in (-1, math.nan, INF, "3")),
    *((partial(o2nc.Discount, n), BAD, r"beta must be .*\(0, 1\)") for n in (0.0, 1.0, math.nan, "0.9")),
    *((partial(o2nc.Polynomial, 3, start=n), BAD, "start must be an integer >= 0") for n in (-1, 1.5)),
    *((partial(o2nc.Discount, 0.9, every=n), BAD, "every must be an integer >= 1") for n in (0, True, 2.0)),
    *(
        (partial(OURS[name], parameters(), average=average), BAD, AVERAGE)
        for name, average in product(("SGD", "ScaledSGDM", "OGD", "extend(NAdam)"), NO_AVERAGES)
    ),
)


# --- averages of averages


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
    (lambda: o2nc.posthoc([GOOD, (GOOD[0], 5, {"w": ONE[0]})], 2), ValueError, "same keys"),
    (lambda: o2nc.posthoc([(GOOD[0], 5, ONE), (GOOD[0], 6, {"w": ONE[0]})], 2), ValueError, "same keys"),
)
