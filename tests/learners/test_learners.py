"""Every learner against the naive form of its definition, with the literal β^{−t} losses in 60-digit arithmetic.

The library plays discounted updates and never forms β^{−t}. The twins below do form it: they are written from the
definitions (argmin, leader, projected step, wealth) on g̃_t = β^{−t}g_t and μ_t = β^{−t}μ. In call t of ``step`` the
group's lr is h_{t+1}, which Δ_{t+1} is played with; h_t is the lr of the call before, and h_1 := h_2.
"""

import math
import re
from dataclasses import FrozenInstanceError, fields, replace
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from o2nc.learners import FTRL, OGD, AdaGrad, BallAdaGrad, BallOGD, CoinBetting, Learner, ScaleFree
from refusals import refusals
from registry import LEARNERS
from twin import play

mp = mpmath.mp.clone()
mp.dps = 60

DIM = 5

# ---- naive twins: each yields Δ_2, Δ_3, … as object arrays of mpf; lrs[t − 1] is the lr in call t


def norm(x):
    return mp.sqrt(x @ x)


def project(x, radius):
    return x if norm(x) <= radius else x * (radius / norm(x))


def composite_argmin(delta, g, eta, eta_next, mu_next, kappa):
    """argmin_Δ ⟨g̃, Δ⟩ + |Δ − Δ_t|²/(2η_t) + (μ_{t+1}/2)|Δ|² + (κ/2)(1/η_{t+1} − 1/η_t)|Δ|², Theorem OGD for κ = 2.

    The last term is φ_t, which must be convex: the κ = 2 learner drops it when η grows.
    """
    phi = max(1 / eta_next - 1 / eta, mp.mpf(0) if kappa == 2 else -mp.inf)
    return (delta / eta - g) / (1 / eta + mu_next + kappa * phi)


def naive_ogd(learner, gs, lrs, beta):
    delta = 0 * gs[0]
    h = [lrs[0], *lrs]  # h[t − 1] = h_t
    for t, g in enumerate(gs, 1):
        eta, eta_next = beta**t * h[t - 1], beta ** (t + 1) * h[t]
        mu_next = beta ** -(t + 1) * learner.decay
        delta = composite_argmin(delta, beta**-t * g, eta, eta_next, mu_next, learner.kappa)
        yield delta


def naive_ball_ogd(learner, gs, lrs, beta):
    delta = 0 * gs[0]
    for t, g in enumerate(gs, 1):
        eta, mu = beta**t * lrs[t - 1], beta**-t * learner.decay
        delta = project(delta - eta * (beta**-t * g + mu * delta), learner.radius)
        yield delta


def naive_ftrl(learner, gs, lrs, beta):
    """argmin over the ball of Σ_{s<=t}⟨g̃_s, Δ⟩ + Σ_{s<=t+1}(μ_s/2)‖Δ‖² + ‖Δ‖²/(2η_{t+1})."""
    gradient_sum, mu_sum = 0 * gs[0], beta**-1 * learner.decay
    for t, g in enumerate(gs, 1):
        gradient_sum = gradient_sum + beta**-t * g
        mu_sum += beta ** -(t + 1) * learner.decay
        eta_next = beta ** (t + 1) * lrs[t - 1]
        yield project(-gradient_sum / (1 / eta_next + mu_sum), learner.radius)


def naive_adagrad(learner, gs, lrs, beta):
    """The argmin of OGD coordinate by coordinate, η_{t+1} = D/sqrt(Σ_{s<=t}‖g̃_s‖²), η_1 = η_2; Δ = 0 before any g."""
    delta, square_sum = 0 * gs[0], 0 * gs[0]
    scale = [lrs[0], *lrs]
    for t, g in enumerate(gs, 1):
        loss = beta**-t * g
        before, square_sum = square_sum, square_sum + (loss**2 if learner.diagonal else np.full(DIM, loss @ loss))
        for i in np.flatnonzero(square_sum):
            eta_next = scale[t] / mp.sqrt(square_sum[i])
            eta = scale[t - 1] / mp.sqrt(before[i]) if before[i] else eta_next
            mu_next = beta ** -(t + 1) * learner.decay
            delta[i] = composite_argmin(delta[i], loss[i], eta, eta_next, mu_next, learner.kappa)
        yield delta.copy()


