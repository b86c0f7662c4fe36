"""Hyperparameters and bounds are those of the theorems, printed and sharper; the energy theorem is in test_energy."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from o2nc import theory
from twin import energy_bound

UNIT = {"c": 1.0, "gap": 1.0, "lipschitz": 1.0, "noise": 1.0}
POSITIVE = st.floats(1e-3, 1e3)
KNOWN = st.fixed_dictionaries({"c": POSITIVE, "gap": POSITIVE, "lipschitz": POSITIVE, "noise": st.floats(0, 1e3)})
STEPS = st.integers(1, 10**9)


# ---- the paper's constants, from its text


@given(STEPS, KNOWN)
@settings(deadline=None)
def test_printed_plan(n, known):
    """Theorem SGDM: "μ = 24F*c/((G+σ)α^{5/2}N), η = 2F*/((G+σ)²N),
    α = max{N^{−2/3}, (F*)^{4/7}c^{2/7}/((G+σ)^{6/7}N^{4/7})}"; and the bound by Theorems O2NC and OGD.
    """
    c, gap, g, s = (known[name] for name in ("c", "gap", "lipschitz", "noise"))
    a = g + s
    alpha = max(n ** (-2 / 3), gap ** (4 / 7) * c ** (2 / 7) / (a ** (6 / 7) * n ** (4 / 7)))
    if alpha > 0.5:
        with pytest.raises(ValueError, match="alpha <= 1/2"):
            theory.plan(n, **known, constants="paper")
        return
    p = theory.plan(n, **known, constants="paper")
    assert p.alpha == pytest.approx(alpha)
    assert p.decay == pytest.approx(24 * gap * c / (a * alpha**2.5 * n))
    assert p.lr == pytest.approx(2 * gap / (a**2 * n))
    assert p.lr * p.decay <= 48 * alpha * (1 + 1e-12)  # the paper says "ημ ≈ α"
    assert p.momentum == pytest.approx(p.beta / (1 + p.lr * p.decay))  # "β̃ = β/(1 + ημ)", "η̃ = βη/(ημ + α)"
    assert p.effective_lr == pytest.approx(p.beta * p.lr / (p.lr * p.decay + alpha))
    d = gap / (a * math.sqrt(alpha) * n)
    spread = 12 * c * d**2 / alpha**2
    regret = (1 + 2 * alpha * n) / n * (2 * a / math.sqrt(alpha) + spread)
    expected = gap / (d * n) + (2 * g + s) / (alpha * n) + s * math.sqrt(alpha) + spread + regret
    assert p.bound == pytest.approx(expected) == sum(p.terms.values())
    assert p.bound <= 36.7 * a * math.sqrt(alpha)
    assert theory.plan(n, **known).bound <= p.bound  # and the energy theorem's is below it


def test_smallest_n_that_is_named_is_enough():
    known = {"c": 50.0, "gap": 3.0, "lipschitz": 0.5, "noise": 0.1, "constants": "paper"}
    with pytest.raises(ValueError, match=r"steps >= (\d+) is enough") as refusal:
        theory.plan(10, **known)
    n = int(str(refusal.value).split("steps >= ")[1].split()[0])
    assert theory.plan(n, **known).alpha <= 0.5
    with pytest.raises(ValueError):
        theory.plan(n - 1, **known)


@given(
    st.integers(2, 10**7),  # one step has no spread, so that a longer lr is always better
    KNOWN,
    st.floats(-6, math.log10(0.5)),
    st.floats(-6, 6),
)
@settings(deadline=None)
def test_no_other_hyperparameters_have_a_smaller_bound(n, known, log_alpha, log_ratio):
    best, momentum = theory.plan(n, **known), 1 - 10**log_alpha
    lr = best.lr * best.beta * 10**log_ratio
    other = theory.guarantee(lr=lr, momentum=momentum, steps=n, output="geometric", **known)
    assert best.bound <= other.bound * (1 + 1e-9)


@given(st.integers(1, 10**6), KNOWN, st.sampled_from(theory.CONSTANTS))
@settings(deadline=None)
def test_more_steps_promise_more(n, known, constants):
    try:
        now, later = (theory.plan(m, **known, constants=constants).bound for m in (n, n + 1 + n // 10))
    except ValueError:
        return
    assert later <= now * (1 + 1e-12)


@pytest.mark.parametrize("regime", [{"c": 1.0}, {"smoothness": 1.0}, {"second_order": 1.0}])
@pytest.mark.parametrize("constants", theory.CONSTANTS)
def test_no_step_is_needed_for_what_holds_everywhere(constants, regime):
    """‖∇F(x)‖_c <= ‖∇F(x)‖ <= G at every x, with y = x."""
    known = {"gap": 1.0, "lipschitz": 1.0, "noise": 1.0, "constants": constants, **regime}
    assert theory.steps_for(1.0, **known) == 0
    n = theory.steps_for(0.99, **known)
    assert n > 0
    assert not theory.plan(n, **known).vacuous
    assert theory.plan(max(n // 20, 10), **known).vacuous


def test_printed_regimes():
    """Lemma criterion-reduction: "c = H²ε^{−1}", with ε the bound itself, or "c = ρ/2"; and 2ε as printed."""
    known = {"gap": 2.0, "lipschitz": 1.0, "noise": 0.5, "constants": "paper"}
    smooth, second = theory.plan(10**6, **known, smoothness=3.0), theory.plan(10**6, **known, second_order=3.0)
    assert (smooth.c, second.c) == (pytest.approx(9 / smooth.bound), 1.5)
    assert [p.gradient_bound / p.bound for p in (smooth, second)] == pytest.approx([2.0, 2.0])


def test_best_c_of_the_smooth_regime():
    """‖∇F‖ <= ‖∇F‖_c + H²/(4c) for every c: the plan's c is the best of them, and c = H²/B is not."""
    known = {"gap": 2.0, "lipschitz": 1.0, "noise": 0.5}
    p = theory.plan(10**6, **known, smoothness=3.0)
    assert p.gradient_bound == pytest.approx(p.bound + 9 / (4 * p.c))
    assert theory.plan(10**6, p.c, **known).bound == pytest.approx(p.bound, rel=1e-9)
    others = [theory.plan(10**6, p.c * f, **known).bound + 9 / (4 * p.c * f) for f in (0.5, 0.99, 1.01, 2.0)]
    assert all(p.gradient_bound <= other for other in others)
    assert 1.5 < p.c / (9 / p.bound) < 2.5
    second = theory.plan(10**6, **known, second_order=3.0)
    assert (second.c, second.gradient_bound) == (1.5, second.bound)
    assert theory.plan(10**6, 1.5, **known).gradient_bound is None
    n = theory.steps_for(0.3, **known, smoothness=3.0)
    before, there = (theory.plan(k, **known, smoothness=3.0).gradient_bound for k in (n - 1, n))
    assert there <= 0.3 < before


