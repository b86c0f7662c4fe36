"""ScaledSGDM is torch.optim.SGD: to the bit without scaling, with lr·s_n otherwise; the exact map to Algorithm 2."""

import itertools

import numpy as np
import pytest
import torch

import o2nc
from o2nc.learners import OGD
from problem import SHAPES, delta_of, flat, parameters, set_gradients
from twin import averages, law_weights

OPTIONS = [
    dict(zip(("momentum", "dampening", "weight_decay", "nesterov", "maximize"), values, strict=True))
    for values in itertools.product([0, 0.9], [0, 0.5], [0, 0.05], [False, True], [False, True])
    if not (values[3] and (values[0] == 0 or values[1] != 0))
]
ENGINES = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"differentiable": True}]
LARGE = [(900, 700), (30,), (3, 5, 7, 11), (1,)]


def run(make, steps, dtype=torch.float32, shapes=SHAPES, scalars=None, lr=0.01):
    params = parameters(dtype, shapes=shapes)
    opt = make(params)
    if opt.defaults["differentiable"]:  # autograd refuses an in-place step on a leaf, torch's own as well
        params = [p.clone() for p in params]
        for p in params:
            p.retain_grad()
        opt = make(params)
    for t in range(1, steps + 1):
        set_gradients(params, t)
        before = [p.grad.clone() for p in params]
        if scalars is not None:
            for group in opt.param_groups:
                group["lr"] = lr * scalars[t - 1]
        opt.step()
        if isinstance(opt, o2nc.ScaledSGDM):
            for p, g in zip(params, before, strict=True):
                assert torch.equal(p.grad, g), ".grad was written to"
    return params, opt


@pytest.mark.some(100)
@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("average", [None, 0.99, 0.9])
def test_without_scaling_it_is_sgd_to_the_bit(options, engine, average):
    for lr in (0.01, torch.tensor(0.01)):
        ours, _ = run(
            lambda ps: o2nc.ScaledSGDM(ps, lr=lr, **options, **engine, scaling=None, average=average),  # noqa: B023
            6,
        )
        theirs, _ = run(lambda ps: torch.optim.SGD(ps, lr=lr, **options, **engine), 6)  # noqa: B023
        for a, b in zip(ours, theirs, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
@pytest.mark.parametrize("average", [None, 0.99])
@pytest.mark.parametrize("engine", ENGINES[:3], ids=str)
def test_dtypes(dtype, average, engine):
    ours, _ = run(
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, momentum=0.9, **engine, scaling=None, average=average), 6, dtype
    )
    theirs, _ = run(lambda ps: torch.optim.SGD(ps, lr=0.01, momentum=0.9, **engine), 6, dtype)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("average", [None, 0.99])
def test_fused_half_precision_on_a_cpu(dtype, average):
    """torch's fused CPU kernel is wrong in half precision (seen in 2.13); foreach does the work instead."""
    options = {"lr": 0.01, "momentum": 0.9, "scaling": None, "average": average}
    ours, _ = run(lambda ps: o2nc.ScaledSGDM(ps, fused=True, **options), 6, dtype, shapes=LARGE)
    theirs, _ = run(lambda ps: o2nc.ScaledSGDM(ps, foreach=True, **options), 6, dtype, shapes=LARGE)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("engine", ENGINES[:4], ids=str)
def test_blocks_do_not_change_a_bit(engine):
    """Large tensors are stepped block by block when averages are on."""
    options = {"momentum": 0.9, "weight_decay": 0.01}
    make = lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, **options, **engine, scaling=None, average=0.99)  # noqa: E731
    ours, opt = run(make, 4, shapes=LARGE)
    theirs, _ = run(lambda ps: torch.optim.SGD(ps, lr=0.01, **options, **engine), 4, shapes=LARGE)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(opt.state[a]["momentum_buffer"], opt.state[a]["momentum_buffer"])


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("average", [None, 0.99])
@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Uniform(0, 2)], ids=str)
def test_with_scaling_it_is_sgd_with_lr_times_s(engine, average, law):
    """Call t moves x_t to x_{t+1} with s_{t+1} = law.sample(seed, t + 1)."""
    options = {"momentum": 0.9, "weight_decay": 0.01}
    scalars = [law.sample(7, t + 1) for t in range(1, 9)]
    ours, opt = run(
        lambda ps: o2nc.ScaledSGDM(ps, lr=0.01, **options, **engine, scaling=law, seed=7, average=average), 8
    )
    theirs, _ = run(lambda ps: torch.optim.SGD(ps, lr=0.01, **options, **engine), 8, scalars=scalars)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
    assert opt.param_groups[0]["lr"] == 0.01