def naive_ball_adagrad(learner, gs, lrs, beta):
    """Π_D(Δ_t − η_t g̃_t) with η_t = √2·D/sqrt(Σ_{s<=t}‖g̃_s‖²), D being the lr of the call."""
    delta, square_sum = 0 * gs[0], mp.mpf(0)
    for t, g in enumerate(gs, 1):
        loss, scale = beta**-t * g, mp.mpf(lrs[t - 1])
        square_sum += loss @ loss
        if square_sum:
            delta = project(delta - mp.sqrt(2) * scale / mp.sqrt(square_sum) * loss, scale)
        yield delta


def naive_scale_free(learner, gs, lrs, beta):
    """argmin of Σ_{s<=t}⟨g̃_s, Δ⟩ + ‖Δ‖² sqrt(Σ_{s<=t}‖g̃_s‖²)/(2D), or by coordinate; then the ball of radius R."""
    gradient_sum, square_sum = 0 * gs[0], 0 * gs[0]
    for t, g in enumerate(gs, 1):
        loss = beta**-t * g
        gradient_sum = gradient_sum + loss
        square_sum = square_sum + (loss**2 if learner.diagonal else np.full(DIM, loss @ loss))
        pairs = zip(gradient_sum, square_sum, strict=True)
        delta = np.array([-lrs[t - 1] * s / mp.sqrt(q) if q else mp.mpf(0) for s, q in pairs])
        yield project(delta, learner.radius)


def naive_coin_betting(learner, gs, lrs, beta):
    """W_t = W_{t−1} + ε(β^{−t} − β^{1−t}) − ⟨g̃_t, Δ_t⟩; Δ_{t+1} = −W_t Σg̃_s/(G_{t+1}(G_{t+1} + Σ‖g̃_s‖))."""
    wealth, delta, gradient_sum, norm_sum = mp.mpf(learner.wealth), 0 * gs[0], 0 * gs[0], mp.mpf(0)
    for t, g in enumerate(gs, 1):
        loss = beta**-t * g
        wealth += learner.wealth * (beta**-t - beta ** (1 - t)) - loss @ delta
        gradient_sum = gradient_sum + loss
        norm_sum += norm(loss)
        bound = beta ** -(t + 1) * learner.lipschitz
        delta = -lrs[t - 1] * wealth * gradient_sum / (bound * (bound + norm_sum))
        yield delta


NAIVE = {
    OGD: naive_ogd,
    BallOGD: naive_ball_ogd,
    FTRL: naive_ftrl,
    AdaGrad: naive_adagrad,
    BallAdaGrad: naive_ball_adagrad,
    ScaleFree: naive_scale_free,
    CoinBetting: naive_coin_betting,
}


