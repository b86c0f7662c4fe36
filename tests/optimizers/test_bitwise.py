"""Without scaling SGD, ScaledSGDM, AdamW and extended optimizers are torch's, bitwise; with it torch's at lr·s."""

import inspect
import itertools
from functools import partial

import pytest
import torch
from torch import optim

import fused_device as rig
import o2nc
import twin
from problem import SHAPES, parameters, set_gradients
from registry import TORCH, ours_of, params_of

ENGINES = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"differentiable": True}]
SGD_OPTIONS = [
    dict(zip(("momentum", "dampening", "weight_decay", "nesterov", "maximize"), values, strict=True))
    for values in itertools.product([0, 0.9], [0, 0.5], [0, 0.05], [False, True], [False, True])
    if not (values[3] and (values[0] == 0 or values[1] != 0))
]
ADAMW_OPTIONS = [
    {"amsgrad": a, "maximize": b} | other
    for a, b in itertools.product((False, True), repeat=2)
    for other in ({}, {"betas": (0.0, 0.5)}, {"weight_decay": 0.0})
]
WITH_AVERAGES = [
    {},
    {"average": o2nc.Polynomial(3, every=2)},
    {"average": 0.9, "certificate": True},
    {"average": o2nc.Polynomial(3, start=2), "certificate": True, "offload": True},
]
SCALED = [{"scaling": o2nc.Exponential()}, {"scaling": o2nc.Uniform(0, 2), "average": 0.9}]
SETTINGS = {
    "SGD": WITH_AVERAGES + SCALED,
    "ScaledSGDM": [*WITH_AVERAGES[:2], {"average": 0.9}, *SCALED],
    "AdamW": WITH_AVERAGES + SCALED,
}
CLASSES = {
    "SGD": (o2nc.SGD, optim.SGD, SGD_OPTIONS),
    "ScaledSGDM": (lambda ps, **o: o2nc.ScaledSGDM(ps, **{"scaling": None} | o), optim.SGD, SGD_OPTIONS),
    "AdamW": (o2nc.AdamW, optim.AdamW, ADAMW_OPTIONS),
}
CASES = [
    (name, options, engine, settings)
    for name, (_, _, all_options) in CLASSES.items()
    for options, engine, settings in itertools.product(all_options, ENGINES, SETTINGS[name])
]
LARGE = [(300, 700), (30,), (3, 5, 7, 11), (1,)]


def leaves(make, dtype, shapes=SHAPES):
    """Return an optimizer and its parameters; autograd refuses a differentiable step on leaves, torch's as well."""
    params = parameters(dtype, shapes=shapes)
    opt = make(params)
    if opt.defaults.get("differentiable"):
        params = [p.clone() for p in params]
        for p in params:
            p.retain_grad()
        opt = make(params)
    return opt, params


def together(ours, theirs, steps=6, dtype=torch.float32, shapes=SHAPES, lrs=None, missing=None):
    """Step both along; parameters and torch's part of the state agree bitwise, and no gradient is written to."""
    (opt, params), (plain, twins) = (leaves(make, dtype, shapes) for make in (ours, theirs))
    for t in range(1, steps + 1):
        for ps in (params, twins):
            set_gradients(ps, t)
            if missing is not None and t % 3 == 0:
                ps[missing].grad = None
        before = [None if p.grad is None else p.grad.clone() for p in params]
        opt.step()
        for group in plain.param_groups if lrs is not None else ():
            group["lr"] = lrs[t - 1]
        plain.step()
        for p, g in zip(params, before, strict=True):
            assert g is None or torch.equal(p.grad, g), ".grad was written to"
        assert all(map(torch.equal, params, twins))
    for p, q in zip(params_of(opt), params_of(plain), strict=True):
        for key, value in plain.state[q].items():
            kept = opt.state[p][key]
            assert kept is value or torch.equal(torch.as_tensor(kept), torch.as_tensor(value)), key
    return opt


@pytest.mark.some(160)
@pytest.mark.parametrize(("name", "options", "engine", "settings"), CASES, ids=str)
def test_it_is_torchs_at_lr_times_s(name, options, engine, settings):
    """Call t moves x_t to x_{t+1} with s_{t+1} = law.sample(seed, t + 1), or 1 without a law."""
    ours, theirs, _ = CLASSES[name]
    fails = engine.get("fused") and options.get("momentum")  # torch's does, where a parameter joins late
    law, takes_tensors = settings.get("scaling"), name != "AdamW" or not engine.get("foreach")
    for lr in (0.01, torch.tensor(0.01)) if takes_tensors else (0.01,):
        opt = together(
            partial(ours, lr=lr, seed=7, **options, **engine, **settings),
            partial(theirs, lr=lr, **options, **engine),
            lrs=law and [lr * law.sample(7, t + 1) for t in range(1, 7)],
            missing=None if fails else 1,
        )
        assert opt.param_groups[0]["lr"] is lr


@pytest.mark.parametrize("name", TORCH)
def test_an_extended_optimizer_moves_as_it_would_alone(name):
    for settings in WITH_AVERAGES:
        together(lambda ps: o2nc.extend(TORCH[name](ps), **settings), TORCH[name], steps=9)  # noqa: B023


HALVES = (torch.bfloat16, torch.float16)
TENSORS = [
    *((dtype, SHAPES) for dtype in (torch.float64, *HALVES, torch.complex64)),
    *((dtype, LARGE) for dtype in (torch.float32, torch.bfloat16)),  # these are averaged slice by slice
]


