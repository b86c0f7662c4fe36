"""Algorithm 2 against its text: the order of a step, the averages, the certificate, the progress, the output."""

import numpy as np
import pytest
import torch

import o2nc
from o2nc.learners import OGD, AdaGrad, CoinBetting, ScaleFree
from o2nc.scaling import uniform
from problem import delta_of, flat, parameters, set_gradients
from twin import averages

LAWS = [
    o2nc.Exponential(),
    o2nc.Exponential(rate=2.0),
    o2nc.Uniform(0, 2),
    o2nc.Weibull(1.3),
    o2nc.Gamma(0.5),
    None,
]


def history(opt, params, steps):
    """Run the optimizer; return x_t, g_t and Δ_t as seen at every call."""
    xs, gs, deltas = [], [], []
    for t in range(1, steps + 1):
        set_gradients(params, t)
        xs.append(flat(params))
        gs.append(flat([p.grad for p in params]))
        known = all("delta" in opt.state[p] for p in params)
        deltas.append(flat([delta_of(opt, p) for p in params]) if known else np.zeros_like(xs[0]))
        opt.step()
    return xs, gs, deltas


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_algorithm_2(law):
    """x_{t+1} = x_t + s_{t+1}Δ_{t+1} with Δ_1 = 0; losses w_t g_t; x̄, ḡ, V, progress against direct sums."""
    beta, eta, mu, seed, n = 0.9, 0.05, 0.7, 5, 120
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, OGD(lr=eta, decay=mu), beta=beta, scaling=law, seed=seed)
    xs, gs, deltas = history(opt, params, n)
    w = [1.0] * n

    delta = np.zeros_like(xs[0])
    for t in range(1, n):  # Δ_{t+1} = β(Δ_t − η w_t g_t)/(β + ημ + α), the paper's update in Section 4
        np.testing.assert_allclose(deltas[t - 1], delta, rtol=1e-12, atol=1e-15)
        delta = beta * (delta - eta * w[t - 1] * gs[t - 1]) / (beta + eta * mu + 1 - beta)
        s = 1.0 if law is None else law.sample(seed, t + 1)
        np.testing.assert_allclose(xs[t], xs[t - 1] + s * delta, rtol=1e-12, atol=1e-14)

    x_mean, g_mean, spread, ess = averages(xs, gs, beta, w)
    certificate = opt.certificate(c=0.3)
    np.testing.assert_allclose(flat([opt.state[p]["average"] for p in params]), x_mean, rtol=1e-12, atol=1e-14)
    assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
    assert certificate.spread == pytest.approx(spread, rel=1e-12)
    assert certificate.ess == pytest.approx(ess, rel=1e-12)
    assert certificate.value == certificate.gradient + 0.3 * certificate.spread

    factor = [1.0] * n if law is None else [law.weight(law.sample(seed, t)) for t in range(1, n + 1)]
    progress = sum(f * g @ d for f, g, d in zip(factor, gs, deltas, strict=True))
    assert opt.progress == pytest.approx(progress, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.999])
def test_averages_at_every_step(beta):
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, ScaleFree(lr=0.05), beta=beta)
    xs, gs = [], []
    for t in range(1, 61):
        set_gradients(params, t)
        xs.append(flat(params))
        gs.append(flat([p.grad for p in params]))
        opt.step()
        x_mean, g_mean, spread, ess = averages(xs, gs, beta, [1.0] * t)
        certificate = opt.certificate()
        with opt.averaged():
            np.testing.assert_allclose(flat(params), x_mean, rtol=1e-12, atol=1e-14)
        assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
        assert certificate.spread == pytest.approx(spread, rel=1e-12, abs=1e-30)
        assert certificate.ess == pytest.approx((1 + beta) * (1 - beta**t) / ((1 - beta) * (1 + beta**t)), rel=1e-11)
        assert ess == pytest.approx(certificate.ess, rel=1e-11)


def test_certificate_by_parameter_adds_up():
    params = parameters()
    named = [(f"layer{i}", p) for i, p in enumerate(params)]
    opt = o2nc.ExponentiatedO2NC(named, OGD(lr=0.05), beta=0.9)
    history(opt, params, 20)
    certificate = opt.certificate(c=2.0)
    parts = certificate.by_parameter
    assert list(parts) == ["layer0", "layer1", "layer2", "layer3"]
    assert sum(p.spread for p in parts.values()) == pytest.approx(certificate.spread)
    assert sum(p.gradient**2 for p in parts.values()) == pytest.approx(certificate.gradient**2)
    unnamed = o2nc.ExponentiatedO2NC(params, OGD(lr=0.05), beta=0.9)
    history(unnamed, params, 2)
    assert list(unnamed.certificate().by_parameter) == [0, 1, 2, 3]


@pytest.mark.parametrize("shapes", [[(40,)], [(40, 25)], [(300, 200), (7,)]])
def test_spread_far_from_the_origin_in_float32(shapes):
    """‖x‖ ≈ 2e3 and V ≈ 0.13: E‖x‖² − ‖x̄‖² would give nonsense, Welford stays within 1 %."""
    beta = 0.99
    size = sum(torch.Size(s).numel() for s in shapes)
    params = parameters(torch.float32, shapes=shapes)
    with torch.no_grad():
        for p in params:
            p.mul_(0.01).add_(2e3 / size**0.5)
    opt = o2nc.ScaledSGDM(params, lr=0.0255 / size**0.5, momentum=0.5, average=beta, scaling=None)
    xs = []
    for t in range(1, 801):
        for i, p in enumerate(params):  # a random walk
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1000 * t + i))
        xs.append(flat(params))
        opt.step()
    n = len(xs)
    p = beta ** np.arange(n - 1, -1, -1.0)
    p /= p.sum()
    x = np.array(xs)
    spread = p @ ((x - p @ x) ** 2).sum(1)
    naive = np.float32(p @ (x.astype(np.float32) ** 2).sum(1)) - np.float32(((p @ x) ** 2).sum())
    assert 0.02 < spread < 0.5
    assert abs(naive / spread - 1) > 0.05
    assert opt.certificate().spread == pytest.approx(spread, rel=0.01)


