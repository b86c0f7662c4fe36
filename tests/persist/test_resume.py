"""A run that is copied, killed or disturbed between two steps goes on bitwise as the one that was not."""

import copy
import math
import pickle
import random
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch

import fused_device as rig
import o2nc
import registry
from problem import SHAPES
from registry import FUSED, OURS, TORCH, VARIANTS, build, checkpoint, claims, identical, loaded, params_of, snapshot
from unchanged import generators


def scaled(name, params):
    return o2nc.random_scaling(TORCH[name](params), seed=6)


OPTIMIZERS = VARIANTS | {
    **{f"extended {name}": partial(registry.extended, name, average=o2nc.Polynomial(3, every=2)) for name in TORCH},
    **{f"scaled {name}": partial(scaled, name) for name in TORCH},
}
KERNELS = [*FUSED, "extend(Lion)", "AdamW every=3", "AdamW x̄ alone", "ScaledSGDM geometric"]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
NOWHERE = torch.device("meta")  # a tensor made there by mistake holds no numbers, and breaks what it touches


def begin(dtype, device="cpu"):
    return rig.begin(device, dtype, shapes=SHAPES)


def advance(opt, first, last):
    for t in range(first, last + 1):
        opt.param_groups[0]["lr"] = 0.02 * (1 + 0.3 * math.sin(t))
        rig.advance(opt, [t])
    return opt


COPIES = {
    "checkpoint": lambda opt, make: loaded(checkpoint(opt), make),
    "deepcopy": lambda opt, make: copy.deepcopy(opt),
    "pickle": lambda opt, make: pickle.loads(pickle.dumps(opt)),
}
every_way = pytest.mark.parametrize("way", COPIES)


def check(make, way, name, start, steps=17):
    """Compare a run, its copy and a run that was not copied; at a step that is random, between two turns as well."""
    stop = random.Random(name + way).randrange(1, steps)
    opt = advance(make(start()), 1, stop)
    other = COPIES[way](opt, make)
    assert type(other) is type(opt)
    identical(claims(advance(opt, stop + 1, steps)), claims(advance(other, stop + 1, steps)))
    advance(other, steps + 1, steps + 2)  # the copy does not write into the original
    identical(claims(opt), claims(advance(make(start()), 1, steps)))
    return other


@every_way
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_continues_bitwise(name, way):
    """torch drops step hooks silently when it copies an optimizer; here averages and scaling are in the copy."""
    if "Adafactor" in name and torch.cuda.is_available():
        pytest.skip("torch's own copies of Adafactor miss `capturable` where there is a GPU (2.11)")
    of_torch = name.split()[0] in ("extended", "scaled") or "NAdam" in name  # some of torch's load numbers as float32
    for dtype in DTYPES[:1] if of_torch or way != "checkpoint" else DTYPES:
        check(OPTIMIZERS[name], way, name, partial(begin, dtype))


@pytest.mark.some(16)
@every_way
@pytest.mark.parametrize("name", KERNELS)
def test_a_run_by_kernels_continues_bitwise(name, way, device):
    make = partial(OPTIMIZERS[name], **{} if "extend" in name else {"fused": True})
    assert rig.is_fused(check(make, way, name, partial(begin, torch.float64, device), steps=6))


def is_read(opt):
    claims(opt)
    repr(opt)


def has_no_gradients(opt):
    """Nothing is consumed."""
    opt.zero_grad()
    opt.step()


def holds_the_average(opt):
    """Blocks are nested, refuse steps, keep autograd's mode, and are left by an error."""
    params = params_of(opt)
    before = [p.detach().clone() for p in params]
    with opt.averaged():
        assert torch.is_grad_enabled()
        inside = [p.detach().clone() for p in params]
        assert not torch.equal(inside[0], before[0])
        with opt.averaged():
            assert all(map(torch.equal, params, inside))
        assert all(map(torch.equal, params, inside))
        with pytest.raises(RuntimeError, match=r"step\(\) inside averaged"):
            opt.step()
    with torch.no_grad(), opt.averaged():
        assert not torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), opt.averaged():
        params[0].data.mul_(1 / 0)


def has_a_sparse_gradient(opt):
    params_of(opt)[1].grad = params_of(opt)[1].grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse gradients"):
        opt.step()


def refuses_groups(opt):
    new = torch.nn.Parameter(torch.ones(3))
    for group in ({"seed": 8}, {"params": [new, new]}, {"lr": -1.0}, {"params": params_of(opt)[:1]}):
        with pytest.raises(ValueError):
            opt.add_param_group({"params": [new]} | group)


@pytest.mark.parametrize(
    "disturbed", [is_read, has_no_gradients, holds_the_average, has_a_sparse_gradient, refuses_groups]
)
@pytest.mark.parametrize("name", OURS)
def test_a_run_that_is_disturbed_is_the_same(name, disturbed):
    """And touches neither gradients nor a generator that is not its own."""
    if disturbed is refuses_groups and "extend" in name:
        pytest.skip("its groups are its own")
    opt, other = (build(name, begin(torch.float32), fused=False) for _ in range(2))
    other.step()
    assert not any(other.state.values())
    began = generators()
    for t in range(1, 8):
        for run in (opt, other):
            rig.set_noise(params_of(run), t)
        if t in (5, 7):
            before = snapshot(other)
            disturbed(other)
            identical(snapshot(other), before)
            rig.set_noise(params_of(other), t)
        opt.step()
        other.step()
    identical((claims(other), other.state_dict()), (claims(opt), opt.state_dict()))
    assert generators() == began


@contextmanager
def defaults(value):
    """Have torch create new tensors on another device, or of another dtype."""
    former = torch.get_default_dtype()
    torch.set_default_dtype(former if isinstance(value, torch.device) else value)
    with value if isinstance(value, torch.device) else nullcontext():
        yield
    torch.set_default_dtype(former)


@pytest.mark.some(60)
@pytest.mark.parametrize("default", [torch.float64, torch.float16, NOWHERE], ids=str)
@pytest.mark.parametrize("name", VARIANTS)
def test_defaults_of_torch_do_not_matter(name, default, fused, device):
    """To steps, certificates and loading; parameters have several dtypes, and one joins late."""
    if "NAdam" in name or ("Lion" in name and default is NOWHERE):
        pytest.skip("its own state has the default dtype, or is made on the default device")
    runs, options = [], {"fused": fused} if name.split()[0] in FUSED else {}
    for value in (torch.device("cpu"), default):
        params, others = (
            [p for dtype in (torch.float32, torch.float64) for p in rig.begin(device, dtype, [(3, 2), (), (1025,)])]
            for _ in range(2)
        )
        with defaults(value):
            opt = VARIANTS[name](params, **options)
        for t in range(1, 5):
            rig.set_noise(params, t, [1] if t == 3 else [])
            with defaults(torch.device("cpu") if t == 1 else value):  # torch makes its own state there
                opt.step()
        with defaults(value):
            claims(opt)
            other = VARIANTS[name](others, **options)
            other.load_state_dict(opt.state_dict())
        for p, q in zip(params, others, strict=True):
            q.data.copy_(p.data)
            q.grad = p.grad
        with defaults(value):
            other.step()
        runs.append(claims(other))
    identical(*runs)
