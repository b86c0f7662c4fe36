"""Algorithms 1 and 2 against their text: order of a step, learners, weight decay, output and progress."""

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
import twin
from o2nc.averages.reading import has_averages
from o2nc.learners import OGD, BallOGD, ScaleFree
from problem import delta_of, flat, parameters, set_gradients
from registry import LAWS, LEARNERS, PAPER, build, step

BETA = 0.9


@pytest.mark.parametrize("law", [*LAWS, o2nc.Gamma(0.5), None], ids=str)
def test_algorithm_2(law):
    """x_{t+1} = x_t + s_{t+1}Δ_{t+1} with Δ_1 = 0, and Δ_{t+1} = β(Δ_t − ηg_t)/(β + ημ + α) of Section 4."""
    eta, mu, seed, n = 0.05, 0.7, 5, 60
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, OGD(lr=eta, decay=mu), beta=BETA, scaling=law, seed=seed)
    x, delta = flat(params), np.zeros(flat(params).shape)
    for t in range(1, n + 1):
        set_gradients(params, t)
        g = flat([p.grad for p in params])
        opt.step()
        delta = BETA * (delta - eta * g) / (BETA + eta * mu + 1 - BETA)
        x = x + (1.0 if law is None else law.sample(seed, t + 1)) * delta
        np.testing.assert_allclose(flat([delta_of(opt, p) for p in params]), delta, rtol=1e-11, atol=1e-15)
        np.testing.assert_allclose(flat(params), x, rtol=1e-12, atol=1e-13)


SHAPES = [(5, 3), (4,)]


def played(learner, x, gs, law, seed, decay):
    """Return the last iterate and Σ⟨g, Δ⟩ of x ← x + s(Δ − lr·λx), written out; g is what the learner is given."""
    _, deltas = twin.play(learner, gs, BETA, shapes=SHAPES)
    whole, progress = deltas[0], 0.0
    for t, g in enumerate(gs, 1):
        # Exp(1) has weight 1: the progress is Σ⟨g_t, Δ_t⟩ with all that was added, decay included
        progress += g @ whole
        whole = deltas[t] - learner.lr * decay * x
        x = x + law.sample(seed, t + 1) * whole
    return x, progress


@pytest.mark.some(14)
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_learners_with_decay_and_maximisation(learner, decay, maximize, fused, device):
    """Decay is decoupled: ḡ and the learner see the gradients of F alone."""
    params = rig.begin(device, shapes=SHAPES)
    law, window, steps = o2nc.Exponential(), o2nc.Discount(0.8, every=2), 12
    fused = fused and learner in rig.LEARNERS
    options = {"beta": BETA, "seed": 7, "weight_decay": decay, "maximize": maximize, "fused": fused}
    opt = o2nc.ExponentiatedO2NC(params, learner, scaling=law, average=window, **options)
    begin, gs = flat([p.cpu() for p in params]), []
    for t in range(1, steps + 1):
        rig.set_noise(params, t)
        gs.append(flat([p.grad.cpu() for p in params]))
        opt.step()
    assert rig.is_fused(opt) == fused
    x, progress = played(learner, begin, (-1 if maximize else 1) * np.array(gs), law, 7, decay)
    np.testing.assert_allclose(flat([p.cpu() for p in params]), x, rtol=1e-10, atol=1e-12)
    assert opt.progress == pytest.approx(progress, rel=1e-9, abs=1e-11)
    mean = twin.weights(window, steps) @ np.array(gs)
    assert opt.certificate().gradient == pytest.approx(np.linalg.norm(mean), rel=1e-9)


def test_scale_free_replaces_adamw():
    """β₁ = β, β₂ its own, decay and all: ``ScaleFree`` is AdamW without ε and without bias correction."""
    x = torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=torch.float64))
    y = x.detach().clone()
    lr, decay, beta1, beta2 = 0.01, 0.1, 0.9, 0.95
    scale = ((1 - beta2) ** 0.5) / (1 - beta1)  # Adam's m and v have their 1 − β inside
    learner = ScaleFree(lr / scale, beta2=beta2)
    opt = o2nc.ExponentiatedO2NC([x], learner, beta=beta1, scaling=None, weight_decay=decay * scale)
    m, v = torch.zeros_like(y), torch.zeros_like(y)
    for t in range(1, 41):
        rig.set_noise([x], t)
        g = x.grad.clone()
        opt.step()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        y = y - lr * decay * y - lr * m / v.sqrt()
    torch.testing.assert_close(x.detach(), y, rtol=1e-11, atol=1e-13)


