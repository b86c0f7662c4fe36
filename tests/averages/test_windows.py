"""Windows: which iterates count and how much, by their definition, and where there is nothing to ask for yet."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

import o2nc
import twin
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


@dataclass(frozen=True)
class Low(o2nc.Window):
    start: int = 0
    every: int = 1

    def gamma(self, n):
        return 0.1


def test_the_first_iterate_that_counts_is_the_average():
    """Whatever its γ is: what was before it, also before restart_averages(), is not a part."""
    opt = o2nc.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, average=Low(start=5), certificate=True)
    (p,) = params_of(opt)
    for t in range(1, 12):
        step(opt, 1.0)
        if t == 7:
            opt.restart_averages()
        if t in (6, 8):
            with opt.averaged():
                assert p.item() == 1 - t
    assert opt.certificate().ess == Low().ess(4)


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
    p = np.array([1 / 15, 4 / 15, 10 / 15])  # with γ = 1, 4/5 and 4/6
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
