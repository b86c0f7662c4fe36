"""When the fused step is taken, and what is said when it cannot be."""

import importlib.util
from dataclasses import dataclass

import pytest
import torch
from o2nc.backends.triton import engine

import fused_device as rig
import o2nc


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
    params = rig.begin(device)
    if "differentiable" in arguments:  # autograd refuses an in-place step on a leaf
        params = [p.clone() for p in params]
    opt = o2nc.ScaledSGDM(params, momentum=0.9, **arguments)
    rig.set_noise(params, 1)
    opt.step()
    assert rig.is_fused(opt) == fused


@pytest.mark.parametrize("fused", [None, True, False])
def test_how_algorithm_2_chooses(device, fused):
    params = rig.begin(device)
    assert rig.is_fused(rig.advance(rig.algorithm_2(params, rig.LEARNERS[0], fused), params, [1])) == (
        fused is not False
    )
    with pytest.raises(TypeError, match="fused"):
        rig.algorithm_2(params, rig.LEARNERS[0], fused="yes")


@pytest.mark.parametrize("arguments", [{}, {"average": 0.9}, {"fused": True}], ids=str)
def test_without_scaling_it_is_sgd_to_the_bit(device, arguments):
    ours, theirs = rig.begin(device, torch.float32), rig.begin(device, torch.float32)
    a = o2nc.ScaledSGDM(ours, momentum=0.9, scaling=None, **arguments)
    b = torch.optim.SGD(theirs, momentum=0.9, fused=arguments.get("fused"))
    for t in (1, 2, 3):
        for opt, params in ((a, ours), (b, theirs)):
            rig.set_noise(params, t)
            opt.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_without_scaling_the_averages_are_the_same(device):
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.sgdm(params, fused, momentum=0.9, scaling=None, average=0.9)
        runs.append(rig.facts(rig.advance(opt, params, (1, 2, 3))))
    rig.agree(*runs)


REFUSALS = {
    "complex parameters": ("complex", lambda ps, fused: o2nc.ScaledSGDM(ps, fused=fused)),
    "Gamma": ("law Gamma", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=o2nc.Gamma(0.5), fused=fused)),
    "a law of one's own": ("law Constant", lambda ps, fused: o2nc.ScaledSGDM(ps, scaling=Constant(), fused=fused)),
    "Gamma in Algorithm 2": (
        "law Gamma",
        lambda ps, fused: rig.algorithm_2(ps, rig.LEARNERS[0], fused, scaling=o2nc.Gamma(0.5)),
    ),
    "a learner of one's own": ("learner", lambda ps, fused: rig.algorithm_2(ps, SignMomentum(), fused)),
}


@pytest.mark.parametrize(("reason", "make"), REFUSALS.values(), ids=REFUSALS)
def test_what_has_no_device_form(device, reason, make):
    """fused=True says why, and nothing has changed; fused=None does without."""
    dtype = torch.complex128 if reason == "complex" else torch.float64
    params, others, before = (rig.begin(device, dtype) for _ in range(3))
    demanding = make(params, True)
    rig.set_noise(params, 1)
    with pytest.raises(RuntimeError, match=f"fused=True, but the fused step cannot be taken: .*{reason}"):
        demanding.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert demanding.param_groups[0]["step"] == 0
    willing, plain = make(params, None), make(others, False)
    for opt, ps in ((willing, params), (plain, others)):
        rig.advance(opt, ps, (1, 2, 3))
        assert not rig.is_fused(opt)
    assert all(torch.equal(p, q) for p, q in zip(params, others, strict=True))


def test_some_parameters_elsewhere(monkeypatch):
    if not rig.CUDA:
        monkeypatch.setattr(engine, "DEVICES", ("cuda", "cpu"))
    here, elsewhere = ("cuda", "cpu") if rig.CUDA else ("cpu", "meta")
    params = [torch.nn.Parameter(torch.ones(3, device=place)) for place in (here, elsewhere)]
    for make in (rig.CASES["momentum"], rig.CASES["adam"]):
        opt = make(params)
        for p in params:
            p.grad = torch.ones_like(p)
        with pytest.raises(RuntimeError, match=f"some parameters are on {elsewhere}"):
            opt.step()
        assert torch.equal(params[0], torch.ones_like(params[0]))


