"""The fused step is the step: against torch's functions and the paper's sums, in every dtype and memory order."""

import gc
import weakref

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import learners
from o2nc.scaling import progress_weight, uniform
from problem import flat
from twin import averages, law_weights

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
            rig.call_off(opt, params, t, missing)
        elif not off:
            rig.set_noise(params, t, missing)
            opt.step()
    assert rig.is_fused(opt) == fused or int(opt.param_groups[0]["step"]) == 0
    return opt


@pytest.mark.some(30)
@rig.search(60)
def test_sgdm_is_the_foreach_step(device, chance):
    """Any options, sizes, groups, schedules, absent, late and overflown gradients: the same run, and said of it."""
    shapes = [chance.choice(rig.SIZES) for _ in range(chance.randint(1, 3))]
    cut = chance.randint(0, len(shapes) - 1)
    options = [sgdm_options(chance) for _ in range(1 + (cut > 0))]
    average = chance.choice([None, 0.9, 0.6, 0.8])
    law = chance.choice([*rig.LAWS, None] if average else rig.LAWS)
    events = history(chance, len(shapes), len(options), sgdm_options)
    runs = []
    for fused in (True, False):
        params = rig.begin(device, shapes=shapes)
        groups = [{"params": params[cut:], **options[0]}]
        groups += [{"params": params[:cut], **more} for more in options[1:]]
        opt = rig.sgdm(groups, fused, scaling=law, seed=7, average=average)
        runs.append(rig.facts(follow(opt, params, events, fused)))
    rig.agree(*runs)


