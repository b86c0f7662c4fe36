"""The fused step is the step: against torch's functions, the paper's sums, checkpoints, scalers, surgery, capture.

Runs on a GPU where there is one (`make test-gpu`), else through Triton's interpreter; see `fused_device.py`.
"""

import copy
import gc
import importlib.util
import io
import os
import pickle
import subprocess
import sys
import weakref
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import o2nc
from fused_device import (
    CUDA,
    advance,
    agree,
    begin,
    facts,
    identical,
    is_fused,
    needs_cuda,
    needs_triton,
    saved,
    search,
    set_noise,
)
from o2nc import learners
from o2nc.kernels import engine
from o2nc.scaling import uniform
from problem import flat
from twin import averages

# the interpreter computes with numpy, which warns where IEEE arithmetic is meant: min(1, D/0) is 1
pytestmark = pytest.mark.filterwarnings("ignore:(divide by zero|invalid value|overflow) encountered:RuntimeWarning")

INF = float("inf")
LAWS = [o2nc.Exponential(), o2nc.Exponential(2.0), o2nc.Uniform(0, 2), o2nc.Weibull(0.8)]
# programs take chunks of 1024 elements, in blocks of 512
SIZES = [(), (0,), (1,), (3, 5), (511,), (512,), (513,), (1023,), (1024,), (1025,), (2049,), (2, 3, 2, 1)]
FEW = [(3, 2), (), (1025,)]
LEARNERS = [
    learners.OGD(lr=0.05, decay=0.3),
    learners.OGD(lr=0.05, decay=0.3, kappa=2),
    learners.BallOGD(lr=0.05, radius=0.02, decay=0.1),
    learners.BallOGD(lr=0.05, radius=INF),
    learners.FTRL(lr=0.05, decay=0.2),
    learners.FTRL(lr=0.05, decay=0.2, radius=0.1),
    learners.AdaGrad(lr=0.05, decay=0.1),
    learners.AdaGrad(lr=0.05, kappa=2),
    learners.AdaGrad(lr=0.05, decay=0.1, diagonal=True),
    learners.AdaGrad(lr=0.05, kappa=2, diagonal=True),
    learners.ScaleFree(lr=0.05),
    learners.ScaleFree(lr=0.05, radius=0.1),
    learners.ScaleFree(lr=0.05, diagonal=False),
    learners.ScaleFree(lr=0.05, diagonal=False, radius=0.05),
    learners.CoinBetting(wealth=0.5, lipschitz=20.0),
]


def sgdm(params, fused=True, **options):
    """ScaledSGDM by the kernels, or by foreach."""
    engine = {"fused": True} if fused else {"foreach": True}
    return o2nc.ScaledSGDM(params, **({"lr": 0.05} | options), **engine)


def algorithm_2(params, learner, fused=True, **options):
    return o2nc.ExponentiatedO2NC(params, learner, **({"beta": 0.9} | options), fused=fused)


CASES = {
    "momentum": lambda ps, fused=True: sgdm(ps, fused, momentum=0.9, average=0.99, seed=3),
    "shared buffer": lambda ps, fused=True: sgdm(ps, fused, momentum=0.9, average=0.9, weight_decay=0.1),
    "nesterov": lambda ps, fused=True: sgdm(ps, fused, momentum=0.9, nesterov=True, average=0.9),
    "no momentum": lambda ps, fused=True: sgdm(ps, fused, average=0.99, scaling=o2nc.Uniform(0, 2)),
    "no average": lambda ps, fused=True: sgdm(ps, fused, momentum=0.9, dampening=0.5),
    "ogd": lambda ps, fused=True: algorithm_2(ps, LEARNERS[0], fused),
    "ftrl": lambda ps, fused=True: algorithm_2(ps, LEARNERS[5], fused, scaling=o2nc.Weibull(1.2)),
    "adagrad": lambda ps, fused=True: algorithm_2(ps, LEARNERS[6], fused),
    "adam": lambda ps, fused=True: algorithm_2(ps, LEARNERS[10], fused, seed=1),
    "coin": lambda ps, fused=True: algorithm_2(ps, LEARNERS[14], fused),
}


def some(*names):
    """Run a test with some of the cases."""
    return pytest.mark.parametrize("make", [CASES[name] for name in names], ids=names)


cases = some(*CASES)


# ---- ScaledSGDM against torch's functions ----


def sgdm_options(chance):
    momentum = chance.choice([0, 0.6, 0.9])
    nesterov = momentum > 0 and chance.random() < 0.4
    return {
        "lr": chance.choice([0.01, 0.3]),
        "momentum": momentum,
        "dampening": 0 if nesterov else chance.choice([0, 0, 0.5]),
        "weight_decay": chance.choice([0, 0.1]),
        "nesterov": nesterov,
        "maximize": chance.random() < 0.3,
    }


def history(chance, count, groups, options):
    """Draw some steps: who has no gradient, which group's options change to what, whether the step is called off."""
    joins = [chance.choice([1, 1, 3]) for _ in range(count)]
    return [
        (
            [i for i in range(count) if t < joins[i] or chance.random() < 0.2],
            [(k, options(chance)) for k in range(groups) if chance.random() < 0.2],
            chance.random() < 0.15,
        )
        for t in range(1, chance.randint(2, 7))
    ]


def follow(opt, params, events, fused):
    for t, (missing, changes, off) in enumerate(events, 1):
        for k, options in changes:
            opt.param_groups[k].update(options)
        if off and fused:
            call_off(opt, params, t, missing)
        elif not off:
            set_noise(params, t, missing)
            opt.step()
    assert is_fused(opt) == fused or int(opt.param_groups[0]["step"]) == 0
    return opt


@search(60)
def test_sgdm_is_the_foreach_step(device, chance):
    """Any options, sizes, groups, schedules, absent, late and overflown gradients: the same run, and said of it."""
    shapes = [chance.choice(SIZES) for _ in range(chance.randint(1, 3))]
    cut = chance.randint(0, len(shapes) - 1)
    options = [sgdm_options(chance) for _ in range(1 + (cut > 0))]
    average = chance.choice([None, 0.9, 0.6, 0.8])
    law = chance.choice([*LAWS, None] if average else LAWS)
    events = history(chance, len(shapes), len(options), sgdm_options)
    runs = []
    for fused in (True, False):
        params = begin(device, shapes=shapes)
        groups = [{"params": params[cut:], **options[0]}]
        groups += [{"params": params[:cut], **more} for more in options[1:]]
        opt = sgdm(groups, fused, scaling=law, seed=7, average=average)
        runs.append(facts(follow(opt, params, events, fused)))
    agree(*runs)


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("late", [False, True])
def test_nesterov_without_momentum_is_plain(device, average, late):
    """torch refuses it in the constructor, not in a group, and ignores it there; a schedule may end at momentum 0."""
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = sgdm([{"params": params, "nesterov": True, "momentum": 0.9 if late else 0}], fused, average=average)
        advance(opt, params, [1, 2])
        opt.param_groups[0]["momentum"] = 0
        runs.append(facts(advance(opt, params, [3, 4])))
    agree(*runs)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"momentum": 0.9, "weight_decay": 0.1}], ids=str)
