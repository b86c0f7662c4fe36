"""The step by kernels is the step by torch's functions: any options, in every dtype and memory order."""

import gc
import weakref
from functools import partial
from random import Random

import pytest
import torch

import fused_device as rig
import o2nc
from problem import noise
from registry import step


def draw(chance, **choices):
    return {name: chance.choice(values) for name, values in choices.items()}


def sgd_options(chance):
    """Draw options of SGD; in a group torch ignores Nesterov where momentum is 0, as at the end of a schedule."""
    found = draw(chance, lr=[0.01, 0.3], momentum=[0, 0.6, 0.9], weight_decay=[0, 0.1], maximize=[False, False, True])
    if chance.random() < 0.3:
        return found | {"nesterov": True, "dampening": 0}
    return found | draw(chance, nesterov=[False], dampening=[0, 0, 0.5])


ADAMW = {"lr": [0.001, 0.1], "betas": [(0.9, 0.999), (0.5, 0.9)], "eps": [1e-8, 0.1], "weight_decay": [0, 0.1]}
adamw_options = partial(draw, **ADAMW, maximize=[False, False, True])
learner_options = partial(draw, lr=[0, 0.02, 0.1], weight_decay=[0, 0, 0.1], maximize=[False, False, False, True])
KINDS = {
    "SGD": (o2nc.SGD, sgd_options),
    "AdamW": (o2nc.AdamW, adamw_options),
    "ScaledSGDM": (o2nc.ScaledSGDM, sgd_options),
    "ExponentiatedO2NC": (o2nc.ExponentiatedO2NC, learner_options),
}


@pytest.mark.some(40)
@pytest.mark.parametrize("seed", range(120))
@pytest.mark.parametrize("kind", KINDS)
def test_any_run(device, kind, seed):
    """Any options, sizes, groups, windows, laws, learners; options that change, late and absent gradients."""
    chance, (cls, options) = Random(seed), KINDS[kind]
    shapes = [chance.choice(rig.SIZES) for _ in range(chance.randint(1, 3))]
    cut = chance.randint(0, len(shapes) - 1)
    own = [options(chance) for _ in range(1 + (cut > 0))]
    windows = [0.9, o2nc.Polynomial(3, every=2), o2nc.Discount(0.8, start=2, every=3)]
    shared = {"seed": 7, "average": chance.choice([None, *windows])}
    plain = shared["average"] is None and cls is not o2nc.AdamW  # then SGD's step would be torch's own
    shared["scaling"] = chance.choice(rig.LAWS if plain else [*rig.LAWS, None])
    if kind in ("SGD", "AdamW") and shared["average"] is not None:
        shared["certificate"] = chance.random() < 0.6
    arguments = (chance.choice(rig.LEARNERS),) if kind == "ExponentiatedO2NC" else ()
    joins = [chance.choice([1, 1, 3]) for _ in shapes]
    events = [  # who has no gradient, and which group's options change to what
        (
            [i for i in range(len(shapes)) if t < joins[i] or chance.random() < 0.2],
            [(k, options(chance)) for k in range(len(own)) if chance.random() < 0.2],
        )
        for t in range(1, chance.randint(3, 8))
    ]
    is_torchs = cls is o2nc.SGD and shared["scaling"] is None  # whose fused step fails where a parameter joins late

    def work(fused):
        fused = None if is_torchs else fused
        params = rig.begin(device, shapes=shapes)
        groups = [{"params": params[cut:], **own[0]}] + [{"params": params[:cut], **more} for more in own[1:]]
        opt = cls(groups, *arguments, fused=fused, **shared)
        for t, (missing, changes) in enumerate(events, 1):
            for k, changed in changes:
                opt.param_groups[k].update(changed)
            rig.advance(opt, [t], missing)
        rig.advance(opt, [99])  # the last two steps are the kernels' own
        opt.step()
        return opt

    rig.compare(work)


@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
@pytest.mark.parametrize("value", [0.0, float("nan")], ids=["zero", "nan"])
def test_gradients_of_zero_and_nan(device, learner, value):
    """No norm is divided by: zeros leave everything at rest. A joint norm that is nan spoils every tensor."""

    def work(fused):
        params = rig.begin(device, shapes=[(3,), (4,)])
        opt = rig.algorithm_2(params, learner, fused, average=False)
        for t in (1, 2, 3):
            rig.set_noise(params, t, scale=0.0 if value == 0 and t < 3 else 1.0)
            if t == 2:
                params[1].grad.fill_(value)
            opt.step()
        return opt

    rig.compare(work)


def ulps(a, b):
    """The distance of a from b, in units of b's dtype at b, or at 1 where b is smaller."""
    unit = torch.finfo(b.dtype).eps * b.double().abs().clamp(min=1.0)
    return ((a.detach().cpu().double() - b.double()).abs() / unit).max().item()


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
    rig.set_noise(params, 1)
    opt.step()  # by torch
    entry, state = opt.state[params[0]]["o2nc"], opt.state[params[0]]
    x, buffer = params[0].detach().cpu().clone(), state["momentum_buffer"].cpu().clone()
    x_mean, g_mean, total = entry["average"].cpu().clone(), entry["gradient"].cpu().clone(), 1.0
    for t in range(2, 10):
        rig.set_noise(params, t)
        g = params[0].grad.cpu().float()
        total = 1 + beta * total
        x_mean += (x.float() - x_mean) / total
        g_mean += (g - g_mean) / total
        m = momentum * buffer.float() + g + decay * x.float()
        direction = g + decay * x.float() + momentum * m if nesterov else m
        x = stored(x.float() - lr * o2nc.Exponential().sample(seed, t + 1) * direction, dtype)
        buffer = stored(m, dtype)
        opt.step()
        assert rig.is_fused(opt)
    assert state["momentum_buffer"].dtype == dtype
    assert {entry[key].dtype for key in ("average", "gradient", "output")} == {torch.float32}
    assert ulps(params[0], x) <= 2
    assert ulps(state["momentum_buffer"], buffer) <= 2
    torch.testing.assert_close(entry["average"].cpu(), x_mean, rtol=1e-3, atol=torch.finfo(dtype).eps)
    torch.testing.assert_close(entry["gradient"].cpu(), g_mean, rtol=1e-3, atol=1e-3)
    # a flip here and there, no drift
    assert abs((params[0].detach().cpu().double() - x.double()).mean()) < 0.05 * torch.finfo(dtype).eps