@pytest.mark.parametrize("average", [None, 0.9])
@pytest.mark.parametrize("late", [False, True])
def test_nesterov_without_momentum_is_plain(device, average, late):
    """torch refuses it in the constructor, not in a group, and ignores it there; a schedule may end at momentum 0."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.sgdm([{"params": params, "nesterov": True, "momentum": 0.9 if late else 0}], fused, average=average)
        rig.advance(opt, params, [1, 2])
        opt.param_groups[0]["momentum"] = 0
        runs.append(rig.facts(rig.advance(opt, params, [3, 4])))
    rig.agree(*runs)


@pytest.mark.some(8)
@pytest.mark.parametrize("law", rig.LAWS, ids=str)
@pytest.mark.parametrize("options", [{}, {"momentum": 0.8}, {"momentum": 0.9, "weight_decay": 0.1}], ids=str)
def test_sgdm_against_direct_sums(device, law, options):
    """x̄, ḡ, V and the effective sample size are the β-weighted sums of the paper; the progress is Σ w⟨g, Δ⟩."""
    lr, seed, beta, n = 0.05, 5, 0.9, 8
    params = rig.begin(device)
    opt = rig.sgdm(params, lr=lr, scaling=law, seed=seed, average=beta, **options)
    xs, gs, delta, progress = [], [], 0.0, 0.0
    buffer = None
    for t in range(1, n + 1):
        rig.set_noise(params, t)
        x = flat([p.cpu() for p in params])
        g = flat([p.grad.cpu() for p in params]) + options.get("weight_decay", 0) * x
        progress += float(np.sum(progress_weight(law, seed, t) * g * delta))
        xs.append(x)
        gs.append(g)
        opt.step()
        buffer = g if buffer is None else options.get("momentum", 0) * buffer + law_weights(law, seed, t)[-1] * g
        delta = -lr * buffer
        moved = x + law.sample(seed, t + 1) * delta
        np.testing.assert_allclose(flat([p.cpu() for p in params]), moved, rtol=1e-12, atol=1e-12)
    check_averages(opt, params, xs, gs, beta, law, seed)
    assert opt.progress == pytest.approx(progress, rel=1e-12)


def check_averages(opt, params, xs, gs, beta, law, seed):
    w = law_weights(law, seed, len(xs))
    x_mean, g_mean, spread, ess = averages(xs, gs, beta, w)
    certificate = opt.certificate()
    average = flat([opt.state[p]["average"].cpu() for p in params])
    np.testing.assert_allclose(average, x_mean, rtol=1e-12, atol=1e-12)
    assert certificate.gradient == pytest.approx(np.linalg.norm(g_mean), rel=1e-12)
    assert certificate.spread == pytest.approx(spread, rel=1e-12)
    assert certificate.ess == pytest.approx(ess, rel=1e-12)


# ---- the learners ----


@pytest.mark.some(10)
@pytest.mark.parametrize(
    ("law", "average"), [(rig.LAWS[0], True), (rig.LAWS[3], True), (rig.LAWS[2], False)], ids=str
)
@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
def test_learners_are_the_foreach_ones(device, learner, law, average):
    """Every learner, law and average, with a schedule that rests once, two groups, an absent and a late gradient."""
    schedule, missing = [1.0, 0.5, 0.0, 2.0, 1.0], [[2], [], [0], [], [1]]
    runs = []
    for fused in (True, False):
        params = rig.begin(device, shapes=[(3, 2), (), (5,)])
        groups = [{"params": params[:2]}, {"params": params[2:], "lr": 3 * learner.lr}]
        opt = rig.algorithm_2(groups, learner, fused, scaling=law, seed=2, average=average)
        for t, (factor, absent) in enumerate(zip(schedule, missing, strict=True), 1):
            opt.param_groups[0]["lr"] = factor * learner.lr
            opt.param_groups[1]["lr"] = factor * 3 * learner.lr
            rig.set_noise(params, t, absent)
            opt.step()
        assert rig.is_fused(opt) == fused
        runs.append(rig.facts(opt))
    rig.agree(*runs)


@pytest.mark.some(15)
@rig.search(45)
def test_algorithm_2_is_the_foreach_step(device, chance):
    """Any learner, law, sizes, groups, schedules, absent, late and overflown gradients."""
    shapes = [chance.choice(rig.SIZES) for _ in range(chance.randint(1, 3))]
    cut = chance.randint(0, len(shapes) - 1)
    learner, law = chance.choice(rig.LEARNERS), chance.choice([*rig.LAWS, None])
    average = chance.random() < 0.7
    events = history(chance, len(shapes), 1 + (cut > 0), lambda chance: {"lr": chance.choice([0, 0.02, 0.1])})
    runs = []
    for fused in (True, False):
        params = rig.begin(device, shapes=shapes)
        groups = [{"params": params[cut:]}, {"params": params[:cut], "lr": 0.3}][: 1 + (cut > 0)]
        opt = rig.algorithm_2(groups, learner, fused, scaling=law, seed=7, average=average)
        runs.append(rig.facts(follow(opt, params, events, fused)))
    rig.agree(*runs)


@pytest.mark.parametrize("law", [*rig.LAWS[1:], None], ids=str)
def test_algorithm_2_against_direct_sums(device, law):
    """x_{t+1} = x_t + s_{t+1}Δ_{t+1}, Δ_{t+1} = β(Δ_t − ηw_t g_t)/(β + ημ + 1 − β), and direct sums."""
    beta, eta, mu, seed, n = 0.9, 0.05, 0.7, 5, 10
    params = rig.begin(device, shapes=[(3, 2), (5,)])
    opt = rig.algorithm_2(params, learners.OGD(lr=eta, decay=mu), beta=beta, scaling=law, seed=seed)
    xs, gs, delta = [], [], 0.0
    for t in range(1, n + 1):
        rig.set_noise(params, t)
        xs.append(flat([p.cpu() for p in params]))
        gs.append(flat([p.grad.cpu() for p in params]))
        opt.step()
        w = law_weights(law, seed, t)[-1]
        delta = beta * (delta - eta * w * gs[-1]) / (beta + eta * mu + 1 - beta)
        moved = xs[-1] + (1.0 if law is None else law.sample(seed, t + 1)) * delta
        np.testing.assert_allclose(flat([p.cpu() for p in params]), moved, rtol=1e-12, atol=1e-12)
    check_averages(opt, params, xs, gs, beta, law, seed)


@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
def test_gradients_of_zero(device, learner):
    """No norm is divided by: zero gradients leave everything at rest, also before the first other one."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device, shapes=[(3,), (2,)])
        opt = rig.algorithm_2(params, learner, fused)
        for t in (0, 1):
            rig.set_noise(params, t, scale=t)
            opt.step()
        runs.append(rig.facts(opt))
    rig.agree(*runs)


# ---- dtypes ----


@rig.some("momentum", "nesterov", "adam", "coin")
def test_float32_is_near_float64(device, make):
    """Eight steps in float32 stay within 1e-5 of those in float64."""
    runs = [
        rig.facts(rig.advance(make(ps), ps, range(1, 9)))
        for ps in (rig.begin(device, torch.float32), rig.begin(device))
    ]
    rig.agree(*runs, tolerance=1e-5)


def ulps(a, b):
    """The distance of a from b, in units of b's dtype at b, or at 1 where b is smaller."""
    unit = torch.finfo(b.dtype).eps * b.double().abs().clamp(min=1.0)
    return ((a.double() - b.double()).abs() / unit).max().item()


def stored(x, dtype):
    """A float32 rounded to the nearest; Triton's interpreter cuts it off instead where that is bfloat16."""
    if dtype == torch.bfloat16 and not rig.CUDA:
        x = (x.view(torch.int32) & -65536).view(torch.float32)
    return x.to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("nesterov", [False, True])