def test_sgdm_against_direct_sums(device, law, options):
    """x̄, ḡ, V and the effective sample size are the β-weighted sums of the paper; the progress is Σ w⟨g, Δ⟩."""
    lr, seed, beta, n = 0.05, 5, 0.9, 8
    params = begin(device)
    opt = sgdm(params, lr=lr, scaling=law, seed=seed, average=beta, **options)
    xs, gs, delta, progress = [], [], 0.0, 0.0
    buffer = None
    for t in range(1, n + 1):
        set_noise(params, t)
        x = flat([p.cpu() for p in params])
        g = flat([p.grad.cpu() for p in params]) + options.get("weight_decay", 0) * x
        progress += float(np.sum(law.weight(law.sample(seed, t)) * g * delta))
        xs.append(x)
        gs.append(g)
        opt.step()
        buffer = g if buffer is None else options.get("momentum", 0) * buffer + g
        delta = -lr * buffer
        moved = x + law.sample(seed, t + 1) * delta
        np.testing.assert_allclose(flat([p.cpu() for p in params]), moved, rtol=1e-12, atol=1e-12)
    check_averages(opt, params, xs, gs, beta, law, seed)
    assert opt.progress == pytest.approx(progress, rel=1e-12)


def check_averages(opt, params, xs, gs, beta, law, seed):
    w = [1.0] * len(xs)
    if law is not None and law.reweights:
        w[1:] = [law.weight(law.sample(seed, t)) for t in range(2, len(xs) + 1)]
    x_mean, g_mean, spread, ess = averages(xs, gs, beta, w)
    certificate = opt.certificate()
    average = flat([opt.state[p]["average"].cpu() for p in params])
    np.testing.assert_allclose(average, x_mean, rtol=1e-12, atol=1e-12)
    assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
    assert certificate.spread == pytest.approx(spread, rel=1e-12)
    assert certificate.ess == pytest.approx(ess, rel=1e-12)


# ---- the learners ----


@pytest.mark.parametrize(("law", "average"), [(LAWS[0], True), (LAWS[3], True), (LAWS[2], False)], ids=str)
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_learners_are_the_foreach_ones(device, learner, law, average):
    """Every learner, law and average, with a schedule that rests once, two groups, an absent and a late gradient."""
    schedule, missing = [1.0, 0.5, 0.0, 2.0, 1.0], [[2], [], [0], [], [1]]
    runs = []
    for fused in (True, False):
        params = begin(device, shapes=[(3, 2), (), (5,)])
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 3 * learner.lr}]
        opt = algorithm_2(groups, learner, fused, scaling=law, seed=2, average=average)
        for t, (factor, absent) in enumerate(zip(schedule, missing, strict=True), 1):
            opt.param_groups[0]["lr"] = factor * learner.lr
            opt.param_groups[1]["lr"] = factor * 3 * learner.lr
            set_noise(params, t, absent)
            opt.step()
        assert is_fused(opt) == fused
        runs.append(facts(opt))
    agree(*runs)


@search(45)
def test_algorithm_2_is_the_foreach_step(device, chance):
    """Any learner, law, sizes, groups, schedules, absent, late and overflown gradients."""
    shapes = [chance.choice(SIZES) for _ in range(chance.randint(1, 3))]
    cut = chance.randint(0, len(shapes) - 1)
    learner, law = chance.choice(LEARNERS), chance.choice([*LAWS, None])
    average = chance.random() < 0.7
    events = history(chance, len(shapes), 1 + (cut > 0), lambda chance: {"lr": chance.choice([0, 0.02, 0.1])})
    runs = []
    for fused in (True, False):
        params = begin(device, shapes=shapes)
        groups = [{"params": params[cut:]}, {"params": params[:cut], "lr": 0.3}][: 1 + (cut > 0)]
        opt = algorithm_2(groups, learner, fused, scaling=law, seed=7, average=average)
        runs.append(facts(follow(opt, params, events, fused)))
    agree(*runs)


@pytest.mark.parametrize("law", [*LAWS[1:], None], ids=str)
def test_algorithm_2_against_direct_sums(device, law):
    """x_{t+1} = x_t + s_{t+1}Δ_{t+1}, Δ_{t+1} = β(Δ_t − ηw_t g_t)/(β + ημ + 1 − β), and direct sums."""
    beta, eta, mu, seed, n = 0.9, 0.05, 0.7, 5, 10
    params = begin(device, shapes=[(3, 2), (5,)])
    opt = algorithm_2(params, learners.OGD(lr=eta, decay=mu), beta=beta, scaling=law, seed=seed)
    xs, gs, delta = [], [], 0.0
    for t in range(1, n + 1):
        set_noise(params, t)
        xs.append(flat([p.cpu() for p in params]))
        gs.append(flat([p.grad.cpu() for p in params]))
        opt.step()
        w = law.weight(law.sample(seed, t)) if law is not None and law.reweights and t > 1 else 1.0
        delta = beta * (delta - eta * w * gs[-1]) / (beta + eta * mu + 1 - beta)
        moved = xs[-1] + (1.0 if law is None else law.sample(seed, t + 1)) * delta
        np.testing.assert_allclose(flat([p.cpu() for p in params]), moved, rtol=1e-12, atol=1e-12)
    check_averages(opt, params, xs, gs, beta, law, seed)


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_gradients_of_zero(device, learner):
    """No norm is divided by: zero gradients leave everything at rest, also before the first other one."""
    runs = []
    for fused in (True, False):
        params = begin(device, shapes=[(3,), (2,)])
        opt = algorithm_2(params, learner, fused)
        for t in (0, 1):
            set_noise(params, t, scale=t)
            opt.step()
        runs.append(facts(opt))
    agree(*runs)


# ---- dtypes ----


@some("momentum", "nesterov", "adam", "coin")
def test_float32_is_near_float64(device, make):
    """Eight steps in float32 stay within 1e-5 of those in float64."""
    runs = [facts(advance(make(ps), ps, range(1, 9))) for ps in (begin(device, torch.float32), begin(device))]
    agree(*runs, tolerance=1e-5)


def ulps(a, b):
    """The distance of a from b, in units of b's dtype at b, or at 1 where b is smaller."""
    unit = torch.finfo(b.dtype).eps * b.double().abs().clamp(min=1.0)
    return ((a.double() - b.double()).abs() / unit).max().item()


def stored(x, dtype):
    """A float32 rounded to the nearest; Triton's interpreter cuts it off instead where that is bfloat16."""
    if dtype == torch.bfloat16 and not CUDA:
        x = (x.view(torch.int32) & -65536).view(torch.float32)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("nesterov", [False, True])
