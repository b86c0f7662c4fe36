"""Theorem tests: the regret bounds of the learners' docstrings, against adversaries and the worst comparator.

    Reg_n(u) = Σ_{t<=n} ⟨g̃_t, Δ_t − u⟩ + (μ_t/2)(‖Δ_t‖² − ‖u‖²),     g̃_t = β^{−t}g_t,  μ_t = β^{−t}μ.

In u, regret minus bound is linear minus a quadratic, so the worst comparator has a closed form and every test speaks
of all u at once, and of all n along the run. β^{−n} is formed here in float64: n is small.
"""

from itertools import product

import numpy as np
import pytest

from o2nc.learners import FTRL, OGD, AdaGrad, BallAdaGrad, BallOGD, CoinBetting, ScaleFree
from twin import play

SHAPES = [(2,), (1, 1)]
DIM = 3
STEPS = 80
BETAS = [0.5, 0.9, 1.0]


# ---- adversaries: g_t from t, Δ_t and a generator


def unit(x, rng):
    """Return x/‖x‖, or a random direction for x = 0."""
    x = x if x.any() else rng.normal(size=x.shape)
    return x / np.linalg.norm(x)


def noise(t, delta, rng):
    return rng.normal(size=DIM)


def drift(t, delta, rng):
    return np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=DIM)


def flip(t, delta, rng):
    return (-1.0) ** t * np.array([1.0, 0.3, 0.0])