def test_half_precision_rounds_where_it_is_stored(device, dtype, nesterov):
    """Parameter and buffer are rounded when they are stored; arithmetic, x̄ and ḡ are float32."""
    lr, momentum, decay, beta, seed = 0.05, 0.9, 0.01, 0.9, 4
    params = rig.begin(device, dtype, shapes=[(1025,)])
    opt = rig.sgdm(params, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov, average=beta, seed=seed)
    x = params[0].detach().cpu().clone()
    buffer = torch.zeros_like(x)
    x_mean, g_mean, total = torch.zeros_like(x, dtype=torch.float32), torch.zeros_like(x, dtype=torch.float32), 0.0
    for t in range(1, 9):
        rig.set_noise(params, t)
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
    assert rig.is_fused(opt)
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
    return [rig.begin(device, dtype, shapes=[(i + 2,)])[0] for i, dtype in enumerate(MIXED)]


@rig.some("momentum", "nesterov", "adam")
def test_mixed_dtypes_do_not_mix(device, make):
    """Without a joint norm every parameter moves as if it were alone, to the bit."""
    together, alone = mixed(device), mixed(device)
    ours, single = make(together), [make([p]) for p in alone]
    for t in (1, 2, 3):
        for ps in (together, alone):
            rig.set_noise(ps, t)
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
        runs.append(rig.facts(rig.advance(rig.algorithm_2(params, rig.LEARNERS[13], fused), params, range(1, 6))))
    rig.agree(*runs, tolerance=1e-6)


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


@pytest.mark.some(8)
@pytest.mark.parametrize("kind", ["channels last", "transposed", "gaps"])
@pytest.mark.parametrize("gradient", GRADIENTS)
@rig.some("shared buffer", "coin")
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
        rig.set_noise([q], t)
        value = laid_out(q.grad, gradient, p)
        p.grad, q.grad = value, value.contiguous()
        ours.step()
        theirs.step()
    rig.agree(rig.facts(ours), rig.facts(theirs))
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
        room[offset : offset + 1026] = rig.begin(device, dtype, shapes=[(1026,)])[0].detach()
        p = torch.nn.Parameter(room[offset : offset + 1026])
        opt = rig.CASES["momentum"]([p])
        for t in (1, 2):
            rig.set_noise([p], t)
            p.grad = torch.cat([p.grad.new_zeros(offset), p.grad])[offset:]
            opt.step()
        assert p.data_ptr() == room[offset:].data_ptr()
        runs.append(rig.facts(opt))
    rig.agree(runs[0], runs[1], tolerance=0)
    rig.agree(runs[0], runs[2], tolerance=0)


def test_a_gradient_that_changes_its_strides_in_place(device):
    """The same memory read in another order, by a tensor that may be the same object to Python: a new gradient."""
    runs = []
    for fused in (True, False):
        (p,) = rig.begin(device, shapes=[(6, 6)])
        room = torch.empty(36, dtype=p.dtype, device=device)
        opt = rig.CASES["momentum"]([p], fused)
        for t in range(1, 7):
            p.grad = None
            view = room.view(6, 6) if t % 2 else room.as_strided((6, 6), (1, 6))
            generator = torch.Generator().manual_seed(t)
            p.grad = view.copy_(torch.randn(6, 6, dtype=p.dtype, generator=generator))
            del view
            opt.step()
        runs.append(rig.facts(opt))
    rig.agree(*runs)


@pytest.mark.parametrize("kind", GRADIENTS)
def test_gradients_are_let_go(device, kind):
    """zero_grad frees them: nothing else holds on to a gradient or its memory."""
    (p,) = rig.begin(device, shapes=[(6, 5)])
    opt = rig.CASES["momentum"]([p])
    for t in (1, 2, 3):
        rig.set_noise([p], t)
        p.grad = laid_out(p.grad, kind, p)
        held = weakref.ref(p.grad)
        opt.step()
        opt.zero_grad()
        gc.collect()
        assert held() is None


# ---- s on the device ----


def drawn(device, law, seed, step):
    """The s of one step: at lr 1 from 0 against the gradient −1 it is where the parameter arrives."""
    p = torch.nn.Parameter(torch.zeros((), dtype=torch.float64, device=device))
    opt = rig.sgdm([p], lr=1.0, scaling=law, seed=seed)
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
        assert drawn(device, o2nc.Jitter(0.25), seed, step) == o2nc.Jitter(0.25).sample(seed, step)


@pytest.mark.parametrize("seed", [0, 2**63])
def test_s_is_the_hosts_up_to_a_logarithm(device, seed):
    """Exp within one unit in the last place; Weibull, which takes a power, within 1e-14."""
    for step in range(2, 12):
        s = o2nc.Exponential().sample(seed, step)
        assert abs(drawn(device, o2nc.Exponential(), seed, step) - s) <= np.spacing(s)
        s = o2nc.Weibull(0.8).sample(seed, step)
        assert drawn(device, o2nc.Weibull(0.8), seed, step) == pytest.approx(s, rel=1e-14)