MIXED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float32)


@rig.some("AdamW", "ScaledSGDM", "ScaledSGDM Nesterov", "ScaleFree", "extend(Lion)")
def test_mixed_dtypes_do_not_mix(device, make):
    """Without a joint norm every parameter moves as if it were alone, to the bit."""
    together, alone = ([rig.begin(device, t, [(i + 2,)])[0] for i, t in enumerate(MIXED)] for _ in range(2))
    ours, single = make(together), [make([p]) for p in alone]
    for t in (1, 2, 3):
        rig.advance(ours, [t])
        rig.set_noise(alone, t)
        for opt in single:
            opt.step()
    for p, q, opt in zip(together, alone, single, strict=True):
        ours_of, theirs = ours.state[p]["o2nc"], opt.state[q]["o2nc"]
        assert torch.equal(p, q)
        assert torch.equal(ours_of["average"], theirs["average"])
        assert ours_of["average"].dtype == torch.promote_types(p.dtype, torch.float32)


# parameters that do not lie row by row, or not at the beginning of their memory
VIEWS = {
    "channels last": ((2, 3, 4, 5), lambda x: x.to(memory_format=torch.channels_last)),
    "transposed": ((7, 40), torch.t),
    "unaligned": ((7,), lambda x: x[1:]),
}


# the same gradient with other strides or another alignment
GRADIENTS = {
    "like the parameter": lambda g, p: torch.empty_like(p).copy_(g),
    "contiguous": lambda g, p: g.clone(),
    "offset": lambda g, p: g.new_empty(g.numel() + 1)[1:].view(g.shape).copy_(g),
    "expanded": lambda g, p: g[(slice(0, 1),) * g.dim()].expand(g.shape),
}


@pytest.mark.some(12)
@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("gradient", GRADIENTS)
@rig.some("AdamW", "ScaledSGDM", "OGD", "extend(Lion)")
def test_memory_order(device, kind, gradient, make):
    """Strides of parameter and gradient do not matter, and state lies as its parameter does."""
    stridden = []

    def work(fused):
        shape, view = VIEWS[kind]
        (base,) = (p.detach() for p in rig.begin(device, shapes=[shape]))
        p = torch.nn.Parameter(view(base))
        strides = p.stride()
        if not fused:
            p = torch.nn.Parameter(p.detach().clone(memory_format=torch.contiguous_format))
        opt = make([p], fused)
        for t in range(1, 5):
            rig.set_noise([p], t)
            p.grad = GRADIENTS[gradient](p.grad.contiguous(), p)
            opt.step()
        if fused:
            assert p.stride() == strides
            kept = [opt.state[p], opt.state[p]["o2nc"]]
            shaped = [v for entries in kept for v in entries.values() if getattr(v, "shape", 0) == p.shape]
            stridden.extend(v.stride() == strides for v in shaped)
        return opt

    rig.compare(work)
    assert stridden
    assert all(stridden)


def test_a_gradient_that_changes_its_strides_in_place(device):
    """The same memory read in another order, by a tensor that may be the same object to Python: a new gradient."""

    def work(fused):
        (p,) = rig.begin(device, shapes=[(6, 6)])
        room = torch.empty(36, dtype=p.dtype, device=device)
        opt = rig.CASES["ScaledSGDM"]([p], fused)
        for t in range(1, 7):
            p.grad = None
            view = room.view(6, 6) if t % 2 else room.as_strided((6, 6), (1, 6))
            p.grad = view.copy_(noise(t, 6, 6))
            del view
            opt.step()
        return opt

    rig.compare(work)


@pytest.mark.parametrize("kind", GRADIENTS)
@rig.some("ScaledSGDM", "extend(Lion)")
def test_gradients_are_let_go(device, make, kind):
    """zero_grad frees them: nothing else holds on to a gradient or its memory."""
    (p,) = rig.begin(device, shapes=[(6, 5)])
    opt = make([p])
    for t in (1, 2, 3):
        rig.set_noise([p], t)
        p.grad = GRADIENTS[kind](p.grad, p)
        held = weakref.ref(p.grad)
        opt.step()
        opt.zero_grad()
        gc.collect()
        assert held() is None


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "count", [129, pytest.param(5_000, marks=rig.needs_cuda), pytest.param(20_000, marks=rig.needs_cuda)]
)
@rig.some("AdamW", "ScaledSGDM", "OGD")
def test_many_tensors(device, count, make):
    """More than `open_kernel` computes the coefficients of at a time."""

    def work(fused):
        params = [torch.nn.Parameter(v.clone()) for v in torch.ones(count, 3, dtype=torch.float64, device=device)]
        opt = make(params, fused)
        for t in (1, 2):
            step(opt, *(g.clone() for g in noise(t, count, 3).to(device)))
        return opt

    rig.compare(work)