def test_output_is_uniform_over_the_averages():
    """Algorithm 2's output: x̄_n with n uniform over 1..N, kept by a reservoir that is a pure function of the seed."""
    n, counts = 8, np.zeros(8)
    for seed in range(600):
        p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = o2nc.ExponentiatedO2NC([p], OGD(lr=1.0), beta=0.5, scaling=None, seed=seed)
        seen = []
        for _ in range(n):
            p.grad = torch.ones_like(p)
            opt.step()
            seen.append(opt.state[p]["average"].item())
        counts[seen.index(opt.output()[0].item())] += 1
        kept = max(t for t in range(1, n + 1) if uniform(seed, t, stream=1) * t < 1)
        assert opt.output()[0].item() == seen[kept - 1]
    expected = 600 / n
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square, 7 degrees, 0.1 %


def test_output_is_a_copy():
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, OGD(lr=0.1))
    history(opt, params, 3)
    opt.output()[0].zero_()
    assert opt.output()[0].abs().sum() > 0
    assert [o.shape for o in opt.output()] == [p.shape for p in params]


def kinked(x):
    """F(x) = Σ|x| − 0.6|x − 1| + 0.1x², non-smooth and non-convex."""
    return float((x.abs() - 0.6 * (x - 1).abs() + 0.1 * x**2).sum())


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "law",
    [o2nc.Exponential(), o2nc.Exponential(2.0), o2nc.Uniform(0, 2), o2nc.Weibull(0.8)],
    ids=str,
)
def test_progress_is_unbiased(law):
    """E Σ w(s_n)⟨∇F(x_n), Δ_n⟩ = E F(x_N) − F(x_0) without smoothness; Δ_n, not x_n − x_{n−1} (erratum a)."""
    errors, wrong = [], []
    for seed in range(300):
        p = torch.nn.Parameter(torch.tensor([1.3, -0.7], dtype=torch.float64))
        start = kinked(p.detach())
        opt = o2nc.ExponentiatedO2NC([p], OGD(lr=0.4), beta=0.8, scaling=law, seed=seed)
        printed, before = 0.0, p.detach().clone()
        for _ in range(12):
            x = p.detach()
            p.grad = x.sign() - 0.6 * (x - 1).sign() + 0.2 * x
            printed += float(p.grad @ (x - before))
            before = x.clone()
            opt.step()
        errors.append(opt.progress - (kinked(before) - start))
        wrong.append(printed - (kinked(before) - start))
    standard_error = np.std(errors) / len(errors) ** 0.5
    assert abs(np.mean(errors)) < 4 * standard_error
    if law == o2nc.Exponential():
        assert abs(np.mean(wrong)) > 8 * np.std(wrong) / len(wrong) ** 0.5


def test_one_scalar_for_all_parameters_and_groups():
    a, b = parameters(shapes=[(3,), (4,)])
    opt = o2nc.ExponentiatedO2NC([{"params": [a]}, {"params": [b], "lr": 0.2}], OGD(lr=0.1), beta=0.9, seed=3)
    for t in range(1, 6):
        set_gradients([a, b], t)
        before = [p.detach().clone() for p in (a, b)]
        opt.step()
        s = o2nc.Exponential().sample(3, t + 1)
        for p, x in zip((a, b), before, strict=True):
            torch.testing.assert_close(p.detach(), x + s * delta_of(opt, p), rtol=1e-15, atol=1e-15)
    assert [g["lr"] for g in opt.param_groups] == [0.1, 0.2]


def test_schedulers_act_on_the_learner():
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, CoinBetting(), beta=0.9)
    assert opt.param_groups[0]["lr"] == 1.0
    opt = o2nc.ExponentiatedO2NC(params, AdaGrad(lr=0.5), beta=0.9, scaling=None)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    lengths = []
    for _ in range(8):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.step()
        scheduler.step()
        lengths.append(float(torch.stack([delta_of(opt, p).norm() for p in params]).norm()))
    assert lengths[-1] < 0.03 * lengths[0]


def test_closure_gradients_are_the_ones_that_count():
    plain, with_closure = parameters(), parameters()
    a = o2nc.ExponentiatedO2NC(plain, OGD(lr=0.1))
    b = o2nc.ExponentiatedO2NC(with_closure, OGD(lr=0.1))
    for _ in range(5):
        a.zero_grad()
        sum(p.abs().sum() for p in plain).backward()
        a.step()

        def closure():
            b.zero_grad()
            loss = sum(p.abs().sum() for p in with_closure)
            loss.backward()
            return loss

        loss = b.step(closure)
        assert loss.requires_grad
    for x, y in zip(plain, with_closure, strict=True):
        assert torch.equal(x, y)


def test_no_averages_on_request():
    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, OGD(lr=0.1), average=False)
    history(opt, params, 3)
    assert set(opt.state[params[0]]) == {"delta", "last_lr"}
    for ask in (opt.certificate, opt.output, lambda: opt.averaged().__enter__(), lambda: opt.progress):
        with pytest.raises(RuntimeError, match="average"):
            ask()