def gradients(n, seed=0):
    """Return n gradients of norm at most 1: zeros, drift, heavy tails, a coordinate that comes in late."""
    rng = np.random.default_rng(seed)
    g = (rng.normal(size=(n, DIM)) + 0.3) * np.exp(rng.normal(size=(n, 1)))
    g[:20, 3] = 0.0
    g[:3] = 0.0
    g[n // 2 : n // 2 + 5] = 0.0
    return g / np.linalg.norm(g, axis=1).max()


def wave(lr, n):
    """Return an lr for every call that changes at every step, and grows by less than 1/0.99 in one."""
    return [lr * (1 + 0.5 * math.sin(t / 100)) for t in range(1, n + 1)]


def jumps(lr, n):
    """Return an lr for every call that also grows by far more than 1/β."""
    return (lr * 10 ** np.random.default_rng(1).uniform(-0.5, 0.5, size=n)).tolist()


def relative_error(got, want):
    """Return ‖got − want‖/‖want‖ in 60 digits."""
    return float(norm(exactly(got) - want) / (norm(want) or 1))


def exactly(x):
    return np.array([mp.mpf(float(v)) for v in x])


@pytest.mark.some(30)
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_discounted_form_is_the_naive_form(learner, scheduled, beta):
    """NOTES §3: "all compared with the naive β^{−t} form in 60-digit arithmetic", and §1.5: "Schedule η_t = β^t h_t:
    Δ_{t+1} = (Δ_t − h_t g_t)/(1 + h_t μ/β + κ(h_t/(β h_{t+1}) − 1))".
    """
    n = 120 if scheduled else 300
    smooth = isinstance(learner, CoinBetting) or (getattr(learner, "kappa", 1) == 2 and isinstance(learner, AdaGrad))
    lrs = (wave if smooth else jumps)(learner.lr, n) if scheduled else [learner.lr] * n
    gs = gradients(n)
    naive = NAIVE[type(learner)](learner, [exactly(g) for g in gs], lrs, mp.mpf(beta))
    _, played = play(learner, gs, beta, lrs)
    assert max(relative_error(got, want) for got, want in zip(played[1:], naive, strict=True)) <= 1e-12


# ---- the instances and identities that the module docstrings name


def test_ball_adagrad_with_scales_of_their_own():
    """ball_adagrad.py: "the ball is Σ_p ‖Δ_p‖²/D_p² <= 1, and the rule is the same in y_p = Δ_p/D_p": with the
    gradients D_p·g_p of y, all of lr 1.
    """
    lrs, gs, shapes = [0.1, 0.0, 0.03], gradients(200), [(2,), (1,), (2,)]
    scale = np.repeat(lrs, [2, 1, 2])
    _, deltas = play(BallAdaGrad(lr=1.0), gs, 0.9, [lrs] * 200, shapes=shapes)
    _, ys = play(BallAdaGrad(lr=1.0), scale * gs, 0.9, [1.0] * 200, shapes=shapes)
    np.testing.assert_allclose(deltas, scale * ys, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("learner", [BallAdaGrad(0.1), ScaleFree(0.1), ScaleFree(0.1, diagonal=False)], ids=str)
def test_the_scale_of_the_gradients_is_not_seen(learner, factor):
    """scale_free.py: "M_t/sqrt(v_t) does not change when all gradients are multiplied by a constant"."""
    gs = gradients(100)
    (_, a), (_, b) = (play(learner, g, 0.9) for g in (gs, factor * gs))
    np.testing.assert_array_equal(a, b)


def test_coin_betting_shortens_a_long_gradient():
    """coin_betting.py: "A longer gradient is shortened to it"."""
    gs, learner = gradients(100), CoinBetting(lipschitz=0.1)
    norms = np.linalg.norm(gs, axis=1, keepdims=True)
    assert (norms > learner.lipschitz).any()
    short = gs * np.minimum(1.0, learner.lipschitz / np.maximum(norms, 1e-300))
    (_, a), (_, b) = (play(learner, g, 0.9) for g in (gs, short))
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)


@pytest.mark.some(3)
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_float32_follows_float64_past_the_overflow_of_the_naive_form(learner):
    """DESIGN: "Never form β^{−n}. float32 overflows at n = 842 for β = 0.9"."""
    gs = gradients(2000)
    (_, single), (_, double) = (play(learner, gs, 0.9, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert np.linalg.norm(single - double, axis=1).max() <= 1e-4 * np.linalg.norm(double, axis=1).max()


@pytest.mark.some(2)
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_float32_stays_finite_over_long_silences(learner):
    """The zeros in every cycle last until β^{2n} has underflown; what follows must not divide by it."""
    cycle = gradients(2000)
    cycle[1000:1600] = 0.0
    gs = np.tile(cycle, (5, 1))
    _, deltas = play(learner, gs, 0.9, dtype=torch.float32)
    assert np.linalg.norm(deltas, axis=1).max() < 100  # and so finite
    assert np.linalg.norm(deltas[-1]) > 1e-5


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_coin_betting_stays_finite_under_a_steady_gradient(dtype):
    """The wealth grows exponentially there: uncapped, float32 overflows at step 169. Turning round brings it back."""
    gs = np.repeat([1.0, -1.0], [2000, 3000])[:, None]
    _, deltas = play(CoinBetting(lipschitz=2.0), gs, 0.9, [1.0] * 5000, shapes=[(1,)], dtype=dtype)
    assert np.isfinite(deltas).all()
    assert deltas[-1] > 0


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_lr_zero_at_the_start_and_in_the_middle(learner):
    """ogd.py: "an lr of 0 plays Δ = 0"; warm-up begins with it, a cosine schedule with restarts comes back from it.

    A ball learner steps from Δ_t: without a step it stays there.
    """
    lrs = [0.0] * 5 + [learner.lr * (1 + math.cos(math.pi * t / 20)) / 2 for t in range(95)]
    lrs[25] = lrs[65] = 0.0
    _, deltas = play(learner, gradients(100), 0.9, lrs)
    assert not deltas[:6].any()
    for t in (25, 65):
        np.testing.assert_allclose(deltas[t + 1], deltas[t] if isinstance(learner, BallOGD) else 0.0, rtol=1e-15)
    assert np.isfinite(deltas).all()
    assert min(np.linalg.norm(deltas[11]), np.linalg.norm(deltas[-1])) > 1e-5


@pytest.mark.parametrize("learner", [found for found in LEARNERS if getattr(found, "elementwise", False)], ids=str)
def test_tensors_with_their_own_lr_are_separate_runs(learner):
    """A learner by coordinate couples nothing, and every tensor has its own lr."""
    gs = gradients(100)
    _, together = play(learner, gs, 0.9, [[0.1, 0.03]] * 100, shapes=[(2,), (3,)])
    _, first = play(learner, gs[:, :2], 0.9, [0.1] * 100, shapes=[(2,)])
    _, second = play(learner, gs[:, 2:], 0.9, [0.03] * 100, shapes=[(3,)])
    np.testing.assert_allclose(together, np.hstack([first, second]), rtol=1e-12, atol=1e-15)


@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None, derandomize=True)
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_norms_are_joint(learner, shapes):
    """DESIGN: "Norms and balls are joint over all tensors": how R^d is cut into tensors does not matter."""
    dim = sum(math.prod(shape) for shape in shapes)
    gs = np.random.default_rng(3).normal(size=(6, dim))
    (_, split), (_, whole) = (play(learner, gs, 0.9, shapes=cut) for cut in (shapes, [(dim,)]))
    np.testing.assert_allclose(split, whole, rtol=1e-13, atol=1e-16)


def bad():
    """Yield every bad value of every argument: the call, its error and its words."""
    valid = {cls: {"lr": 0.1} for cls in (OGD, FTRL, AdaGrad, BallAdaGrad, ScaleFree)}
    valid |= {BallOGD: {"lr": 0.1, "radius": 1.0}, CoinBetting: {}}
    not_numbers = [("0.1", TypeError), (True, TypeError), (None, TypeError), ([0.1], TypeError)]
    not_finite = [(-0.1, ValueError), (-1, ValueError), (math.nan, ValueError), (-math.inf, ValueError)]
    bad = {
        "lr": [*not_numbers, *not_finite, (math.inf, ValueError)],
        "decay": [*not_numbers, *not_finite, (math.inf, ValueError)],
        "radius": [*not_numbers, *not_finite, (0.0, ValueError), (0, ValueError)],
        "beta2": [*not_numbers[:2], ([0.9], TypeError), *not_finite, (0.0, ValueError), (1.0, ValueError)],
        "wealth": [*not_numbers, *not_finite, (0.0, ValueError), (math.inf, ValueError)],
        "lipschitz": [*not_numbers, *not_finite, (0.0, ValueError), (math.inf, ValueError)],
        "kappa": [(3, ValueError), (0, ValueError), (1.5, ValueError), (True, ValueError), ("1", ValueError)],
        "diagonal": [("yes", TypeError), (1, TypeError), (None, TypeError)],
    }
    for cls in valid:
        for field in fields(cls):
            for value, error in bad[field.name] if field.init else ():
                words = rf"^{field.name} must be .*got {re.escape(repr(value))}"
                yield partial(cls, **valid[cls] | {field.name: value}), error, words


# DESIGN: "ValueError/TypeError at construction that names the argument, its value and what is allowed"
test_bad_hyperparameters_are_refused = refusals(*bad())


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_learners_are_frozen_values(learner):
    """STYLE: "Learners are frozen dataclasses that satisfy a protocol"."""
    assert isinstance(learner, Learner)
    assert hash(learner) == hash(replace(learner))
    for field in vars(learner):
        with pytest.raises(FrozenInstanceError):
            setattr(learner, field, 1.0)


@pytest.mark.parametrize("kappa", [1, 2])
def test_the_first_update_of_ogd_has_one_learning_rate(kappa):
    """It takes the lr of now for that of the step before: Δ_2 = −h g_1 / (1 + hμ/β + κ(1/β − 1))."""
    delta, g = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    learner = OGD(lr=0.05, decay=0.3, kappa=kappa)
    learner.update([delta], [g], [learner.init(delta)], [0.05], 0.9)
    torch.testing.assert_close(delta, -0.05 * g / (1 + 0.05 * 0.3 / 0.9 + kappa * (1 / 0.9 - 1)))