def test_half_precision_rounds_where_it_is_stored(device, dtype, nesterov):
    """Parameter and buffer are rounded when they are stored; arithmetic, x̄ and ḡ are float32."""
    lr, momentum, decay, beta, seed = 0.05, 0.9, 0.01, 0.9, 4
    params = begin(device, dtype, shapes=[(1025,)])
    opt = sgdm(params, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov, average=beta, seed=seed)
    x = params[0].detach().cpu().clone()
    buffer = torch.zeros_like(x)
    x_mean, g_mean, total = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(x, dtype=torch.float32), 0.0
    for t in range(1, 9):
        set_noise(params, t)
        d = params[0].grad.cpu().float() + decay * x.float()
        total = 1 + beta * total
        x_mean += (x.float() - x_mean) / total
        g_mean += (d - g_mean) / total
        m = momentum * buffer.float() + d
        direction = d + momentum * m if nesterov else m
        x = x.float() - lr * o2nc.Exponential().sample(seed, t + 1) * direction
        x, buffer = stored(x, dtype), stored(m, dtype)
        opt.step()
    state = opt.state[params[0]]
    assert is_fused(opt)
    assert state["momentum_buffer"].dtype == dtype
    assert state["average"].dtype == state["gradient"].dtype == state["output"].dtype == torch.float32
    assert ulps(params[0].detach().cpu(), x) <= 2
    assert ulps(state["momentum_buffer"].cpu(), buffer) <= 2
    torch.testing.assert_close(state["average"].cpu(), x_mean, rtol=1e-3, atol=torch.finfo(dtype).eps)
    torch.testing.assert_close(state["gradient"].cpu(), g_mean, rtol=1e-3, atol=1e-3)
    # a flip here and there, no drift
    assert abs((params[0].detach().cpu().double() - x.double()).mean()) < 0.05 * torch.finfo(dtype).eps


MIXED = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float32]


def mixed(device):
    return [begin(device, dtype, shapes=[(i + 2,)])[0] for i, dtype in enumerate(MIXED)]


@some("momentum", "nesterov", "adam")
def test_mixed_dtypes_do_not_mix(device, make):
    """Without a joint norm every parameter moves as if it were alone, to the bit."""
    together, alone = mixed(device), mixed(device)
    ours, single = make(together), [make([p]) for p in alone]
    for t in (1, 2, 3):
        for ps in (together, alone):
            set_noise(ps, t)
        for opt in (ours, *single):
            opt.step()
    for p, q, opt in zip(together, alone, single, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(ours.state[p]["average"], opt.state[q]["average"])
        assert ours.state[p]["average"].dtype == torch.promote_types(p.dtype, torch.float32)


def test_mixed_dtypes_share_a_joint_norm(device):
    runs = []
    for fused in (True, False):
        params = mixed(device)[:2]
        runs.append(facts(advance(algorithm_2(params, LEARNERS[13], fused), params, range(1, 6))))
    agree(*runs, tolerance=1e-6)


# ---- memory ----


def permuted(kind, device):
    """A parameter that does not lie row by row, and the memory around it."""
    if kind == "channels last":
        base = torch.randn(2, 3, 4, 5, dtype=torch.float64, device=device).to(memory_format=torch.channels_last)
        return torch.nn.Parameter(base), base
    if kind == "transposed":
        base = torch.randn(7, 40, dtype=torch.float64, device=device)
        return torch.nn.Parameter(base.t()), base
    base = torch.randn(6, 50, dtype=torch.float64, device=device)
    return torch.nn.Parameter(base[1:, ::2]), base  # with gaps


def laid_out(value, kind, like):
    """The same gradient with other strides or another alignment."""
    if kind == "like the parameter":
        return torch.empty_like(like).copy_(value)
    if kind == "contiguous":
        return value.clone()
    if kind == "offset":
        room = torch.empty(value.numel() + 1, dtype=value.dtype, device=value.device)
        return room[1:].view(value.shape).copy_(value)
    return value[(slice(0, 1),) * value.dim()].expand(value.shape)


GRADIENTS = ["like the parameter", "contiguous", "offset", "expanded"]


@pytest.mark.parametrize("kind", ["channels last", "transposed", "gaps"])
@pytest.mark.parametrize("gradient", GRADIENTS)
@some("shared buffer", "coin")
def test_memory_order(device, kind, gradient, make):
    """Strides of parameter and gradient do not matter, gaps are left alone, state lies as its parameter does."""
    p, base = permuted(kind, device)
    q = torch.nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format))
    gaps = torch.ones_like(base, dtype=torch.bool)
    if kind == "gaps":
        gaps[1:, ::2] = False
    before = base.clone()
    strides = p.stride()
    ours, theirs = make([p]), make([q], False)
    for t in (1, 2, 3):
        set_noise([q], t)
        value = laid_out(q.grad, gradient, p)
        p.grad, q.grad = value, value.contiguous()
        ours.step()
        theirs.step()
    agree(facts(ours), facts(theirs))
    assert p.stride() == strides
    if kind == "gaps":
        assert torch.equal(base[gaps], before[gaps])
    else:
        for key in ("momentum_buffer", "delta", "momentum", "average", "gradient", "output"):
            if key in ours.state[p]:
                assert ours.state[p][key].stride() == strides, key


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_unaligned_memory(device, dtype):
    """Parameters and gradients may begin at any element of an allocation."""
    runs = []
    for offset in (0, 1, 3):
        room = torch.zeros(1030, dtype=dtype, device=device)
        room[offset : offset + 1026] = begin(device, dtype, shapes=[(1026,)])[0].detach()
        p = torch.nn.Parameter(room[offset : offset + 1026])
        opt = CASES["momentum"]([p])
        for t in (1, 2):
            set_noise([p], t)
            p.grad = torch.cat([p.grad.new_zeros(offset), p.grad])[offset:]
            opt.step()
        assert p.data_ptr() == room[offset:].data_ptr()
        runs.append(facts(opt))
    agree(runs[0], runs[1], tolerance=0)
    agree(runs[0], runs[2], tolerance=0)


def test_a_gradient_that_changes_its_strides_in_place(device):
    """The same memory read in another order, by a tensor that may be the same object to Python: a new gradient."""
    runs = []
    for fused in (True, False):
        (p,) = begin(device, shapes=[(6, 6)])
        room = torch.empty(36, dtype=p.dtype, device=device)
        opt = CASES["momentum"]([p], fused)
        for t in range(1, 7):
            p.grad = None
            view = room.view(6, 6) if t % 2 else room.as_strided((6, 6), (1, 6))
            generator = torch.Generator().manual_seed(t)
            p.grad = view.copy_(torch.randn(6, 6, dtype=p.dtype, generator=generator))
            del view
            opt.step()
        runs.append(facts(opt))
    agree(*runs)


# ---- s on the device ----


def drawn(device, law, seed, step):
    """The s of one step: at lr 1 from 0 against the gradient −1 it is where the parameter arrives."""
    p = torch.nn.Parameter(torch.zeros((), dtype=torch.float64, device=device))
    opt = sgdm([p], lr=1.0, scaling=law, seed=seed)
    opt.param_groups[0]["step"] = step - 2
    p.grad = -torch.ones_like(p)
    opt.step()
    assert int(opt.param_groups[0]["step"]) == step - 1
    return p.item()


SEEDS = [0, 1, 12345, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**200 + 7]
STEPS = [2, 3, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**33 + 5, 2**53 + 1, 2**62]


@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_numbers_are_the_hosts_to_the_bit(device, seed):
    for step in STEPS if seed in (0, 2**63) else STEPS[:3]:
        assert drawn(device, o2nc.Uniform(0, 1), seed, step) == uniform(seed, step)


@pytest.mark.parametrize("seed", [0, 2**63])
def test_s_is_the_hosts_up_to_a_logarithm(device, seed):
    """Exp within one unit in the last place; Weibull, which takes a power, within 1e-14."""
    for step in range(2, 12):
        s = o2nc.Exponential().sample(seed, step)
        assert abs(drawn(device, o2nc.Exponential(), seed, step) - s) <= np.spacing(s)
        s = o2nc.Weibull(0.8).sample(seed, step)
        assert drawn(device, o2nc.Weibull(0.8), seed, step) == pytest.approx(s, rel=1e-14)


