"""Learners with M ← c0·M + c1·g, Δ ← c2·M: FTRL, ScaleFree by the joint norm, CoinBetting; b is M."""

import triton
import triton.language as tl

from o2nc.backends.triton.rules.linear import at_least, clip_to


@triton.jit
def play_leader(d, a, b, c, c0, c1, c2, c3, c4, FLOOR: tl.constexpr):
    m = c0 * b + c1 * d
    delta = c2 * m
    return delta, delta, m, c


@triton.jit
def measure_leader(d, a, b, c, lr, k, FLOOR: tl.constexpr):
    m = tl.load(k) * b + d
    return d * d, m * m  # ‖g‖² and ‖M‖²


@triton.jit
def ftrl_leader(lr, weight, k):
    return -lr * tl.load(k) / (1 + lr * tl.load(k + 1) * weight)


@triton.jit
def gather_ftrl(lr, h0, h1, p, q, k):
    lead = ftrl_leader(lr, 1 + tl.load(k) * h0, k)
    return lead * lead * q, p * 0, p * 0, p * 0


@triton.jit
def settle_ftrl(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    weight = 1 + beta * h0
    clip = clip_to(tl.load(k + 2), j0)
    return s, 1.0, 0.0, beta, w, ftrl_leader(tl.load(at), weight, k) * clip, 0.0, 0.0, weight, h1


@triton.jit
def gather_scale_free(lr, h0, h1, p, q, k):
    beta = tl.load(k)
    return beta * beta * h0 + p, lr * lr * q, p * 0, p * 0


@triton.jit
def settle_scale_free(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    norm = at_least(tl.sqrt(j0), tl.load(k + 2))
    clip = clip_to(tl.load(k + 1), j1 / (norm * norm))
    return s, 1.0, 0.0, beta, w, -tl.load(at) / norm * clip, 0.0, 0.0, beta * beta * h0 + p, h1


@triton.jit
def gather_coin(lr, h0, h1, p, q, k):
    return p, q, h0, h1


@triton.jit
def settle_coin(at, here, fresh, h0, h1, p, q, j0, j1, j2, j3, s, w, k):
    beta = tl.load(k)
    lipschitz = tl.load(k + 2)
    norm = tl.sqrt(j0)
    shorten = clip_to(lipschitz, j0)
    share = p / at_least(norm, 2.2250738585072014e-308)
    gain = beta * h0 - shorten * q
    norms = beta * h1 + shorten * share
    wealth = tl.load(k + 1) + beta * j2 - shorten * j1
    most = tl.load(k + 3)
    wealth = at_least(tl.where(wealth > most, most, wealth), 0.0)
    total = beta * j3 + shorten * norm
    bet = -beta * beta * wealth / (lipschitz * (lipschitz + beta * total))
    return s, 1.0, 0.0, beta, shorten * w, bet * tl.load(at), 0.0, 0.0, gain, norms