def test_a_processor_is_no_gpu():
    """fused=True of Algorithm 2 says so where there is no GPU; ScaledSGDM has torch's own fused step there."""
    params = rig.begin("cpu")
    opt = rig.algorithm_2(params, rig.LEARNERS[0])
    rig.set_noise(params, 1)
    with pytest.raises(RuntimeError, match="cpu"):
        opt.step()
    assert not rig.is_fused(rig.advance(rig.sgdm(params, momentum=0.9), params, [1]))
    assert not rig.is_fused(rig.advance(rig.algorithm_2(params, rig.LEARNERS[0], None), params, [1]))


def test_without_triton(monkeypatch):
    if not rig.CUDA:
        monkeypatch.setattr(engine, "DEVICES", ("cuda", "cpu"))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "triton" else find(name, *a))
    params, others = rig.begin("cuda" if rig.CUDA else "cpu"), rig.begin("cuda" if rig.CUDA else "cpu")
    for make in (rig.CASES["momentum"], rig.CASES["adam"]):
        opt = make(params)
        rig.set_noise(params, 1)
        with pytest.raises(RuntimeError, match=r"Triton, which is not installed \(pip install triton\)"):
            opt.step()
    rig.advance(o2nc.ScaledSGDM(params, momentum=0.9), params, (1, 2))
    rig.advance(o2nc.ScaledSGDM(others, momentum=0.9, foreach=True), others, (1, 2))
    rig.agree(*({str(i): p.detach() for i, p in enumerate(ps)} for ps in (params, others)))


def test_a_triton_that_is_too_old(device, monkeypatch):
    import triton

    monkeypatch.setattr(triton, "__version__", "3.2.0")
    params = rig.begin(device)
    rig.set_noise(params, 1)
    with pytest.raises(RuntimeError, match=r"needs Triton 3\.3 or later, and 3\.2\.0 is installed"):
        rig.CASES["momentum"](params).step()


@rig.some("momentum", "adam")
@pytest.mark.parametrize("first", [1, 3])
def test_sparse_gradients_are_refused(device, make, first):
    """With the usual message, and nothing has changed."""
    params = rig.begin(device)
    opt = rig.advance(make(params), params, range(1, first))
    before, there = rig.saved(opt), [p.detach().clone() for p in params]
    rig.set_noise(params, 9)
    params[0].grad = params[0].grad.to_sparse()
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        opt.step()
    rig.identical(rig.saved(opt), before)
    assert all(torch.equal(p, x) for p, x in zip(params, there, strict=True))
    others = rig.begin(device)
    rig.advance(opt, params, range(first, 5))
    rig.agree(rig.facts(opt), rig.facts(rig.advance(make(others), others, range(1, 5))), tolerance=0)


@rig.cases
@pytest.mark.parametrize("first", [1, 3])
def test_a_step_without_any_gradient_changes_nothing(device, make, first):
    params = rig.begin(device)
    opt = rig.advance(make(params), params, range(1, first))
    before, said = rig.saved(opt), rig.facts(opt)
    opt.zero_grad()
    opt.step()
    rig.identical(rig.saved(opt), before)
    rig.agree(rig.facts(opt), said, tolerance=0)


def test_a_closure(device):
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.CASES["momentum"](params, fused)

        def closure():
            opt.zero_grad()  # noqa: B023
            loss = sum((p**2).sum() for p in params)  # noqa: B023
            loss.backward()
            return loss

        assert all(opt.step(closure).requires_grad for _ in range(3))
        runs.append(rig.facts(opt))
    rig.agree(*runs)