@pytest.mark.parametrize(("dtype", "shapes"), TENSORS, ids=str)
@pytest.mark.parametrize("engine", ENGINES[:4], ids=str)
@pytest.mark.parametrize("name", CLASSES)
def test_dtypes_and_large_tensors(name, engine, dtype, shapes):
    if engine.get("fused") and (dtype.is_complex or dtype in HALVES):
        pytest.skip("torch has no such step, or a wrong one (SGD), or another order of its own (AdamW)")
    ours, theirs, _ = CLASSES[name]
    options = {"lr": 0.01, "weight_decay": 0.01} | engine | ({} if name == "AdamW" else {"momentum": 0.9})
    for average in (None, 0.99) if shapes is SHAPES else (0.99,):
        together(partial(ours, average=average, **options), partial(theirs, **options), 3, dtype, shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("average", [None, 0.9], ids=str)
def test_the_kernel_of_adamw_rounds_as_torchs_fused_one_does(dtype, average, device):
    if device == "cpu" and dtype != torch.float32:
        pytest.skip("torch's fused step for CPUs keeps half precision in another order")
    a, b = (rig.begin(device, dtype, shapes=[(33, 7), (300,)]) for _ in range(2))
    options = {"lr": 0.02, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    made = o2nc.AdamW(a, average=average, **options), optim.AdamW(b, **options)
    opt, plain = (rig.advance(each, range(1, 9)) for each in made)
    for p, q in zip(a, b, strict=True):
        if device == "cpu":  # torch has another formula there
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
        else:
            assert torch.equal(p, q)
            assert all(torch.equal(opt.state[p][key], plain.state[q][key]) for key in ("exp_avg", "exp_avg_sq"))


# torch's AdamW with averages, which kernels take if they are there
EXTENDED = (lambda ps, lr, fused, **options: o2nc.extend(optim.AdamW(ps, lr), **options), optim.AdamW, None)
RESUMED = CLASSES | {"extended": EXTENDED}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", RESUMED)
def test_a_checkpoint_of_torchs_goes_on_to_the_bit_and_back(name, fused, device, tmp_path):
    ours, theirs, _ = RESUMED[name]
    options = {"lr": 0.02} | ({"momentum": 0.8} if theirs is optim.SGD else {})
    twins = rig.begin(device if fused else "cpu", torch.float32, shapes=[(5, 3), (4,)])
    plain = rig.advance(theirs(twins, **options), range(1, 5))
    torch.save(plain.state_dict(), tmp_path / "torch.pt")
    params = [torch.nn.Parameter(p.detach().clone()) for p in twins]
    window = o2nc.Polynomial(3, start=1)
    opt = ours(params, lr=0.5, average=window, seed=3, fused=fused)
    opt.load_state_dict(torch.load(tmp_path / "torch.pt", weights_only=True))
    assert (opt.param_groups[0]["lr"], ours_of(opt)["seed"]) == (0.02, 3)
    rig.advance(plain, range(5, 9))
    rig.advance(opt, range(5, 9))
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, **{} if fused else {"rtol": 0, "atol": 0})
    weights = twin.weights(window, 4)  # the window has its own count
    assert window.ess(window.count(int(ours_of(opt)["step"]))) == pytest.approx(1 / (weights**2).sum())
    torch.save(opt.state_dict(), tmp_path / "ours.pt")
    again = theirs(params, **options)
    again.load_state_dict(torch.load(tmp_path / "ours.pt", weights_only=True))
    rig.advance(plain, [9])
    rig.advance(again, [9])
    torch.testing.assert_close(params, twins, **{} if fused else {"rtol": 0, "atol": 0})


@rig.needs_cuda
@pytest.mark.parametrize("average", [None, 0.9], ids=str)
@pytest.mark.parametrize("setting", ["foreach", "fused"])
def test_capturable_steps_are_torchs_and_replay(setting, average):
    options = {"lr": 0.02, "capturable": True, setting: True}
    a, b = (rig.begin("cuda", torch.float32, shapes=[(33, 7), (300,)]) for _ in range(2))
    made = o2nc.AdamW(a, average=average, **options), optim.AdamW(b, **options)
    opt, plain = (rig.advance(each, range(4)) for each in made)
    if setting == "fused" or average is None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            opt.step()
        for _ in range(3):
            graph.replay()
            plain.step()
    assert all(map(torch.equal, a, b))


BAD_SGD = [{"lr": -0.1}, {"lr": torch.ones(2)}, {"momentum": -0.1}, {"weight_decay": -0.1}, {"nesterov": True}]
BAD_SGD += [{"nesterov": True, "momentum": 0.9, "dampening": 0.1}]
BAD_SGD += [{"fused": True, other: True} for other in ("foreach", "differentiable")]
BAD_ADAMW = [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"eps": -1.0}]
BAD = [*itertools.product(("SGD", "ScaledSGDM"), BAD_SGD), *itertools.product(("AdamW",), BAD_ADAMW)]


@pytest.mark.parametrize(("name", "arguments"), BAD, ids=str)
def test_errors_are_torchs(name, arguments):
    ours, theirs, _ = CLASSES[name]
    with pytest.raises((ValueError, RuntimeError)) as wanted:
        theirs(parameters(), **arguments)
    with pytest.raises(wanted.type) as found:
        ours(parameters(), **arguments)
    assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("cls", [o2nc.SGD, o2nc.AdamW, o2nc.ScaledSGDM])
def test_it_is_one_of_torchs_and_takes_its_arguments(cls):
    theirs = optim.AdamW if cls is o2nc.AdamW else optim.SGD
    given = inspect.signature(theirs).parameters
    positional = [p.default for p in given.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
    params = parameters()
    opt, plain = cls(params, *positional), theirs(params)
    assert isinstance(opt, theirs)
    assert plain.defaults.items() <= opt.defaults.items()