# ---- a GradScaler ----


def call_off(opt, params, t, missing=()):
    """Step with an overflow, as a GradScaler calls it off."""
    set_noise(params, t, missing, scale=INF)
    opt.found_inf, opt.grad_scale = (torch.tensor([v], device=params[0].device) for v in (1.0, 1024.0))
    opt.step()
    del opt.found_inf, opt.grad_scale


@cases
@pytest.mark.parametrize("first", [1, 3])
def test_a_step_called_off_changes_nothing(device, make, first):
    """Not parameters, state, counters or certificate; and afterwards the run goes on as if nothing had been."""
    params, others = begin(device), begin(device)
    opt, plain = make(params), make(others)
    advance(opt, params, range(1, first))
    before, said = saved(opt), facts(opt)
    for t in (7, 8):
        call_off(opt, params, t)
    identical(saved(opt), before)
    agree(facts(opt), said, tolerance=0)
    advance(opt, params, range(first, 4))
    advance(plain, others, range(1, 4))
    agree(facts(opt), facts(plain), tolerance=0)


@cases
def test_a_parameter_that_joins_in_a_step_called_off(device, make):
    """It has not joined: not in the certificate, not in the checkpoint; later it joins as any other."""
    params, others = begin(device), begin(device)
    opt, plain = make(params), make(others)
    for run, ps in ((opt, params), (plain, others)):
        for t in (1, 2):
            set_noise(ps, t, missing=[0])
            run.step()
    before, said = saved(opt), facts(opt)
    call_off(opt, params, 9)
    identical(saved(opt), before)
    agree(facts(opt), said, tolerance=0)
    for t, missing in enumerate(([0], [], [1]), 3):
        for run, ps in ((opt, params), (plain, others)):
            run.param_groups[0]["lr"] = 0.1 / t
            set_noise(ps, t, missing)
            run.step()
        agree(facts(opt), facts(plain), tolerance=0)


def test_momentum_that_begins_after_a_step_called_off(device):
    runs = []
    for overflow in (True, False):
        params = begin(device)
        opt = sgdm(params, average=0.9)
        set_noise(params, 1, missing=[0])
        opt.step()
        if overflow:
            call_off(opt, params, 9)
        opt.param_groups[0]["momentum"] = 0.8
        runs.append(facts(advance(opt, params, [2, 3])))
    agree(*runs, tolerance=0)


@cases
def test_a_scaled_step_is_the_unscaled_one(device, make):
    """To the bit, for a scale that is a power of two; with grad_scale None the gradients are unscaled already."""
    runs = []
    for scale in (None, 1024.0):
        params = begin(device)
        opt = make(params)
        for t in (1, 2, 3):
            set_noise(params, t, scale=scale or 1.0)
            given = [p.grad.clone() for p in params]
            opt.found_inf = torch.zeros((), device=device)
            opt.grad_scale = None if scale is None else torch.tensor(scale, device=device)
            opt.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(params, given, strict=True))
        runs.append(facts(opt))
    params = begin(device)
    runs.append(facts(advance(make(params), params, (1, 2, 3))))
    for run in runs[1:]:
        agree(run, runs[0], tolerance=0)


@some("shared buffer", "nesterov", "adam", "coin")
def test_a_checkpoint_after_only_overflows(device, make):
    """Loads, and continues as a run from the start."""
    params, others = begin(device), begin(device)
    opt = make(params)
    call_off(opt, params, 1)
    resumed, plain = make(params), make(others)
    resumed.load_state_dict(opt.state_dict())
    advance(resumed, params, (1, 2))
    advance(plain, others, (1, 2))
    agree(facts(resumed), facts(plain), tolerance=0)


