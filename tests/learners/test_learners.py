"""Every learner against the naive form of its definition, with the literal β^{−t} losses in 60-digit arithmetic.

The library plays discounted updates and never forms β^{−t}. The twins below do form it: they are written from the
definitions (argmin, leader, projected step, wealth) on g̃_t = β^{−t}g_t and μ_t = β^{−t}μ. In call t of ``step`` the
group's lr is h_{t+1}, which Δ_{t+1} is played with; h_t is the lr of the call before, and h_1 := h_2.
"""

import math
from dataclasses import FrozenInstanceError, dataclass, fields, replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import o2nc
from o2nc.learners import FTRL, OGD, AdaGrad, BallAdaGrad, BallOGD, CoinBetting, Learner, ScaleFree
from problem import delta_of
from registry import LEARNERS

mp = mpmath.mp.clone()
mp.dps = 60

SHAPES = [(2,), (), (1, 2)]
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
    phi = 1 / eta_next - 1 / eta
    if kappa == 2:
        phi = max(phi, mp.mpf(0))
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


# ---- the same run in the library


def gradients(n, seed=0):
    """Return n gradients of norm at most 1: drift, heavy tails, zeros, and a coordinate that comes in late."""
    rng = np.random.default_rng(seed)
    g = (rng.normal(size=(n, DIM)) + 0.3) * np.exp(rng.normal(size=(n, 1)))
    g[:20, 3] = 0.0
    g[n // 2 : n // 2 + 5] = 0.0
    return g / np.linalg.norm(g, axis=1).max()


def schedule(name, lr, n):
    """Return the lr of every call."""
    if name == "wave":  # changes at every step, and grows by less than 1/0.99 in one
        return [lr * (1 + 0.5 * math.sin(t / 100)) for t in range(1, n + 1)]
    rng = np.random.default_rng(1)  # "jumps": also far above growth by 1/β
    return (lr * 10 ** rng.uniform(-0.5, 0.5, size=n)).tolist()


def parameters(dtype=torch.float64, shapes=SHAPES):
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def set_gradients(params, g):
    parts = torch.as_tensor(g).split([p.numel() for p in params])
    for p, part in zip(params, parts, strict=True):
        p.grad = part.reshape(p.shape).to(p.dtype).clone()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def play(learner, gs, beta, lrs=None, *, dtype=torch.float64, shapes=SHAPES):
    """Yield Δ_2, Δ_3, … of the learner inside the optimizer, without scaling, all tensors in one vector."""
    params = parameters(dtype, shapes)
    opt = o2nc.ExponentiatedO2NC(params, learner, beta=beta, scaling=None)
    for t, g in enumerate(gs):
        if lrs is not None:
            opt.param_groups[0]["lr"] = lrs[t]
        set_gradients(params, g)
        x = flat(params)
        opt.step()
        delta = flat([delta_of(opt, p) for p in params])
        assert torch.equal(flat(params), x + delta)
        yield delta


def relative_error(got, want):
    """Return ‖got − want‖/‖want‖ in 60 digits."""
    difference = np.array([mp.mpf(v) for v in got.tolist()]) - want
    return float(norm(difference) / norm(want)) if norm(want) else float(norm(difference))


def worst_relative_error(learner, beta, n, lrs):
    gs = gradients(n)
    exact = [np.array([mp.mpf(v) for v in g.tolist()]) for g in gs]
    naive = NAIVE[type(learner)](learner, exact, lrs, mp.mpf(beta))
    played = play(learner, gs, beta, lrs)
    return max(relative_error(got, want) for got, want in zip(played, naive, strict=True))


def name(value):
    return repr(value) if isinstance(value, Learner) else str(value)


@pytest.mark.some(30)
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_discounted_form_is_the_naive_form(learner, scheduled, beta):
    """NOTES §3: "all compared with the naive β^{−t} form in 60-digit arithmetic", and §1.5: "Schedule η_t = β^t h_t:
    Δ_{t+1} = (Δ_t − h_t g_t)/(1 + h_t μ/β + κ(h_t/(β h_{t+1}) − 1))".
    """
    n = 120 if scheduled else 300
    smooth = isinstance(learner, CoinBetting) or (getattr(learner, "kappa", 1) == 2 and isinstance(learner, AdaGrad))
    lrs = schedule("wave" if smooth else "jumps", learner.lr, n) if scheduled else [learner.lr] * n
    assert worst_relative_error(learner, beta, n, lrs) <= 1e-12


@pytest.mark.parametrize(
    "learner",
    [
        BallOGD(lr=0.5, radius=0.2, decay=0.7),
        FTRL(lr=0.5, decay=0.05, radius=0.2),
        BallAdaGrad(lr=0.1),
        ScaleFree(lr=0.1, radius=0.2),
        ScaleFree(lr=0.1, diagonal=False, radius=0.1),
    ],
    ids=name,
)
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99])
def test_the_ball_is_met_and_never_left(learner, beta):
    norms = torch.stack([delta.norm() for delta in play(learner, gradients(300), beta)])
    radius = learner.lr if isinstance(learner, BallAdaGrad) else learner.radius
    assert norms.max() <= radius * (1 + 1e-15)
    on_sphere = norms > radius * (1 - 1e-12)
    assert on_sphere.any()
    assert not on_sphere.all()