@pytest.mark.some(90)
@pytest.mark.parametrize("engine", [*ENGINES[:2], ENGINES[3]], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("average", [0.99, 0.9])
@pytest.mark.parametrize("law", [o2nc.Exponential(), o2nc.Uniform(0, 2)], ids=str)
def test_averages_against_direct_sums(options, engine, average, law):
    """ḡ and the progress use the gradient that SGD sees: of F + (wd/2)‖x‖², of −F under maximize."""
    n, seed, lr = 25, 2, 0.02
    params = parameters()
    opt = o2nc.ScaledSGDM(params, lr=lr, **options, **engine, scaling=law, seed=seed, average=average)
    xs, gs = [], []
    for t in range(1, n + 1):
        set_gradients(params, t)
        xs.append(flat(params))
        g = flat([p.grad for p in params])
        gs.append((-g if options["maximize"] else g) + options["weight_decay"] * xs[-1])
        opt.step()
    w = law_weights(law, seed, n)
    x_mean, g_mean, spread, ess = averages(xs, gs, average, w)
    certificate = opt.certificate()
    np.testing.assert_allclose(flat([opt.state[p]["average"] for p in params]), x_mean, rtol=1e-12, atol=1e-14)
    assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
    assert certificate.spread == pytest.approx(spread, rel=1e-12)
    assert certificate.ess == pytest.approx(ess, rel=1e-12)
    # x_{t+1} = x_t + s_{t+1}Δ_{t+1}, so Δ is the difference divided by s
    s = [law.sample(seed, t) for t in range(2, n + 1)]
    deltas = [(b - a) / k for a, b, k in zip(xs, xs[1:], s, strict=False)]
    progress = sum(law.weight(k) * g @ d for k, g, d in zip(s, gs[1:], deltas, strict=True))
    assert opt.progress == pytest.approx(progress, rel=1e-9)


def test_average_equal_to_momentum_needs_no_buffer_of_its_own():
    params = parameters()
    same = o2nc.ScaledSGDM(params, lr=0.01, momentum=0.9, average=0.9)
    other = o2nc.ScaledSGDM(params, lr=0.01, momentum=0.9, average=0.99)
    for t in range(1, 4):
        set_gradients(params, t)
        same.step()
        other.step()
    assert "gradient" not in same.state[params[0]]
    assert "gradient" in other.state[params[0]]


def test_a_schedule_may_move_the_momentum():
    """OneCycleLR moves the momentum: ḡ then gets a buffer of its own, and stays right."""
    params = parameters()
    opt = o2nc.ScaledSGDM(params, lr=0.01, momentum=0.9, average=0.9)
    gs = []
    for t in range(1, 21):
        if t == 8:
            opt.param_groups[0]["momentum"] = 0.7
        if t == 12:
            opt.param_groups[0].update(momentum=0.9, nesterov=True)
        if t == 16:
            opt.param_groups[0].update(momentum=0.0, nesterov=False)
        set_gradients(params, t)
        gs.append(flat([p.grad for p in params]))
        opt.step()
    _, g_mean, _, _ = averages(gs, gs, 0.9, [1.0] * 20)
    assert opt.certificate().gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)