@cases
def test_grad_scaler(device, make):
    """torch's own GradScaler, with an overflow first, in the middle, and a growing scale."""
    runs = []
    for fused in (True, False):
        params = begin(device, torch.float32)
        opt = make(params, fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scaler.scale(torch.zeros((), device=device))  # makes the scale
        for t in range(1, 8):
            set_noise(params, t, missing=[1] if t == 5 else [], scale=scaler.get_scale())
            if t in (1, 4):
                params[0].grad.view(-1)[2] = INF
            scaler.step(opt)
            scaler.update()
        assert int(opt.param_groups[0]["step"]) == 5
        assert is_fused(opt) == fused
        runs.append(facts(opt))
    agree(*runs, tolerance=1e-5)


# ---- what survives ----


def through_a_file(opt, params, make):
    """Parameters and optimizer anew, from a checkpoint written and read."""
    file = io.BytesIO()
    torch.save({"params": params, "opt": opt.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    params = [torch.nn.Parameter(p) for p in checkpoint["params"]]
    opt = make(params)
    opt.load_state_dict(checkpoint["opt"])
    return opt, params


SURVIVALS = {
    "checkpoint": through_a_file,
    "deepcopy": lambda opt, params, make: copy.deepcopy((opt, params)),
    "pickle": lambda opt, params, make: pickle.loads(pickle.dumps((opt, params))),
}


@pytest.mark.parametrize("survive", SURVIVALS.values(), ids=SURVIVALS)
@cases
def test_a_copy_continues_to_the_bit(device, make, survive):
    params = begin(device)
    opt = advance(make(params), params, (1, 2))
    resumed, copies = survive(opt, params, make)
    advance(opt, params, (3, 4))
    advance(resumed, copies, (3, 4))
    assert is_fused(resumed)
    agree(facts(resumed), facts(opt), tolerance=0)
    identical(saved(resumed), saved(opt))


@cases
def test_a_checkpoint_holds_plain_numbers(device, make):
    """The same entries as without kernels, of the same types."""
    params, others = begin(device), begin(device)
    ours = advance(make(params), params, (1, 2)).state_dict()
    theirs = advance(make(others, False), others, (1, 2)).state_dict()
    for a, b in zip(ours["param_groups"], theirs["param_groups"], strict=True):
        assert {k: type(v) for k, v in a.items() if k not in ("fused", "foreach")} == {
            k: type(v) for k, v in b.items() if k not in ("fused", "foreach")
        }
    for i, state in ours["state"].items():
        assert "fresh" not in state
        for key in state.keys() & theirs["state"][i].keys():
            assert type(state[key]) is type(theirs["state"][i][key]), key
    assert ours["param_groups"][0]["step"] == 2


def switch(opt, fused):
    """Choose for the steps to come."""
    for group in opt.param_groups:
        group["fused"] = fused
        if isinstance(opt, o2nc.ScaledSGDM):
            group["foreach"] = None if fused else True


@cases
@pytest.mark.parametrize("fused", [True, False])
def test_checkpoints_go_between_the_two(device, make, fused):
    """Begun with kernels and continued without, or the other way round: the run without."""
    params, others = begin(device), begin(device)
    opt = advance(make(params, fused), params, (1, 2))
    resumed = make(params, not fused)
    resumed.load_state_dict(opt.state_dict())
    switch(resumed, not fused)
    plain = advance(make(others, False), others, (1, 2, 3, 4))
    agree(facts(advance(resumed, params, (3, 4))), facts(plain))
    assert is_fused(resumed) != fused


@cases
def test_falling_back_in_the_middle_is_resuming(device, make):
    """From the same state on, to the bit; and back again."""
    params, others = begin(device), begin(device)
    opt = advance(make(params), params, (1, 2))
    advance(make(others), others, (1, 2))
    resumed = make(others, False)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch would share the momentum buffers
    for fused in (False, True):
        for run, ps in ((opt, params), (resumed, others)):
            switch(run, fused)
            advance(run, ps, (3, 4) if not fused else (5,))
            assert is_fused(run) == fused
        agree(facts(opt), facts(resumed), tolerance=0)


@pytest.mark.parametrize("fused", [None, True])
def test_a_checkpoint_that_never_heard_of_fused(device, fused):
    """One that was written before there was a fused step."""
    params = begin(device)
    checkpoint = advance(algorithm_2(params, LEARNERS[0], False), params, [1]).state_dict()
    for group in checkpoint["param_groups"]:
        del group["fused"]
    resumed = algorithm_2(params, LEARNERS[0], fused)
    resumed.load_state_dict(checkpoint)
    advance(resumed, params, [2])
    assert int(resumed.param_groups[0]["step"]) == 2


@pytest.mark.parametrize(
    ("before", "after"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
@some("momentum", "adam", "coin")
def test_a_checkpoint_of_another_dtype(device, make, before, after):
    """State of another width than the parameter's is read as what it is."""
    params = begin(device, before)
    checkpoint = advance(make(params), params, (1, 2)).state_dict()
    runs = []
    for fused in (True, False):
        params = begin(device, after)
        opt = make(params)
        opt.load_state_dict(copy.deepcopy(checkpoint))
        switch(opt, fused)
        runs.append(facts(advance(opt, params, (3, 4))))
    agree(*runs, tolerance=1e-5)


@some("shared buffer", "adam")
def test_averaged_restores_to_the_bit(device, make):
    params = begin(device, torch.float32)
    opt = advance(make(params), params, (1, 2))
    before = [p.detach().clone() for p in params]
    with opt.averaged():
        assert all(torch.equal(p, opt.state[p]["average"]) for p in params)
        with pytest.raises(RuntimeError, match=r"inside averaged\(\)"):
            opt.step()
    assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))
    others = begin(device, torch.float32)
    agree(facts(advance(opt, params, [3])), facts(advance(make(others), others, (1, 2, 3))), tolerance=0)


# ---- how it is chosen ----


@dataclass(frozen=True)
class Constant:
    """A law of one's own: s = 1."""

    reweights = False

    def sample(self, seed, step):
        return 1.0

    def weight(self, s):
        return 1.0


@dataclass(frozen=True)
class SignMomentum:
    """A learner of one's own."""

    lr: float = 0.01

    def init(self, delta):
        return {"momentum": torch.zeros_like(delta)}

    def update(self, deltas, grads, states, lrs, beta):
        for delta, g, state, lr in zip(deltas, grads, states, lrs, strict=True):
            state["momentum"].mul_(beta).add_(g)
            delta.copy_(-lr * state["momentum"].sign())


CHOICES = [
    ({}, True),
    ({"fused": True}, True),
    ({"fused": False}, False),
    ({"foreach": True}, False),
    ({"foreach": False}, False),
    ({"differentiable": True}, False),
    ({"scaling": None}, False),
    ({"scaling": None, "average": 0.9}, False),
    ({"scaling": None, "fused": True}, False),
    ({"scaling": None, "fused": True, "average": 0.9}, True),
    ({"average": 0.9}, True),
]


@pytest.mark.parametrize(("arguments", "fused"), CHOICES, ids=str)
def test_how_sgdm_chooses(device, arguments, fused):
    """None takes the fused step where it applies; scaling=None is torch's own unless both are asked for."""
    params = begin(device)
    if "differentiable" in arguments:  # autograd refuses an in-place step on a leaf
        params = [p.clone() for p in params]
    opt = o2nc.ScaledSGDM(params, momentum=0.9, **arguments)
    set_noise(params, 1)
    opt.step()
    assert is_fused(opt) == fused


@pytest.mark.parametrize("fused", [None, True, False])
def test_how_algorithm_2_chooses(device, fused):
    params = begin(device)
    assert is_fused(advance(algorithm_2(params, LEARNERS[0], fused), params, [1])) == (fused is not False)
    with pytest.raises(TypeError, match="fused"):
        algorithm_2(params, LEARNERS[0], fused="yes")


@pytest.mark.parametrize("arguments", [{}, {"average": 0.9}, {"fused": True}], ids=str)
def test_without_scaling_it_is_sgd_to_the_bit(device, arguments):
    ours, theirs = begin(device, torch.float32), begin(device, torch.float32)
    a = o2nc.ScaledSGDM(ours, momentum=0.9, scaling=None, **arguments)
    b = torch.optim.SGD(theirs, momentum=0.9, fused=arguments.get("fused"))
    for t in (1, 2, 3):
        for opt, params in ((a, ours), (b, theirs)):
            set_noise(params, t)
            opt.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_without_scaling_the_averages_are_the_same(device):
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = sgdm(params, fused, momentum=0.9, scaling=None, average=0.9)
        runs.append(facts(advance(opt, params, (1, 2, 3))))
    agree(*runs)


REFUSALS = {
    "complex parameters": ("complex", lambda ps, fused: o2nc.ScaledSGDM(ps, fused=fused)),
    "Gamma": ("law Gamma", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=o2nc.Gamma(0.5), fused=fused)),
    "a law of one's own": ("law Constant", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=Constant(), fused=fused)),
    "Gamma in Algorithm 2": (
        "law Gamma",
        lambda ps, fused: algorithm_2(ps, LEARNERS[0], fused, scaling=o2nc.Gamma(0.5)),
    ),
    "a learner of one's own": ("learner", lambda ps, fused: algorithm_2(ps, SignMomentum(), fused)),
}


@pytest.mark.parametrize(("reason", "make"), REFUSALS.values(), ids=REFUSALS)
def test_what_has_no_device_form(device, reason, make):
    """fused=True says why, and nothing has changed; fused=None does without."""
    dtype = torch.complex128 if reason == "complex" else torch.float64
    params, others, before = (begin(device, dtype) for _ in range(3))
    demanding = make(params, True)
    set_noise(params, 1)
    with pytest.raises(RuntimeError, match=f"fused=True, but the fused step cannot be taken: .*{reason}"):
        demanding.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert demanding.param_groups[0]["step"] == 0
    willing, plain = make(params, None), make(others, False)
    for opt, ps in ((willing, params), (plain, others)):
        advance(opt, ps, (1, 2, 3))
        assert not is_fused(opt)
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_some_parameters_elsewhere(monkeypatch):
    if not CUDA:
        monkeypatch.setattr(engine, "DEVICES", ("cuda", "cpu"))
    here, elsewhere = ("cuda", "cpu") if CUDA else ("cpu", "meta")
    params = [torch.nn.Parameter(torch.ones(3, device=place)) for place in (here, elsewhere)]
    for make in (CASES["momentum"], CASES["adam"]):
        opt = make(params)
        for p in params:
            p.grad = torch.ones_like(p)
        with pytest.raises(RuntimeError, match=f"some parameters are on {elsewhere}"):
            opt.step()
        assert torch.equal(params[0], torch.ones_like(params[0]))


def test_a_processor_is_no_gpu():
    """fused=True of Algorithm 2 says so where there is no GPU; ScaledSGDM has torch's own fused step there."""
    params = begin("cpu")
    opt = algorithm_2(params, LEARNERS[0])
    set_noise(params, 1)
    with pytest.raises(RuntimeError, match="cpu"):
        opt.step()
    assert not is_fused(advance(sgdm(params, momentum=0.9), params, [1]))
    assert not is_fused(advance(algorithm_2(params, LEARNERS[0], None), params, [1]))


def test_without_triton(monkeypatch):
    if not CUDA:
        monkeypatch.setattr(engine, "DEVICES", ("cuda", "cpu"))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "triton" else find(name, *a))
    params, others = begin("cuda" if CUDA else "cpu"), begin("cuda" if CUDA else "cpu")
    for make in (CASES["momentum"], CASES["adam"]):
        opt = make(params)
        set_noise(params, 1)
        with pytest.raises(RuntimeError, match=r"Triton, which is not installed \(pip install triton\)"):
            opt.step()
    advance(o2nc.ScaledSGDM(params, momentum=0.9), params, (1, 2))
    advance(o2nc.ScaledSGDM(others, momentum=0.9, foreach=True), others, (1, 2))
    agree(*({str(i): p.detach() for i, p in enumerate(ps)} for ps in (params, others)))