# ---- the instances and identities that the module docstrings name


def test_ball_adagrad_with_scales_of_their_own():
    """ball_adagrad.py: "the ball is Σ_p ‖Δ_p‖²/D_p² <= 1, and the rule is the same in y_p = Δ_p/D_p": with the
    gradients D_p·g_p of y, one group of lr 1.
    """
    lrs, gs = (0.1, 0.0, 0.03), torch.as_tensor(gradients(200))
    params = parameters(shapes=[(2,), (1,), (2,)])
    opt = o2nc.ExponentiatedO2NC(
        [{"params": [p], "lr": lr} for p, lr in zip(params, lrs, strict=True)],
        BallAdaGrad(lr=1.0),
        beta=0.9,
        scaling=None,
    )
    scale = torch.tensor([lrs[0]] * 2 + [lrs[1]] + [lrs[2]] * 2, dtype=torch.float64)
    for g, y in zip(gs, play(BallAdaGrad(lr=1.0), (scale * gs).numpy(), 0.9), strict=True):
        set_gradients(params, g)
        opt.step()
        delta = flat([opt.state[p]["o2nc"]["delta"] for p in params])
        torch.testing.assert_close(delta, scale * y, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("factor", [2.0**-40, 2.0**40])
@pytest.mark.parametrize("learner", [BallAdaGrad(0.1), ScaleFree(0.1), ScaleFree(0.1, diagonal=False)], ids=name)
def test_the_scale_of_the_gradients_is_not_seen(learner, factor):
    """scale_free.py: "M_t/sqrt(v_t) does not change when all gradients are multiplied by a constant"."""
    gs = gradients(100)
    for a, b in zip(play(learner, gs, 0.9), play(learner, factor * gs, 0.9), strict=True):
        assert torch.equal(a, b)


def test_coin_betting_shortens_a_long_gradient():
    """coin_betting.py: "A longer gradient is shortened to it"."""
    gs, bound = gradients(100), 0.1
    norms = np.linalg.norm(gs, axis=1, keepdims=True)
    short = gs * np.minimum(1.0, bound / np.maximum(norms, 1e-300))
    assert (norms > bound).any()
    learner = CoinBetting(lipschitz=bound)
    for a, b in zip(play(learner, gs, 0.9), play(learner, short, 0.9), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)


# ---- robustness: long runs, zeros, warm-up, groups, tensors of any shape


def direct(learner, gs, beta, dtype):
    """Yield Δ_2, Δ_3, … from ``learner.update`` alone, which is several times faster than ``step``."""
    deltas = [torch.zeros(DIM, dtype=dtype)]
    states = [learner.init(deltas[0])]
    for g in gs:
        learner.update(deltas, [g], states, [learner.lr], beta)
        yield deltas[0]


@pytest.mark.some(3)
@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_float32_follows_float64_past_the_overflow_of_the_naive_form(learner):
    """DESIGN: "Never form β^{−n}. float32 overflows at n = 842 for β = 0.9"."""
    gs = torch.as_tensor(gradients(2000))
    single = direct(learner, gs.float().unbind(), 0.9, torch.float32)
    double = direct(learner, gs.unbind(), 0.9, torch.float64)
    scale = max(delta.norm() for delta in direct(learner, gs.unbind(), 0.9, torch.float64))
    for a, b in zip(single, double, strict=True):
        assert (a - b).norm() <= 1e-4 * scale


@pytest.mark.some(2)
@pytest.mark.parametrize("learner", LEARNERS, ids=name)
@pytest.mark.parametrize("cycles", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_float32_stays_finite_for_100_000_steps(learner, cycles):
    """The zeros in every cycle last until β^{2n} has underflown; what follows must not divide by it."""
    cycle = torch.as_tensor(gradients(2000), dtype=torch.float32)
    cycle[1000:1600] = 0.0
    for t, delta in enumerate(direct(learner, cycle.unbind() * cycles, 0.9, torch.float32), 1):
        if t % 100 == 0:
            assert delta.isfinite().all()
            assert delta.norm() < 100
    assert delta.norm() > 1e-3


@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_zero_gradients_before_the_first_change_nothing_but_the_clock(learner):
    """All gradients zero: Δ stays 0, and the first that is not zero finds a learner that can still move."""
    gs = np.concatenate([np.zeros((50, DIM)), gradients(50)])
    *idle, last = play(learner, gs, 0.9, dtype=torch.float32)
    assert all(torch.equal(delta, torch.zeros(DIM)) for delta in idle[:50])
    assert last.isfinite().all()
    assert last.norm() > 1e-4


@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_lr_zero_at_the_start_and_in_the_middle(learner):
    """ogd.py: "an lr of 0 plays Δ = 0"; warm-up begins with it, a cosine schedule with restarts comes back from it.

    A ball learner steps from Δ_t: without a step it stays there.
    """
    lrs = [0.0] * 5 + [learner.lr * (1 + math.cos(math.pi * t / 20)) / 2 for t in range(95)]
    lrs[25] = lrs[65] = 0.0
    deltas, nothing = list(play(learner, gradients(100), 0.9, lrs)), torch.zeros(DIM, dtype=torch.float64)
    assert all(torch.equal(delta, nothing) for delta in deltas[:5])
    for t in (25, 65):
        at_rest = deltas[t - 1] if isinstance(learner, BallOGD) else nothing
        torch.testing.assert_close(deltas[t], at_rest, rtol=1e-15, atol=0)
    assert all(delta.isfinite().all() for delta in deltas)
    assert min(deltas[10].norm(), deltas[-1].norm()) > 1e-5


@pytest.mark.parametrize("learner", [LEARNERS[i] for i in (0, 1, 4, 8, 10)], ids=name)
def test_groups_with_their_own_lr_are_separate_runs(learner):
    """An elementwise learner couples nothing: two groups with different lr equal two optimizers."""
    gs, lrs = torch.as_tensor(gradients(100)), (0.1, 0.03)

    def run(groups, which):
        params = [group["params"][0] for group in groups]
        opt = o2nc.ExponentiatedO2NC(groups, learner, beta=0.9, scaling=None)
        for g in gs:
            for i, p in zip(which, params, strict=True):
                p.grad = (g[:2], g[2:])[i].clone()
            opt.step()
        return params

    def group(i):
        return {"params": [torch.nn.Parameter(torch.zeros((2, 3)[i], dtype=torch.float64))], "lr": lrs[i]}

    together = run([group(0), group(1)], which=(0, 1))
    apart = [run([group(i)], which=(i,))[0] for i in (0, 1)]
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-15)
    same_lr = run([group(0) | {"lr": 0.03}, group(1)], which=(0, 1))
    assert not torch.allclose(same_lr[0], apart[0], rtol=1e-3)


@given(shapes=st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None, derandomize=True)
@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_norms_are_joint(learner, shapes):
    """DESIGN: "Norms and balls are joint over all tensors": how R^d is cut into tensors does not matter."""
    dim = sum(math.prod(shape) for shape in shapes)
    gs = np.random.default_rng(3).normal(size=(6, dim))
    split, whole = (play(learner, gs, 0.9, shapes=cut) for cut in (shapes, [(dim,)]))
    for a, b in zip(split, whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-16)


# ---- a learner of the user's own


@dataclass(frozen=True)
class SignOfMomentum:
    """Δ_{t+1} = −lr·sign(M_t), M_t = βM_{t−1} + g_t."""

    lr: float

    def init(self, delta):
        return {"momentum": torch.zeros_like(delta)}

    def update(self, deltas, grads, states, lrs, beta):
        for delta, g, state, lr in zip(deltas, grads, states, lrs, strict=True):
            state["momentum"].mul_(beta).add_(g)
            delta.copy_(state["momentum"].sign()).mul_(-lr)


def test_a_learner_of_ones_own():
    """`Learner`: "To write your own, make a frozen dataclass with lr, init and update"."""
    gs, beta, lrs = gradients(50), 0.9, [0.1 / t for t in range(1, 51)]
    assert isinstance(SignOfMomentum(lr=0.1), Learner)
    momentum = np.zeros(DIM)
    for g, lr, delta in zip(gs, lrs, play(SignOfMomentum(lr=0.1), gs, beta, lrs), strict=True):
        momentum = beta * momentum + g
        np.testing.assert_array_equal(delta.numpy(), -lr * np.sign(momentum))


# ---- bad hyperparameters


def refusals():
    """Yield (class, arguments, exception, the argument's name)."""
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
                yield cls, valid[cls] | {field.name: value}, error, field.name


@pytest.mark.parametrize(("cls", "arguments", "error", "argument"), list(refusals()))
def test_bad_hyperparameters_are_refused(cls, arguments, error, argument):
    """DESIGN: "ValueError/TypeError at construction that names the argument, its value and what is allowed"."""
    with pytest.raises(error, match=rf"^{argument} must be ") as refusal:
        cls(**arguments)
    assert f"got {arguments[argument]!r}" in str(refusal.value)


@pytest.mark.parametrize("learner", LEARNERS, ids=name)
def test_learners_are_frozen_values(learner):
    """STYLE: "Learners are frozen dataclasses that satisfy a protocol"."""
    assert isinstance(learner, Learner)
    assert hash(learner) == hash(replace(learner))
    for field in vars(learner):
        with pytest.raises(FrozenInstanceError):
            setattr(learner, field, 1.0)


@pytest.mark.some(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_coin_betting_stays_finite_under_a_steady_gradient(dtype):
    """The wealth grows exponentially there: uncapped, float32 overflows at step 169."""
    p = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    opt = o2nc.ExponentiatedO2NC([p], CoinBetting(lipschitz=2.0), beta=0.9)
    for _ in range(2000):
        p.grad = torch.ones_like(p)
        opt.step()
    assert p.isfinite().all()
    assert delta_of(opt, p).isfinite().all()
    for _ in range(3000):  # and turning round brings it back
        p.grad = -torch.ones_like(p)
        opt.step()
    assert (delta_of(opt, p) > 0).all()