def slow_flip(t, delta, rng):
    return (-1.0) ** (t // 13) * np.array([1.0, 0.3, -1.0])


def punish(t, delta, rng):
    """Along Δ: every bet is lost."""
    return unit(delta, rng)


def lure(t, delta, rng):
    """Against Δ for a while, so that it grows, then along it."""
    return unit(delta, rng) * (1.0 if t % 20 >= 15 else -1.0)


def toss(t, delta, rng):
    return unit(delta, rng) * rng.choice([-1.0, 1.0]) + 0.3 * rng.normal(size=DIM)


def heavy(t, delta, rng):
    """Magnitudes over many decades: a gradient may dwarf all before it."""
    return rng.standard_cauchy() ** 2 * unit(rng.normal(size=DIM) + delta, rng)


def silence(t, delta, rng):
    """Zeros at first, then bursts of one coordinate or of all."""
    if t < 5 or t % 16 < 10:
        return np.zeros(DIM)
    return rng.normal(size=DIM) * (rng.random(DIM) < 0.5)


ADVERSARIES = [noise, drift, flip, slow_flip, punish, lure, toss, heavy, silence]


def meet(learner, adversary, beta, lrs, rng):
    """Return g_t and Δ_t for t = 1..n, each as an array n × d; lrs[t − 1] is the lr in call t."""
    g, delta = play(learner, lambda t, delta: adversary(t, delta, rng), beta, lrs, shapes=SHAPES)
    return g, delta[:-1]


def admissible_schedule(lr, beta, rng):
    """Return h_2, …, h_{n+1} with β^t h_t nonincreasing: h falls, stays, or grows by at most 1/β."""
    h = [lr]
    for _ in range(STEPS - 1):
        grow = 1 / beta if h[-1] < 10 * lr else 1.0
        fall = rng.uniform(0.3, 1.0) if h[-1] > 0.1 * lr else 1.0
        h.append(h[-1] * rng.choice([1.0, grow, fall]))
    return h


# ---- regret against the worst comparator


def power(beta, exponents):
    return beta ** np.asarray(exponents, dtype=float)


def regret_excess(g, delta, beta, decay, quadratic, constant, radius=np.inf, *, diagonal=False):
    """Return max over ‖u‖ <= radius of Reg_n(u) − quadratic_n‖u‖²/2 − constant_n for n = 1..N, relative to its terms.

    With ``diagonal`` each coordinate is a problem of its own, and ``quadratic`` and ``constant`` are N × d.
    """
    t = np.arange(1, len(g) + 1)
    if diagonal:
        g, delta = g[:, :, None], delta[:, :, None]  # time × problem × coordinate
        t = t[:, None]
    tilde, mu = power(beta, -t)[..., None] * g, power(beta, -t) * decay
    learner_loss = np.cumsum((tilde * delta).sum(-1) + mu / 2 * (delta**2).sum(-1), axis=0)
    slope = np.linalg.norm(np.cumsum(tilde, axis=0), axis=-1)
    curvature = quadratic + np.cumsum(mu, axis=0)
    unconstrained = np.divide(slope, curvature, out=np.full_like(slope, np.inf), where=curvature > 0)
    length = np.where(slope > 0, np.minimum(unconstrained, radius), 0.0)
    comparator_gain = slope * length - curvature / 2 * length**2
    scale = np.abs(learner_loss) + comparator_gain + constant
    return np.divide(learner_loss + comparator_gain - constant, scale, out=np.zeros_like(scale), where=scale > 0)


def squares(g, beta, diagonal=False):
    """Return ‖g̃_t‖² for t = 1..n, or the squares by coordinate."""
    q = power(beta, -np.arange(1, len(g) + 1))[:, None] ** 2 * g**2
    return q if diagonal else q.sum(1)


# ---- the bounds of the docstrings: what `regret_excess` needs of them, from g, Δ and h_1 := h_2, …, h_{n+1}


def of_ogd(learner, g, delta, h, beta):
    """ogd.py: "Regret, for nonincreasing η_t (h may grow by 1/β a step):
    κ = 1:  Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} η_t‖g̃_t‖²", and Theorem OGD for κ = 2:
    "Σ_{t<=n} ⟨g̃_t, Δ_t − u⟩ + R_t(Δ_t) − R_t(u) <= (2/η_{n+1} + μ_{n+1}/2)‖u‖² + ½ Σ η_t‖g̃_t‖²".
    """
    eta = power(beta, np.arange(1, STEPS + 2)) * h
    mu_next = power(beta, -np.arange(2, STEPS + 2)) * learner.decay
    quadratic = 1 / eta[:-1] if learner.kappa == 1 else 4 / eta[1:] + mu_next
    return quadratic, np.cumsum(eta[:-1] * squares(g, beta)) / 2


def of_ball_ogd(learner, g, delta, h, beta):
    """ball_ogd.py: "for ‖u‖ <= D, one lr for all parameters, nonincreasing η_t:
    Reg_n(u) <= 2D²/η_n + ½ Σ_{t<=n} η_t‖g̃_t + μ_t Δ_t‖²", with η_t = β^t times the lr in call t.
    """
    eta = power(beta, np.arange(1, STEPS + 1)) * h[1:]
    return 0.0, 2 * learner.radius**2 / eta + np.cumsum(eta * squares(g + learner.decay * delta, beta)) / 2


def of_ftrl(learner, g, delta, h, beta):
    """ftrl.py: "for ‖u‖ <= D and nonincreasing η_t:
    Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} ‖g̃_t‖² / (1/η_t + Σ_{s<=t} μ_s)".
    """
    t = np.arange(1, STEPS + 1)
    eta = power(beta, t) * h[:-1]
    strength = 1 / eta + np.cumsum(power(beta, -t) * learner.decay)
    return 1 / eta, np.cumsum(squares(g, beta) / strength) / 2


def of_adagrad(learner, g, delta, h, beta):
    """adagrad.py: "Regret, for every sequence (by coordinate, a sum over coordinates):
    κ = 1:  Reg_n(u) <= ‖u‖²/(2η_n) + ½ Σ_{t<=n} η_t‖g̃_t‖²
    κ = 2:  Reg_n(u) <= (2/η_{n+1} + μ_{n+1}/2)‖u‖² + ½ Σ_{t<=n} η_t‖g̃_t‖²".
    """
    q = squares(g, beta, learner.diagonal)
    total = np.concatenate([np.zeros_like(q[:1]), np.cumsum(q, axis=0)])
    # η_1 = η_2; likewise at the first gradient that is not zero
    total[:-1] = np.where(total[:-1] > 0, total[:-1], total[1:])
    inverse_eta = np.sqrt(total) / learner.lr
    mu_next = power(beta, -np.arange(2, STEPS + 2)) * learner.decay
    mu_next = mu_next[:, None] if learner.diagonal else mu_next
    quadratic = inverse_eta[:-1] if learner.kappa == 1 else 4 * inverse_eta[1:] + mu_next
    return quadratic, np.cumsum(np.divide(q, inverse_eta[:-1], out=np.zeros_like(q), where=q > 0), axis=0) / 2


def of_scale_free(learner, g, delta, h, beta):
    """scale_free.py: "with Q_n = Σ‖g̃_t‖², by norm:
    Reg_n(u) <= (‖u‖²/(2D) + 2.75 D) sqrt(Q_n) + 3.5 min(D sqrt(n − 1), 2R) max_t‖g̃_t‖,   ‖u‖ <= R,
    and by coordinate without a clip the sum over coordinates of the same with R = ∞".
    "As long as β₂ >= β² … the bound holds with β^{−n}sqrt(v_n) in the place of the
    sqrt(Q_n) that ‖u‖²/(2D) stands before".
    """
    q, lr, ratio = squares(g, beta, learner.diagonal), learner.lr, (learner.beta2 or beta**2) / beta**2
    n = np.arange(1, STEPS + 1).reshape(-1, *[1] * (q.ndim - 1))
    longest = np.sqrt(np.maximum.accumulate(q, axis=0))
    v = [q[0]]
    for square in q[1:]:  # β^{−2n}v_n = (β₂/β²)·β^{−2(n−1)}v_{n−1} + ‖g̃_n‖²
        v.append(ratio * v[-1] + square)
    constant = 2.75 * lr * np.sqrt(np.cumsum(q, axis=0))
    constant += 3.5 * np.minimum(lr * np.sqrt(n - 1), 2 * learner.radius) * longest
    return np.sqrt(np.array(v)) / lr, constant


def of_ball_adagrad(learner, g, delta, h, beta):
    """ball_adagrad.py: "Regret, for ‖u‖ <= D and every sequence, with Q_n = Σ_{t<=n} ‖g̃_t‖²:
    Reg_n(u) <= 2√2·D·sqrt(Q_n)".
    """
    return 0.0, 2 * np.sqrt(2) * learner.lr * np.sqrt(np.cumsum(squares(g, beta)))


BOUNDS = {
    OGD: of_ogd,
    BallOGD: of_ball_ogd,
    FTRL: of_ftrl,
    AdaGrad: of_adagrad,
    ScaleFree: of_scale_free,
    BallAdaGrad: of_ball_adagrad,
}
LRS, DECAYS, KAPPAS = (0.05, 2.0), (0.0, 1.0), (1, 2)
BOUNDED = [
    *(OGD(lr, decay=decay, kappa=kappa) for lr, decay, kappa in product(LRS, DECAYS, KAPPAS)),
    *(BallOGD(lr, radius=0.7, decay=decay) for lr, decay in product(LRS, DECAYS)),
    *(FTRL(lr, decay=decay, radius=radius) for lr, decay, radius in product(LRS, DECAYS, (0.3, np.inf))),
    *(
        AdaGrad(0.3, decay=decay, kappa=kappa, diagonal=diagonal)
        for decay, kappa, diagonal in product(DECAYS, KAPPAS, (False, True))
    ),
    *(ScaleFree(0.3, diagonal=False, radius=radius) for radius in (np.inf, 0.2, 1.0)),
    ScaleFree(0.3),
    *(BallAdaGrad(lr) for lr in LRS),
]


LONGER_MEMORY = [
    (ScaleFree(0.3, diagonal=diagonal, radius=radius, beta2=beta**2 + more * (1 - beta**2)), beta)
    for beta, more in product((0.5, 0.9), (0.5, 0.95))
    for diagonal, radius in ((False, np.inf), (False, 0.2), (False, 1.0), (True, np.inf))
]


@pytest.mark.some(59)
@pytest.mark.parametrize(("learner", "beta"), [*product(BOUNDED, BETAS), *LONGER_MEMORY], ids=repr)
def test_regret_is_below_its_bound(learner, beta):
    """Of every adversary, all along the run, for the worst u."""
    for seed, adversary in product(range(3), ADVERSARIES):
        rng = np.random.default_rng(seed)
        scheduled = seed and isinstance(learner, OGD | BallOGD | FTRL)
        lrs = admissible_schedule(learner.lr, beta, rng) if scheduled else [learner.lr] * STEPS
        g, delta = meet(learner, adversary, beta, lrs, rng)
        bound = BOUNDS[type(learner)](learner, g, delta, np.array([lrs[0], *lrs]), beta)
        decay, diagonal = getattr(learner, "decay", 0.0), getattr(learner, "diagonal", False)
        radius = learner.lr if isinstance(learner, BallAdaGrad) else getattr(learner, "radius", np.inf)
        worst = np.max(regret_excess(g, delta, beta, decay, *bound, radius, diagonal=diagonal))
        assert worst <= 1e-10, f"{learner} exceeds its bound by {worst} (relative) against {adversary.__name__}"


def shortened(adversary, bound):
    """Return the adversary with gradients of norm at most ``bound``, which it meets where it can."""

    def short(t, delta, rng):
        g = adversary(t, delta, rng)
        return g * min(1.0, bound / max(np.linalg.norm(g), 1e-300))

    return short


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("multiplied", [False, True])
def test_coin_betting_never_loses_more_than_its_wealth(multiplied, beta):
    """coin_betting.py: "The wealth stays positive, so at u = 0, for every β: Reg_n(0) <= β^{−n} ε".

    And of lr: "A multiplier of the bet; up to 1 the wealth stays positive".
    """
    learner = CoinBetting(wealth=0.3, lipschitz=2.0)
    for seed, adversary in product(range(3), ADVERSARIES):
        rng = np.random.default_rng(seed)
        lrs = rng.uniform(0, 1, size=STEPS).tolist() if multiplied else [1.0] * STEPS
        g, delta = meet(learner, shortened(adversary, learner.lipschitz), beta, lrs, rng)
        t = np.arange(1, STEPS + 1)
        regret_at_zero = np.cumsum(power(beta, -t) * (g * delta).sum(1))
        assert (regret_at_zero <= power(beta, -t) * learner.wealth * (1 + 1e-10)).all(), adversary.__name__


def coin_excess(loss, gradient_sum, norm_sum, wealth, lipschitz):
    """Return the greatest Reg_n(u) − bound over u = −ρ Σg/‖Σg‖, ρ on a fine grid, relative to its terms."""
    a = lipschitz * (lipschitz + norm_sum)
    length = np.concatenate([[0.0], np.logspace(-8, 30, 4000)]) * wealth / lipschitz
    root = np.sqrt(a * np.log1p(a * (1 + norm_sum / lipschitz) * (length / wealth) ** 2))
    gain = length * np.linalg.norm(gradient_sum)
    bound = wealth + length * root
    return np.max((loss + gain - bound) / (abs(loss) + gain + bound))


@pytest.mark.parametrize("wealth", [0.01, 0.3, 20.0])
def test_coin_betting_against_any_comparator(wealth):
    """coin_betting.py: "For β = 1 and any u, with a = G(G + A_n):
    Reg_n(u) <= ε + ‖u‖ sqrt(a ln(1 + a(1 + A_n/G)‖u‖²/ε²))".
    """
    learner = CoinBetting(wealth=wealth, lipschitz=2.0)
    for seed, adversary in product(range(2), ADVERSARIES):
        rng = np.random.default_rng(seed)
        g, delta = meet(learner, shortened(adversary, learner.lipschitz), 1.0, [1.0] * STEPS, rng)
        loss = np.cumsum((g * delta).sum(1))
        sums = zip(loss, np.cumsum(g, axis=0), np.cumsum(np.linalg.norm(g, axis=1)), strict=True)
        assert max(coin_excess(*of_n, wealth, learner.lipschitz) for of_n in sums) <= 1e-10, adversary.__name__
