"""Algorithm 1 against its text: gradients at w_n, block averages, uniform output, no buffer for x_n."""

import numpy as np
import pytest
import torch

import o2nc
from o2nc.learners import FTRL, OGD, BallOGD
from problem import flat, parameters, set_gradients

UNIT = o2nc.Uniform(0, 1)


def project(v, radius):
    return v * min(1.0, radius / max(np.linalg.norm(v), 1e-300))


@pytest.mark.parametrize("restart", [False, True])
def test_algorithm_1(restart):
    """x_n = x_{n−1} + Δ_n, w_n = x_{n−1} + s_nΔ_n, g_n at w_n (erratum i), w̄_k the mean of T consecutive w's."""
    eta, radius, period, seed, n = 0.01, 0.05, 7, 3, 45
    params = parameters()
    opt = o2nc.OriginalO2NC(params, BallOGD(lr=eta, radius=radius), period=period, seed=seed, restart=restart)
    x, delta = flat(params), np.zeros(flat(params).shape)
    ws, gs, progress = [], [], 0.0
    for t in range(1, n + 1):
        w = x + UNIT.sample(seed, t) * delta
        x = x + delta
        np.testing.assert_allclose(flat(params), w, rtol=1e-12, atol=1e-13)
        set_gradients(params, t)
        g = flat([p.grad for p in params])
        opt.step()
        ws.append(w)
        gs.append(g)
        progress += g @ delta
        assert opt.progress == pytest.approx(progress, rel=1e-10, abs=1e-15)
        delta = project(delta - eta * g, radius)
        if restart and t % period == 0:
            delta = np.zeros_like(delta)

        k = t // period
        if k == 0:
            continue
        block = slice((k - 1) * period, k * period)
        mean = np.mean(ws[block], axis=0)
        certificate = opt.certificate(c=0.5)
        assert certificate.gradient == pytest.approx(np.linalg.norm(np.mean(gs[block], axis=0)), rel=1e-11)
        assert certificate.spread == pytest.approx(((np.array(ws[block]) - mean) ** 2).sum(1).mean(), rel=1e-10)
        assert certificate.ess == period
        with opt.averaged():
            np.testing.assert_allclose(flat(params), mean, rtol=1e-12)


def test_blocks_lie_in_the_goldstein_ball():
    """‖Δ‖ <= D = δ/T, so all w of a block lie within δ of their mean."""
    period, delta = 10, 0.2
    params = parameters()
    opt = o2nc.OriginalO2NC(params, BallOGD(lr=0.1, radius=delta / period), period=period)
    ws = []
    for t in range(1, 101):
        set_gradients(params, t)
        ws.append(flat(params))
        opt.step()
        if t % period == 0:
            block = np.array(ws[-period:])
            assert np.linalg.norm(block - block.mean(0), axis=1).max() <= delta


def test_nothing_is_said_before_the_first_block_ends():
    params = parameters()
    opt = o2nc.OriginalO2NC(params, BallOGD(lr=0.1, radius=1.0), period=3)
    for t in (1, 2):
        set_gradients(params, t)
        opt.step()
        for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__()):
            with pytest.raises(RuntimeError, match="no block is complete"):
                ask()
    set_gradients(params, 3)
    opt.step()
    assert opt.certificate().value > 0


def test_no_buffer_for_x():
    params = parameters()
    opt = o2nc.OriginalO2NC(params, BallOGD(lr=0.1, radius=1.0), period=3)
    for t in range(1, 8):
        set_gradients(params, t)
        opt.step()
    full = {k for k, v in opt.state[params[0]].items() if isinstance(v, torch.Tensor) and v.dim()}
    assert full == {"delta", "average", "gradient", "block_average", "output"}


def test_output_is_uniform_over_blocks():
    counts = np.zeros(5)
    for seed in range(500):
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = o2nc.OriginalO2NC([p], OGD(lr=0.3), period=2, seed=seed)
        means = []
        for n in range(1, 11):
            p.grad = torch.ones_like(p)
            opt.step()
            if n % 2 == 0:
                means.append(opt.state[p]["block_average"].item())
        counts[means.index(opt.output()[0].item())] += 1
    assert ((counts - 100) ** 2 / 100).sum() < 18.5  # chi-square, 4 degrees, 0.1 %


def test_progress_is_unbiased_at_w_and_biased_at_x():
    """F(x_n) − F(x_{n−1}) = E⟨∇F(w_n), Δ_n⟩: the listing's gradient at x_n misses it."""

    def value(x):
        return float((x.abs() - 0.6 * (x - 1).abs()).sum())

    errors = []
    for seed in range(300):
        p = torch.nn.Parameter(torch.tensor([1.3, -0.7], dtype=torch.float64))
        opt = o2nc.OriginalO2NC([p], FTRL(lr=0.4, radius=0.6), period=5, seed=seed)
        start = value(p.detach())
        for n in range(1, 13):
            w = p.detach()
            p.grad = w.sign() - 0.6 * (w - 1).sign()
            s = UNIT.sample(seed, n)
            x = w + (1 - s) * opt.state[p].get("delta", torch.zeros_like(w))
            opt.step()
        errors.append(opt.progress - (value(x) - start))
    assert abs(np.mean(errors)) < 4 * np.std(errors) / len(errors) ** 0.5 + 1e-12


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"period": 0}, ValueError, "period must be an integer >= 1, got 0"),
        ({"period": 2.5}, TypeError, "period"),
        ({"period": 5, "seed": -1}, ValueError, "seed"),
        ({"period": 5, "restart": 1}, TypeError, "restart"),
    ],
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        o2nc.OriginalO2NC(parameters(), BallOGD(lr=0.1, radius=1.0), **arguments)
