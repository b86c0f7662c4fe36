"""extend(optimizer) and random_scaling(optimizer): any torch optimizer, in place; what is refused is left alone."""

import abc
import copy
import inspect
from unittest.mock import patch

import pytest
import torch
from torch import optim

import fused_device as rig
import o2nc
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.extend import _INSTANCE_NAMES
from o2nc.optimizers.wrapped import averaged_optimizer
from problem import parameters, set_gradients
from registry import TORCH, advance, claims, identical, ours_of, params_of

LAW = o2nc.Exponential()


def test_every_optimizer_of_torch_is_in_the_registry():
    names = {name for name, cls in vars(optim).items() if inspect.isclass(cls) and issubclass(cls, optim.Optimizer)}
    here = {type(make(parameters())).__name__ for make in TORCH.values()}
    assert names - {"Optimizer", "LBFGS", "SparseAdam"} <= here


@pytest.mark.parametrize("name", TORCH)
def test_the_update_is_scaled(name):
    """x_{t+1} = x_t + s_{t+1}·(what the optimizer would have added), from the same state; .grad is left alone.

    It is the same object, of a class that looks like its own.
    """
    opt = TORCH[name](parameters())
    cls, params = type(opt), params_of(opt)
    assert o2nc.random_scaling(opt, seed=9) is opt
    assert isinstance(opt, cls)
    assert all(getattr(type(opt), key) == getattr(cls, key) for key in ("__name__", "__module__", "__doc__"))
    lr = float(opt.param_groups[0]["lr"])
    for t in range(1, 6):
        set_gradients(params, t)
        twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
        plain = TORCH[name](twins)
        for p, q in zip(params, twins, strict=True):
            q.grad = p.grad.clone()
            if p in opt.state:
                plain.state[q] = copy.deepcopy(opt.state[p])
        before = [p.detach().clone() for p in params]
        plain.step()
        opt.step()
        s = LAW.sample(9, t + 1)
        for p, q, x in zip(params, twins, before, strict=True):
            torch.testing.assert_close(p.detach() - x, s * (q.detach() - x), rtol=1e-9, atol=1e-14)
            assert torch.equal(p.grad, q.grad)
            for key, value in plain.state[q].items():
                assert value is opt.state[p][key] or torch.equal(*map(torch.as_tensor, (value, opt.state[p][key])))
    assert float(opt.param_groups[0]["lr"]) == lr
    assert int(ours_of(opt)["step"]) == 5


def test_an_optimizer_with_state_is_extended_from_its_next_step_on():
    opt, plain = (advance(optim.RAdam(parameters(), lr=0.02), range(1, 5)) for _ in range(2))
    o2nc.extend(opt, average=o2nc.Polynomial(0))
    with pytest.raises(RuntimeError, match=r"before the first step\(\)"):
        opt.averaged().__enter__()
    xs = []
    for t in range(5, 9):
        xs.append([p.detach().clone() for p in params_of(opt)])
        advance(opt, [t])
        advance(plain, [t])
    assert all(map(torch.equal, params_of(opt), params_of(plain)))
    with opt.averaged():
        means = [torch.stack(column).mean(0) for column in zip(*xs, strict=True)]
        torch.testing.assert_close([p.detach() for p in params_of(opt)], means)


class Flaky(optim.RMSprop):
    """An optimizer whose steps fail when they are told to."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            self.fails = False
            raise MemoryError
        return super().step(closure)


@pytest.mark.parametrize("failing", [1, 4])
@pytest.mark.parametrize("options", [{}, {"average": 0.9}, {"average": o2nc.Polynomial(3, every=3), "offload": True}])
@pytest.mark.parametrize("kernels", [False, True])
def test_a_step_that_fails_averages_its_iterate_once(kernels, options, failing, device, monkeypatch):
    if not kernels:
        monkeypatch.setattr(rig.engine, "DEVICES", ())
    runs = []
    for flaky in (False, True):
        params = rig.begin(device, torch.float64)
        opt = o2nc.extend(Flaky(params, lr=0.02), scaling=o2nc.Jitter(0.5), certificate=True, **options)
        for t in range(1, 8):
            opt.fails = flaky and t == failing
            rig.set_noise(params, t)
            if opt.fails:
                with pytest.raises(MemoryError):
                    opt.step()
            opt.step()
        runs.append(claims(opt))
    identical(*runs)


def test_after_a_failed_step_other_gradients_or_a_checkpoint_may_come():
    opt = o2nc.extend(Flaky(parameters(), lr=0.02), average=0.9, certificate=True)
    params, opt.fails = params_of(opt), True
    with pytest.raises(MemoryError):
        advance(opt, [1])
    for t in range(1, 5):
        set_gradients(params, t)
        params[1].grad = None if t == 1 else params[1].grad
        opt.step()
        assert int(ours_of(opt)["step"]) == t
    saved, whole = copy.deepcopy(opt.state_dict()), copy.deepcopy(opt)
    opt.fails = True
    with pytest.raises(MemoryError):
        advance(opt, [5])
    resumed = o2nc.extend(Flaky(copy.deepcopy(params), lr=0.02), average=0.9, certificate=True)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # x_5 is in its averages, and counts once
    expected = claims(advance(whole, [5]))
    identical(claims(advance(resumed, [5])), expected)
    opt.load_state_dict(saved)
    identical(claims(advance(opt, [5])), expected)


class Wrapper(optim.Optimizer):
    """As accelerate has one: what it is asked for it looks up in the optimizer inside."""

    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def __init__(self, optimizer):
        self.optimizer = optimizer


class Lookahead(optim.Optimizer):
    """Has an optimizer of its own, whose state it shows as its own."""

    def __init__(self, params):
        self.optimizer = optim.SGD(params, lr=0.1)
        super().__init__(self.optimizer.param_groups, {"lr": 0.1})

    def step(self, closure=None):
        """Step."""
        return self.optimizer.step()


@pytest.mark.parametrize("wrap", [lambda opt: opt, Wrapper], ids=["itself", "wrapped"])
def test_an_extended_optimizer_that_has_one_of_its_own(wrap):
    """Issue: whoever unwraps what frameworks have wrapped went on to the optimizer inside."""
    opt = advance(o2nc.extend(Lookahead(parameters()), average=0.9, certificate=True), range(1, 5))
    assert averaged_optimizer(wrap(opt), certificate=True) is opt
    with o2nc.averaged(wrap(opt)):
        assert all(torch.equal(p, ours_of(opt, p)["average"]) for p in params_of(opt))


class Abstract(abc.ABC, optim.Optimizer):
    """As some packages have it."""


def named(name):
    """Return an optimizer that has given itself an attribute."""
    opt = optim.SGD(parameters())
    setattr(opt, name, 0)
    return opt


def loaded():
    """Return an optimizer of torch's with the checkpoint of an extended one."""
    opt = optim.SGD(parameters())
    opt.load_state_dict(advance(o2nc.extend(optim.SGD(parameters()), average=0.9), [1]).state_dict())
    return opt