@pytest.mark.parametrize("kappa", [1, 2])
def test_the_map_to_algorithm_2(kappa):
    """Section 4: m_{t+1} = β̃m_t + (1 − β̃)g_t, x_{t+1} = x_t − s_{t+1}η̃ m_{t+1}; κ = 2 by the same algebra.

    torch's buffer starts at g_1, the theory's m at (1 − β̃)g_1: with dampening β̃ the buffer is m plus β̃^t g_1.
    """
    beta, eta, mu, seed = 0.95, 0.03, 0.8, 4
    alpha = 1 - beta
    momentum = beta / (1 + (kappa - 1) * alpha + eta * mu)
    effective_lr = beta * eta / (kappa * alpha + eta * mu)
    if kappa == 1:  # the inverse map of NOTES §1.5
        assert eta == pytest.approx(effective_lr * (1 - momentum) / momentum)
        assert eta * mu == pytest.approx(beta / momentum - 1)

    params = parameters()
    opt = o2nc.ExponentiatedO2NC(params, OGD(lr=eta, decay=mu, kappa=kappa), beta=beta, seed=seed)
    twins = parameters()
    sgdm = o2nc.ScaledSGDM(twins, lr=effective_lr, momentum=momentum, dampening=momentum, seed=seed)
    for t in range(1, 200):
        set_gradients(params, t)
        for p, twin in zip(params, twins, strict=True):
            twin.grad = p.grad.clone()
            if t == 1:  # start torch's buffer where the theory starts it
                sgdm.state[twin]["momentum_buffer"] = torch.zeros_like(twin)
        opt.step()
        sgdm.step()
        np.testing.assert_allclose(flat(params), flat(twins), rtol=1e-12, atol=1e-13)
        m = flat([sgdm.state[p]["momentum_buffer"] for p in twins])
        np.testing.assert_allclose(
            flat([delta_of(opt, p) for p in params]), -effective_lr * m, rtol=1e-11, atol=1e-15
        )


def test_the_map_with_torchs_own_start():
    """Left to itself torch's buffer is the theory's m plus β̃^t g_1, the trace of b_1 = g_1."""
    momentum, lr = 0.9, 0.02
    params = parameters()
    opt = o2nc.ScaledSGDM(params, lr=lr, momentum=momentum, dampening=momentum)
    m = np.zeros(flat(params).shape)
    for t in range(1, 60):
        set_gradients(params, t)
        g = flat([p.grad for p in params])
        if t == 1:
            first = g
        m = momentum * m + (1 - momentum) * g
        opt.step()
        buffer = flat([opt.state[p]["momentum_buffer"] for p in params])
        np.testing.assert_allclose(buffer, m + momentum**t * first, rtol=1e-11, atol=1e-14)


def test_checkpoints_of_sgd_load_both_ways():
    params = parameters()
    torchs = torch.optim.SGD(params, lr=0.05, momentum=0.8)
    for t in range(1, 4):
        set_gradients(params, t)
        torchs.step()
    ours = o2nc.ScaledSGDM(params, lr=0.01, momentum=0.9, seed=3, average=0.9)
    ours.load_state_dict(torchs.state_dict())
    group = ours.param_groups[0]
    assert (group["lr"], group["momentum"], group["seed"], group["scaling"]) == (0.05, 0.8, 3, o2nc.Exponential())
    for t in range(4, 7):
        set_gradients(params, t)
        ours.step()
    assert ours.certificate().value > 0
    torchs.load_state_dict(ours.state_dict())
    set_gradients(params, 7)
    torchs.step()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"lr": -0.1}, ValueError),
        ({"momentum": -0.1}, ValueError),
        ({"weight_decay": -0.1}, ValueError),
        ({"nesterov": True}, ValueError),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError),
        ({"lr": torch.ones(2)}, ValueError),
        ({"fused": True, "foreach": True}, RuntimeError),
        ({"fused": True, "differentiable": True}, RuntimeError),
    ],
    ids=str,
)
def test_errors_are_torchs(arguments, error):
    with pytest.raises(error) as theirs:
        torch.optim.SGD(parameters(), **arguments)
    with pytest.raises(error) as ours:
        o2nc.ScaledSGDM(parameters(), **arguments)
    assert str(ours.value) == str(theirs.value)


def test_signature_begins_with_sgds():
    import inspect

    ours = inspect.signature(o2nc.ScaledSGDM).parameters
    theirs = inspect.signature(torch.optim.SGD).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    assert all(ours[k].default == p.default and ours[k].kind == p.kind for k, p in theirs.items())
    assert list(ours)[len(theirs) :] == ["scaling", "seed", "average", "output"]