def test_a_triton_that_is_too_old(device, monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.2.0")
    params = begin(device)
    set_noise(params, 1)
    with pytest.raises(RuntimeError, match=r"needs Triton 3\.3 or later, and 3\.2\.0 is installed"):
        CASES["momentum"](params).step()


@some("momentum", "adam")
@pytest.mark.parametrize("first", [1, 3])
def test_sparse_gradients_are_refused(device, make, first):
    """With the usual message, and nothing has changed."""
    params = begin(device)
    opt = advance(make(params), params, range(1, first))
    before, there = saved(opt), [p.detach().clone() for p in params]
    set_noise(params, 9)
    params[0].grad = params[0].grad.to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        opt.step()
    identical(saved(opt), before)
    assert all(torch.equal(p, x) for p, x in zip(params, there, strict=True))
    others = begin(device)
    advance(opt, params, range(first, 5))
    agree(facts(opt), facts(advance(make(others), others, range(1, 5))), tolerance=0)


@cases
@pytest.mark.parametrize("first", [1, 3])
def test_a_step_without_any_gradient_changes_nothing(device, make, first):
    params = begin(device)
    opt = advance(make(params), params, range(1, first))
    before, said = saved(opt), facts(opt)
    opt.zero_grad()
    opt.step()
    identical(saved(opt), before)
    agree(facts(opt), said, tolerance=0)


def test_a_closure(device):
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = CASES["momentum"](params, fused)

        def closure():
            opt.zero_grad()  # noqa: B023
            loss = sum((p**2).sum() for p in params)  # noqa: B023
            loss.backward()
            return loss

        assert all(opt.step(closure).requires_grad for _ in range(3))
        runs.append(facts(opt))
    agree(*runs)


# ---- the tables ----


def test_new_values_need_nothing_new(device, counted):
    """Gradients written in place: the tables stay, and nothing is uploaded."""
    params = begin(device)
    opt = CASES["momentum"](params)
    set_noise(params, 1)
    for _ in range(4):
        for p in params:
            p.grad.mul_(0.5)
        opt.step()
    assert counted == {"layouts": 1, "uploads": 1}


@some("momentum", "no momentum", "coin")
def test_new_addresses_and_rates_are_uploaded(device, counted, make):
    """Gradients elsewhere, another lr, a parameter without a gradient: the tables stay."""
    params = begin(device)
    opt = make(params)
    kept = []
    for t in (1, 2, 3):
        set_noise(params, t)
        kept += [p.grad for p in params]
        opt.step()
    assert counted == {"layouts": 1, "uploads": 3}
    for rate in (0.3, 0.2):
        opt.param_groups[0]["lr"] = rate
        opt.step()
    assert counted == {"layouts": 1, "uploads": 5}
    params[0].grad = None
    opt.step()
    assert counted == {"layouts": 1, "uploads": 6}


def reset_buffers(opt, params):
    for p in params:
        opt.state[p]["momentum_buffer"] = torch.zeros_like(p)


def forget_buffer(opt, params):
    opt.state[params[0]]["momentum_buffer"] = None


def move_data(opt, params):
    for p in params:
        p.data = p.data.clone()


def reorder_data(opt, params):
    params[0].data = params[0].data.t().contiguous().t()


def add_group(opt, params):
    params.append(begin(params[0].device, shapes=[(7,)])[0])
    opt.add_param_group({"params": [params[-1]], "lr": 0.2})


def replace_parameter(opt, params, grow=0):
    """Put another parameter into the group and hand its state on, as splatting code does."""
    old = params[0]
    state = opt.state.pop(old)
    new = params[0] = torch.nn.Parameter(torch.cat([old.detach(), old.detach()[:grow] + 1]))
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == old.shape:
            state[key] = torch.cat([value, torch.zeros_like(value[:grow])])
    opt.state[new] = state
    opt.param_groups[0]["params"][0] = new


def grow_parameter(opt, params):
    replace_parameter(opt, params, grow=2)


def load_own(opt, params):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


def forget_state(opt, params):
    opt.state = defaultdict(dict)


def forget_one(opt, params):
    del opt.state[params[1]]


def reset_average(opt, params):
    for p in params:
        opt.state[p]["average"] = p.detach().clone()


def reset_gradient(opt, params):
    for p in params:
        opt.state[p]["gradient"] = torch.zeros_like(p)


def remove_parameter(opt, params):
    opt.param_groups[0]["params"].pop()


def narrow(opt, params):
    for p in params:
        p.grad = None
        p.data = p.data.float()


SURGERIES = [
    *(reset_buffers, forget_buffer, move_data, reorder_data, add_group, replace_parameter, grow_parameter),
    *(load_own, forget_state, forget_one, reset_average, reset_gradient, remove_parameter, narrow),
]


@pytest.mark.parametrize("surgery", SURGERIES, ids=lambda f: f.__name__)
def test_surgery_between_steps(device, counted, surgery):
    """Whatever is done to parameters, groups and state by hand: laid out again, with the result of foreach."""
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = advance(sgdm(params, fused, momentum=0.9, average=0.99), params, (1, 2))
        assert counted["layouts"] == 1
        surgery(opt, params)
        advance(opt, params, (3, 4))
        if fused:
            assert is_fused(opt)
            assert counted["layouts"] == 2
        runs.append(facts(opt))
        counted["layouts"] = 1
    agree(*runs, tolerance=1e-5 if surgery is narrow else 1e-12)


@pytest.mark.parametrize("key", ["delta", "momentum", "sum_squares", "output"])
def test_surgery_on_a_learners_state(device, counted, key):
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = advance(CASES["adam"](params, fused), params, (1, 2))
        for p in params:
            opt.state[p][key] = torch.full_like(opt.state[p][key], 0.25)
        runs.append(facts(advance(opt, params, (3, 4))))
    agree(*runs)


def test_surgery_where_only_some_have_a_buffer(device):
    """A momentum buffer reset by hand is seen also where the first parameter has none."""
    runs = []
    for fused in (True, False):
        params = begin(device, torch.float32, shapes=[(3,)]) + begin(device, shapes=[(4,)])
        groups = [{"params": params[:1], "momentum": 0}, {"params": params[1:], "momentum": 0.9}]
        opt = advance(sgdm(groups, fused, average=0.99), params, (1, 2))
        reset_buffers(opt, params[1:])
        runs.append(facts(advance(opt, params, (3, 4))))
    agree(*runs, tolerance=1e-6)


def truncate(opt, params):
    params[2].data = params[2].data[:1000]


def transpose(opt, params):
    params[0].data = params[0].data.t()


@pytest.mark.parametrize("surgery", [truncate, transpose])
def test_another_parameter_at_the_same_address(device, surgery):
    """The same memory in another shape or order is laid out again; state that does not fit it is refused."""
    params = begin(device, shapes=[(6, 6), (), (1025,)])
    opt = advance(sgdm(params, momentum=0.9, average=0.99), params, (1, 2))
    whole = params[2].data
    surgery(opt, params)
    before = whole.clone()
    if surgery is truncate:
        set_noise(params, 3)
        with pytest.raises(ValueError, match=r"'momentum_buffer' has shape \(1025,\), its parameter has \(1000,\)"):
            opt.step()
        assert torch.equal(whole, before)
        return
    others = begin(device, shapes=[(6, 6), (), (1025,)])
    plain = advance(sgdm(others, False, momentum=0.9, average=0.99), others, (1, 2))
    surgery(plain, others)
    agree(facts(advance(opt, params, (3, 4))), facts(advance(plain, others, (3, 4))))


def test_a_checkpoint_in_another_order(device):
    params = begin(device, shapes=[(8,), (4000,)])
    saved_state = advance(sgdm(params, momentum=0.9), params, (1, 2)).state_dict()
    params.reverse()
    opt = sgdm(params, momentum=0.9)
    opt.load_state_dict(saved_state)
    set_noise(params, 3)
    with pytest.raises(ValueError, match="are they in another order"):
        opt.step()


@pytest.mark.parametrize("key", ["weight_sum", "step"])
def test_counters_set_by_hand(device, key):
    runs = []
    for fused in (True, False):
        params = begin(device)
        opt = advance(CASES["momentum"](params, fused), params, (1, 2))
        for group in opt.param_groups:
            group[key] = 0 if key == "step" else 0.5
        runs.append(facts(advance(opt, params, (3, 4))))
    agree(*runs)


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_a_nan_is_not_hidden(device, learner):
    """A joint norm that is not a number spoils every tensor, as it does by foreach."""
    runs = []
    for fused in (True, False):
        params = begin(device, shapes=[(3,), (4,)])
        opt = algorithm_2(params, learner, fused, average=False)
        for t in (1, 2, 3):
            set_noise(params, t)
            if t == 2:
                params[1].grad.fill_(float("nan"))
            opt.step()
        runs.append([p.detach().isfinite() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


# ---- gradients and learning rates ----


@cases
def test_gradients_are_read_only(device, make):
    params = begin(device)
    opt = make(params)
    for t in (1, 2, 3):
        set_noise(params, t)
        given = [(p.grad, p.grad.clone(), p.grad._version) for p in params]
        opt.step()
        for p, (g, value, version) in zip(params, given, strict=True):
            assert p.grad is g
            assert torch.equal(g, value)
            assert g._version == version


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_are_let_go(device, kind):
    """zero_grad frees them: nothing else holds on to a gradient or its memory."""
    (p,) = begin(device, shapes=[(6, 5)])
    opt = CASES["momentum"]([p])
    for t in (1, 2, 3):
        set_noise([p], t)
        p.grad = laid_out(p.grad, kind, p)
        held = weakref.ref(p.grad)
        opt.step()
        opt.zero_grad()
        gc.collect()
        assert held() is None


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("on", ["cpu", *(["cuda"] if CUDA else [])])
@some("shared buffer", "no momentum", "adam")
def test_lr_as_a_tensor(device, make, on, shape):
    """It is read at every step."""
    params, others = begin(device), begin(device)
    opt, plain = make(params), make(others)
    lr = torch.zeros(shape, dtype=torch.float64, device=on)
    opt.param_groups[0]["lr"] = lr
    for t, rate in enumerate((0.3, 0.2, 0.2, 0.0, 0.1), 1):
        lr.fill_(rate)
        plain.param_groups[0]["lr"] = rate
        for run, ps in ((opt, params), (plain, others)):
            set_noise(ps, t)
            run.step()
    assert is_fused(opt)
    agree(facts(opt), facts(plain), tolerance=0)


def test_a_tensor_rate_replaced_by_zero(device):
    """Zero is a number like any other: what the tensor held before is not left in its place."""
    (p,) = begin(device, shapes=[(5,)])
    opt = sgdm([p], lr=torch.tensor(0.1, device=device), momentum=0.9)
    p.grad = torch.ones_like(p)
    opt.step()
    opt.param_groups[0]["lr"] = 0.0
    before = p.detach().clone()
    opt.step()
    assert torch.equal(p, before)


@cases
def test_a_run_repeats_to_the_bit(device, make):
    runs = []
    for _ in range(2):
        params = begin(device, torch.float32, shapes=[(2049,), (3,)])
        runs.append(facts(advance(make(params), params, (1, 2, 3))))
    agree(*runs, tolerance=0)


@pytest.mark.parametrize(
    "count", [129, pytest.param(5_000, marks=needs_cuda), pytest.param(20_000, marks=needs_cuda)]
)
@some("shared buffer", "coin")
def test_many_tensors(device, count, make):
    """More than are settled at a time."""
    runs = []
    for fused in (True, False):
        params = [torch.nn.Parameter(v.clone()) for v in torch.ones(count, 3, dtype=torch.float64, device=device)]
        opt = make(params, fused)
        for t in (1, 2) if CUDA else (1,):
            noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(t), dtype=torch.float64).to(device)
            for p, g in zip(params, noise, strict=True):
                p.grad = g.clone()
            opt.step()
        certificate = opt.certificate()
        found = {"x": torch.stack([p.detach() for p in params]), "progress": torch.tensor(opt.progress)}
        found |= {k: torch.tensor(getattr(certificate, k)) for k in ("gradient", "spread", "ess")}
        runs.append(found)
    agree(*runs)


# ---- compiling ----


@needs_triton
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    """Every kernel with every rule, law and dtype, for compute capability 9.0."""
    here = Path(__file__).parent
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_DEFAULT_FP_FUSION": "1"}
    command = [sys.executable, str(here / "compile_kernels.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *names, count = done.stdout.split()
    assert names == ["close_kernel", "measure_kernel", "open_kernel", "step_kernel", "total_kernel"]
    assert int(count) > 60


# ---- on a GPU only ----


def kinked_loss(params, targets):
    """Non-smooth, with gradients that depend on where the parameters are."""
    return sum((p - t).abs().sum() + (0.5 * torch.sin(3 * p)).sum() for p, t in zip(params, targets, strict=True))


def train(opt, params, targets):
    opt.zero_grad(set_to_none=True)
    kinked_loss(params, targets).backward()
    opt.step()


def capture(opt, params, targets):
    """One training step as a graph, with gradients allocated inside it."""
    graph = torch.cuda.CUDAGraph()
    opt.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        train(opt, params, targets)
    return graph


def warm_up(opt, params, targets):
    """The eager steps before a capture, on a side stream as torch asks."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            train(opt, params, targets)
    torch.cuda.current_stream().wait_stream(stream)


def capturable(make):
    """Parameters, their optimizer with lr on the device, and two sets of targets."""
    params = begin("cuda", torch.float32, shapes=FEW)
    opt = make(params)
    lr = torch.tensor(0.02, device="cuda")
    opt.param_groups[0]["lr"] = lr
    return params, opt, lr, [[torch.full_like(p, v) for p in params] for v in (0.5, -1.0)]


@needs_cuda
@cases
def test_replays_are_eager_steps(device, make):
    """1,000 replays, the lr changed on the way: the bits of 1,000 eager steps."""
    runs = []
    for captured in (True, False):
        params, opt, lr, (targets, _) = capturable(make)
        warm_up(opt, params, targets)
        graph = capture(opt, params, targets) if captured else None
        for k in range(1000):
            lr.fill_(0.02 / (1 + k // 250))
            graph.replay() if graph is not None else train(opt, params, targets)
        assert int(opt.param_groups[0]["step"]) == 1003
        runs.append(facts(opt))
    agree(*runs, tolerance=0)


@needs_cuda
@cases
def test_two_graphs_and_eager_steps_between_replays(device, make):
    runs = []
    for captured in (True, False):
        params, opt, _, targets = capturable(make)
        warm_up(opt, params, targets[0])
        graphs = [capture(opt, params, t) for t in targets] if captured else [None, None]
        for k in (0, 1, 1, 2, 0, 3, 1, 0, 2, 2, 2, 2, 1, 0):
            if k < 2 and captured:
                graphs[k].replay()
            else:
                train(opt, params, targets[k % 2])
        runs.append(facts(opt))
    agree(*runs, tolerance=0)


@needs_cuda
def test_graphs_may_share_a_pool(device):
    runs = []
    for captured in (True, False):
        params, opt, _, (targets, _) = capturable(CASES["momentum"])
        warm_up(opt, params, targets)
        graphs, pool = [], None
        for _ in range(3 if captured else 0):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                train(opt, params, targets)
            pool = graph.pool()
            graphs.append(graph)
        for k in range(9):
            graphs[k % 3].replay() if captured else train(opt, params, targets)
        runs.append(facts(opt))
    agree(*runs, tolerance=0)


@needs_cuda
def test_any_number_of_captures(device):
    """With an eager step before each, also one in which nothing is new."""
    params, opt, _, (targets, _) = capturable(CASES["momentum"])
    others, plain, _, _ = capturable(CASES["momentum"])
    for ps in (params, others):
        kinked_loss(ps, targets).backward()  # these gradients stay where they are
    graphs = []
    for _ in range(8):
        opt.step()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            opt.step()
        graphs[-1].replay()
    for _ in range(16):
        plain.step()
    agree(facts(opt), facts(plain), tolerance=0)


@needs_cuda
@some("momentum", "adam")
def test_a_first_step_cannot_be_captured(device, make):
    """It says so, and an eager step afterwards is a first step."""
    params, opt, _, (targets, _) = capturable(make)
    kinked_loss(params, targets).backward()
    graph, dummy = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")

    def attempt():
        with torch.cuda.graph(graph):
            dummy.add_(1)  # an empty graph would be warned of
            opt.step()

    with pytest.raises(RuntimeError, match=r"call step\(\) once like this before you capture it"):
        attempt()
    others, plain, _, _ = capturable(make)
    train(opt, params, targets)
    train(plain, others, targets)
    agree(facts(opt), facts(plain), tolerance=0)


@needs_cuda
@cases
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_never_waits_for_the_device(device, make):
    params, opt, lr, (targets, _) = capturable(make)
    for rate in (lr, 0.02):
        opt.param_groups[0]["lr"] = rate
        train(opt, params, targets)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                train(opt, params, targets)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@needs_cuda
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("learner", LEARNERS, ids=str)
def test_gpu_against_cpu(device, learner, dtype, tolerance):
    """Kernels on the GPU, foreach on the CPU: every learner within rounding."""
    runs = []
    for place in ("cuda", "cpu"):
        params = begin(place, dtype, shapes=[*FEW, (70_000,)])
        opt = algorithm_2(params, learner, place == "cuda", scaling=o2nc.Weibull(0.8))
        runs.append(facts(advance(opt, params, range(1, 21))))
    agree(*runs, tolerance=tolerance)


@needs_cuda
@some("momentum", "shared buffer", "nesterov", "no momentum", "no average")
def test_sgdm_gpu_against_cpu(device, make):
    runs = []
    for place in ("cuda", "cpu"):
        params = begin(place, shapes=[*FEW, (70_000,)])
        runs.append(facts(advance(make(params, place == "cuda"), params, range(1, 21))))
    agree(*runs, tolerance=1e-11)


@needs_cuda
def test_steps_on_another_stream(device):
    """The kernels run on the current stream, where the gradients are made."""
    runs = []
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        params, opt, _, (targets, _) = capturable(CASES["momentum"])
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(20):
                train(opt, params, targets)
        torch.cuda.synchronize()
        runs.append(facts(opt))
    agree(*runs, tolerance=0)


@needs_cuda
def test_more_than_two_to_the_31_elements(device):
    """Offsets are 64 bits wide: every element gets the step of its own gradient."""
    count = 2**31 + 1029
    if torch.cuda.mem_get_info()[0] < 30 << 31:
        pytest.skip("needs 60 GiB of free memory")
    p = torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16, device=device))
    p.grad = torch.empty_like(p)
    for low in range(0, count, 1 << 28):  # 0 … 126, exact in bfloat16
        high = min(low + (1 << 28), count)
        p.grad[low:high] = torch.arange(low, high, device=device) % 127
    opt = sgdm([p], lr=1.0, momentum=0.9, scaling=None, average=0.9)
    opt.step()
    state = opt.state[p]
    for low in range(0, count, 1 << 28):
        block = slice(low, min(low + (1 << 28), count))
        assert torch.equal(p[block], -p.grad[block])
        assert torch.equal(state["momentum_buffer"][block], p.grad[block])
        assert torch.equal(state["gradient"][block], p.grad[block].float())
        assert not state["average"][block].any()
    whole, rest = divmod(count, 127)
    square = whole * sum(i * i for i in range(127)) + sum(i * i for i in range(rest))
    assert opt.certificate().gradient == pytest.approx(square**0.5, rel=1e-6)
    assert opt.certificate().spread == 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_devices(device):
    """Each has its own tables and counters; a learner with a joint norm is refused."""
    runs = []
    for places in (("cuda:0", "cuda:1"), ("cuda:0", "cuda:0")):
        params = [begin(place, shapes=[shape])[0] for place, shape in zip(places, ((3, 2), (1025,)), strict=True)]
        runs.append(facts(advance(CASES["momentum"](params), params, range(1, 6))))
        opt = CASES["coin"](params)
        if places[0] != places[1]:
            with pytest.raises(RuntimeError, match="on several devices"):
                advance(opt, params, [1])
    agree(*runs, tolerance=0)