def test_one_scalar_for_all_parameters_and_groups():
    a, b = parameters(shapes=[(3,), (4,)])
    groups = [{"params": [a]}, {"params": [b], "lr": 0.2, "weight_decay": 0.0}]
    opt = o2nc.ExponentiatedO2NC(groups, OGD(lr=0.1), beta=0.9, seed=3, weight_decay=0.5)
    for t in range(1, 6):
        set_gradients([a, b], t)
        before = [p.detach().clone() for p in (a, b)]
        opt.step()
        s = o2nc.Exponential().sample(3, t + 1)
        for p, x, pull in zip((a, b), before, (0.1 * 0.5, 0.0), strict=True):
            torch.testing.assert_close(p.detach(), x + s * (delta_of(opt, p) - pull * x), rtol=1e-14, atol=1e-15)
    assert [g["lr"] for g in opt.param_groups] == [0.1, 0.2]


UNIT = o2nc.Uniform(0, 1)


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
        delta = delta - eta * g
        delta *= min(1.0, radius / np.linalg.norm(delta))
        if restart and t % period == 0:
            delta = np.zeros_like(delta)
        if t < period:
            for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__()):
                with pytest.raises(RuntimeError, match="no block is complete"):
                    ask()
            continue
        check_block(opt, params, ws, gs, t // period, period)


def check_block(opt, params, ws, gs, k, period):
    """Compare the averages with the means of the k-th block, all of whose w lie in the Goldstein ball."""
    block = slice((k - 1) * period, k * period)
    mean = np.mean(ws[block], axis=0)
    certificate = opt.certificate(c=0.5)
    assert certificate.gradient == pytest.approx(np.linalg.norm(np.mean(gs[block], axis=0)), rel=1e-10)
    assert certificate.spread == pytest.approx(((np.array(ws[block]) - mean) ** 2).sum(1).mean(), rel=1e-9)
    assert certificate.ess == period
    with opt.averaged():
        np.testing.assert_allclose(flat(params), mean, rtol=1e-11)


def test_blocks_with_gaps_lie_in_the_goldstein_ball():
    """Uniform weights over the block, gaps included, and ‖Δ‖ <= D = δ/T: all w lie within δ of their mean."""
    params, period, delta = parameters(shapes=[(3,), (4,)]), 4, 0.2
    opt = o2nc.OriginalO2NC(params, BallOGD(lr=0.1, radius=delta / period), period=period)
    ws, gs = [], []
    for t in range(1, 29):
        set_gradients(params, t)
        if t in (3, 5, 6, 9, 12):
            params[1].grad = None
        ws.append(flat(params))
        gs.append(flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in params]))
        opt.step()
        if t % period == 0:
            check_block(opt, params, ws, gs, t // period, period)
            block = np.array(ws[-period:])
            assert np.linalg.norm(block - block.mean(0), axis=1).max() <= delta


# --- output() and progress: laws and sums; `o2nc paper verify` has the expectation

MAKERS = {
    "ScaledSGDM": lambda ps, beta, **options: o2nc.ScaledSGDM(ps, lr=0.0, momentum=beta, average=beta, **options),
    "OGD": lambda ps, beta, **options: o2nc.ExponentiatedO2NC(ps, OGD(0.0), beta=beta, **options),
    "every second": lambda ps, beta, **options: o2nc.ScaledSGDM(
        ps, lr=0.0, average=o2nc.Discount(beta**0.5, start=3, every=2), **options
    ),
    "Algorithm 1": lambda ps, beta, seed, output: o2nc.OriginalO2NC(ps, OGD(0.0), period=2, seed=seed),
}


def geometric(beta, steps):
    """P(n) = (1 − β^n)/N for n < N, and (1 − β^N)/((1 − β)N) for n = N."""
    found = [(1 - beta**n) / steps for n in range(1, steps)]
    return [*found, (1 - beta**steps) / ((1 - beta) * steps)]


def drawn(make, beta, count, steps, **options):
    """Return the number of the average that is the output: x_t = t, so that x̄_n tells n."""
    p = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt = make([p], beta, **options)
    means = []
    for t in range(1, steps + 1):
        with torch.no_grad():
            p.fill_(float(t))
        step(opt, 0.0)
        if has_averages(opt):
            with opt.averaged():
                means += [p.item()] if p.item() not in means else []
    assert len(means) == count
    return means.index(opt.output()[0].item()) + 1


@pytest.mark.parametrize("output", ["uniform", "geometric"])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_output_follows_its_law(kind, output):
    if kind == "Algorithm 1" and output == "geometric":
        pytest.skip("uniform over blocks")
    beta, count, runs = 0.7, 6, 400
    steps = {"every second": 3 + 2 * count, "Algorithm 1": 2 * count}.get(kind, count)
    counts = np.zeros(count)
    for seed in range(runs):
        counts[drawn(MAKERS[kind], beta, count, steps, seed=seed, output=output) - 1] += 1
    uniform = np.full(count, runs / count)
    wanted = uniform if output == "uniform" else runs * np.array(geometric(beta, count))
    assert wanted.sum() == pytest.approx(runs)
    # χ² with 5 degrees of freedom: above 20.5 in one of a thousand
    assert ((counts - wanted) ** 2 / wanted).sum() < 20.5
    assert output == "uniform" or ((counts - uniform) ** 2 / uniform).sum() > 60


@pytest.mark.parametrize("name", [name for name in (*PAPER, "ScaledSGDM geometric") if name != "OriginalO2NC"])
@pytest.mark.parametrize("seed", range(3))
def test_the_output_is_a_copy_of_the_average_of_a_step(name, seed, device):
    """Also of parameters that were absent then; kernels draw the same step."""
    found = []
    for fused in (False, True):
        params = rig.begin(device, shapes=[(3,), (5,), (2,)])
        options = {"output": "geometric"} if "geo" in name else {}
        opt = build(name.split(" geo")[0], params, fused, seed=seed, **options)
        xs, candidates = [], []
        for t in range(1, 10):
            rig.set_noise(params, t, [i for i in (1, 2) if t % 3 == i])
            xs.append(flat([p.cpu() for p in params]))
            opt.step()
            candidates.append(twin.weights(0.9, t) @ np.array(xs))
        kept = flat([o.cpu() for o in opt.output()])
        distances = [np.abs(kept - c).max() for c in candidates]
        assert min(distances) < 1e-12
        found.append(np.argmin(distances))
        assert [o.shape for o in opt.output()] == [p.shape for p in params]
        opt.output()[0].zero_()
        assert opt.output()[0].abs().sum() > 0
    assert found[0] == found[1]


# as a schedule moves them; with Nesterov and without momentum Δ is not told by the buffer
MOMENTA = {4: {"momentum": 0.7}, 6: {"momentum": 0.9, "nesterov": True}, 9: {"momentum": 0.0, "nesterov": False}}


@pytest.mark.some(16)
@pytest.mark.parametrize("fused", [False, True], ids=["eager", "fused"])
@pytest.mark.parametrize("law", [*LAWS[:3], o2nc.Gamma(16)], ids=str)
@pytest.mark.parametrize("name", [name for name in PAPER if name != "OriginalO2NC"])
def test_progress_is_its_sum(name, law, fused, device):
    """Σ w(s_t)⟨g_t, Δ_t⟩ with Δ = (x_{t+1} − x_t)/s; g is of F + (λ/2)‖x‖² for SGD; zero after a gap."""
    params = rig.begin(device, shapes=[(3, 2), (1025,), (4,)])
    opt = build(name, params, fused, scaling=law, seed=1)
    decay = opt.param_groups[0]["weight_decay"] if opt.couples_decay else 0.0
    xs, gs = [], []
    for t in range(1, 13):
        if "ScaledSGDM" in name:
            opt.param_groups[0].update(MOMENTA.get(t, {}) | {"lr": 0.1 / t})
        rig.set_noise(params, t, {3: [1], 4: [1], 5: [0, 1], 7: [0], 9: [1]}.get(t, []))
        xs.append([p.detach().cpu().clone() for p in params])
        gs.append([None if p.grad is None else p.grad.cpu() + decay * p.detach().cpu() for p in params])
        opt.step()
    exact = 0.0
    for t in range(2, 13):
        s = law.sample(1, t)
        weight = law.weight(s) if getattr(law, "estimates", True) else law.mean
        for x, y, g in zip(xs[t - 2], xs[t - 1], gs[t - 1], strict=True):
            exact += 0.0 if g is None else weight / s * float((g * (y - x)).sum())
    assert opt.progress == pytest.approx(exact, rel=1e-8)