Clash = type("Clash", (optim.SGD,), {"_move": None})  # which would become ours
REFUSED = {
    "extended": (lambda: o2nc.extend(optim.SGD(parameters())), {}, ValueError, "already"),
    "ours": (lambda: o2nc.ScaledSGDM(parameters()), {}, ValueError, "ScaledSGDM"),
    "LBFGS": (lambda: optim.LBFGS(parameters()), {}, ValueError, "several gradients per step"),
    "no optimizer": (parameters, {}, TypeError, "optimizer must be"),
    "a class": (lambda: optim.SGD, {}, TypeError, "optimizer must be"),
    "wrapped": (lambda: Wrapper(optim.SGD(parameters())), {}, ValueError, "apply extend first, then wrap"),
    "layout": (lambda: Abstract(parameters(), {"lr": 0.1}), {}, ValueError, "another layout"),
    "method": (lambda: Clash(parameters()), {}, ValueError, r"names of its own that extend needs: \['_move'\]"),
    "checkpoint": (loaded, {}, ValueError, "apply extend first, then load"),
    "differentiable": (lambda: optim.SGD(parameters(), differentiable=True), {}, ValueError, "differentiable"),
    "average": (lambda: optim.SGD(parameters()), {"average": 2}, ValueError, "average must be"),
    "scaling": (lambda: optim.SGD(parameters()), {"scaling": 3}, TypeError, "scaling"),
    "seed": (lambda: optim.SGD(parameters()), {"seed": -1}, ValueError, "seed"),
    "certificate": (lambda: optim.SGD(parameters()), {"certificate": 1}, TypeError, "certificate"),
}
for _name in ("averaged", "certificate", *sorted(_INSTANCE_NAMES)):
    _message = rf"names of its own that extend needs: \['{_name}'\]"
    REFUSED[_name + " of its own"] = (lambda name=_name: named(name), {}, ValueError, _message)


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_is_left_alone(why):
    make, options, error, words = REFUSED[why]
    opt = make()
    cls, before = type(opt), copy.copy(vars(opt)) if isinstance(opt, optim.Optimizer) else {}
    groups = [dict(group) for group in before.get("param_groups", ())]
    with pytest.raises(error, match=words):
        o2nc.extend(opt, **{"average": 0.9} | options)
    assert type(opt) is cls
    if before:
        assert vars(opt) == before
        assert [group.keys() for group in opt.param_groups] == [group.keys() for group in groups] or not groups


def test_what_cannot_be_extended_can_be_later():
    opt = optim.SGD(parameters(), lr=0.1)
    before, refuse = dict(vars(opt)), patch.object(Averaged, "_refuse_partial", side_effect=ValueError("only a part"))
    with refuse, pytest.raises(ValueError, match="only a part"):
        o2nc.extend(opt, average=0.9)
    assert vars(opt) == before
    advance(o2nc.extend(opt, average=0.9), [1, 2])


def test_weight_decay_in_the_certificate():
    """It is a part of F where it is a part of the gradient, as in `o2nc.SGD`, and not where it is decoupled."""
    shared = {"average": o2nc.Polynomial(3), "certificate": True}
    nadam = optim.NAdam(parameters(), weight_decay=0.5, decoupled_weight_decay=True)
    sgd, options = optim.SGD(parameters(), 0.02, weight_decay=0.5), {"lr": 0.02, "weight_decay": 0.5}
    opts = o2nc.extend(nadam, **shared), o2nc.extend(sgd, **shared), o2nc.SGD(parameters(), **options, **shared)
    decoupled, coupled, ours = (advance(opt, range(1, 6)).certificate().gradient for opt in opts)
    assert coupled == ours
    kept = torch.cat([ours_of(nadam, p)["gradient"].flatten() for p in params_of(nadam)])
    assert decoupled == pytest.approx(kept.norm().item())