@given(st.floats(0.01, 0.9999))
@settings(deadline=None)
def test_spread_constant_is_at_most_one(beta):
    """C = 2β(1 + βq)/(1 + β)² = β((β + q)/(1 + β))², q = √(2 − β²), and 1 − C = (1 − β²)²(4β² + 1)/(…) >= 0."""
    for moment in (2.0, 1.0, 1.02, 3.0):
        q = math.sqrt(beta**2 + (1 - beta**2) * moment)
        c = theory.spread_constant(beta, second_moment=moment)
        assert c == pytest.approx(beta * ((beta + q) / (1 + beta)) ** 2, rel=1e-12)
    assert theory.spread_constant(beta) <= 1


def test_lower_bound():
    assert theory.lower_bound(0.1, 4.0, gap=2.0, lipschitz=3.0) == pytest.approx(2 * 9 * 2 * 0.1**-3.5)


def test_plan_says_what_it_is():
    text = str(theory.plan(1000, **UNIT))
    assert text.startswith("1000 steps, c = 1, sharp: beta=0.9")
    assert "E‖∇F(x̄)‖_c <= " in text
    assert "no less than G" not in text
    assert "no less than G" in str(theory.plan(10, **UNIT))


@pytest.mark.parametrize("c", [1e-12, 1e-8, 1e-4, 1.0])
@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_plan_is_the_best_for_tiny_prices_of_spread(c, noise):
    """α was at least 0.1/N, which cost up to 0.6 % where c is tiny."""
    known = {"c": c, "gap": 1.0, "lipschitz": 1.0, "noise": noise}
    starts = [(math.log(a), math.log(eta)) for a in (1e-9, 1e-6, 1e-3, 0.1) for eta in (1e-8, 1e-4, 1.0)]
    options = {"xatol": 1e-9, "fatol": 1e-15, "maxiter": 4000}

    def bound(x):  # of the energy theorem, by α and η
        return energy_bound(200, 1 / (1 + math.exp(x[0])), math.exp(x[1]), **known)

    best = min(optimize.minimize(bound, start, method="Nelder-Mead", options=options).fun for start in starts)
    assert theory.plan(200, **known).bound <= best * (1 + 1e-7)


def test_constants_far_from_one_are_a_change_of_units():
    """x in other units and F in other units: G by f/x, F* by f, c by f/x³, lr by x²/f."""
    at_one = theory.plan(1000, c=1.0, gap=1.0, lipschitz=1.0, noise=0.5)
    for f, x in ((1e30, 1.0), (1e-30, 1e-20), (1e40, 1e30)):
        p = theory.plan(1000, c=f / x**3, gap=f, lipschitz=f / x, noise=0.5 * f / x)
        assert p.bound == pytest.approx(at_one.bound * f / x, rel=1e-9)
        assert p.lr == pytest.approx(at_one.lr * x**2 / f, rel=1e-5)
