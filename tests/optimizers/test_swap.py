"""averaged(): x̄ in the parameters inside the block, bitwise what was there after it. And reading writes nothing."""

import copy
import inspect

import pytest
import torch
from torch import nn

import o2nc
from o2nc import learners
from problem import parameters, set_gradients
from registry import OURS, WINDOWED, claims, identical, ours_of, params_of

every_optimizer = pytest.mark.parametrize("name", OURS)


def trained(name, n=7, params=None, **options):
    opt = OURS[name](parameters(torch.float32) if params is None else params, **options)
    for t in range(1, n + 1):
        set_gradients(params_of(opt), t)
        opt.step()
    return opt


def network(tied=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))
    if tied:
        model[2].weight = model[0].weight
    return model


def fit(model, *opts, n=5):
    for t in range(n):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(t))
        for opt in opts:
            opt.zero_grad()
        model(x).abs().mean().backward()
        for opt in opts:
            opt.step()


def snapshot(opt):
    return copy.deepcopy((opt.state_dict(), params_of(opt)))


@every_optimizer
def test_the_parameters_are_restored_bitwise(name):
    opt = trained(name)
    params, before = params_of(opt), snapshot(opt)
    with opt.averaged():
        assert not torch.equal(params[0], before[1][0])
        inside = [p.detach().clone() for p in params]
        with opt.averaged():  # nesting is harmless
            assert all(map(torch.equal, params, inside))
        assert all(map(torch.equal, params, inside))
        with pytest.raises(RuntimeError, match=r"step\(\) inside averaged"):
            opt.step()
        assert torch.is_grad_enabled()
    identical(snapshot(opt), before)
    with pytest.raises(ZeroDivisionError), opt.averaged():
        params[0].data.mul_(1 / 0)
    identical(snapshot(opt), before)
    with torch.no_grad(), opt.averaged():
        assert not torch.is_grad_enabled()
    set_gradients(params, 8)
    opt.step()


@every_optimizer
def test_reading_writes_nothing(name):
    opt = trained(name)
    before = snapshot(opt)
    claims(opt)
    repr(opt)
    identical(snapshot(opt), before)


def test_the_others_are_restored_when_one_cannot_be():
    opt = trained("AdamW")
    a, b, *_ = params_of(opt)
    before, shape = b.detach().clone(), a.shape
    with pytest.raises(RuntimeError, match="another shape inside averaged"), opt.averaged():
        a.data = torch.zeros(5)
    assert torch.equal(b, before)
    a.data = torch.zeros(shape)
    set_gradients(params_of(opt), 8)
    opt.step()


def test_parameters_that_are_converted_inside_are_restored():
    """As by ``model.half()``, to ship x̄: it replaces the memory that they had."""
    model = network()
    opt = OURS["AdamW"](model.parameters())
    fit(model, opt)
    before = [p.detach().clone() for p in model.parameters()]
    with opt.averaged():
        model.double()
    assert all(torch.equal(p, x.double()) for p, x in zip(model.parameters(), before, strict=True))


def test_blocks_that_are_used_wrongly():
    opt = trained("AdamW")
    with pytest.warns(UserWarning, match=r"write `with opt.averaged\(\)"):
        opt.averaged()
    block = opt.averaged()
    with block:
        pass
    with pytest.raises(RuntimeError, match="was entered before"), block:
        pass
    with pytest.raises(ValueError, match="pass model=… as well"):
        opt.averaged(batches=[torch.ones(2, 4)])


# --- several optimizers, BatchNorm, weights to ship


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", WINDOWED)
def test_weights_to_ship(name, tied):
    """Keys, dtypes and values of the model's state_dict inside averaged(), and no memory of anybody's."""
    model = network(tied).bfloat16() if name == "AdamW" else network(tied)
    opt = OURS[name](p for p in model.parameters() if p is not model[3].bias)
    for t in range(5):
        set_gradients(params_of(opt), t)
        opt.step()
    with opt.averaged():
        expected = copy.deepcopy(model.state_dict())
    before = snapshot(opt), copy.deepcopy(model.state_dict())
    found = opt.averaged_state_dict(model)
    identical(dict(found), dict(expected))
    assert not torch.equal(found["0.weight"], model[0].weight)
    assert torch.equal(found["3.bias"], model[3].bias)  # not ours: as it stands
    if tied:
        assert torch.equal(found["0.weight"], found["2.weight"])
    for value in found.values():
        value.zero_()
    identical((snapshot(opt), model.state_dict()), before)


def test_several_optimizers_at_once():
    model = network()
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) is m] for m in (True, False))
    opts = OURS["extend(Lion)"](matrices), OURS["AdamW"](others)
    fit(model, *opts)
    before = copy.deepcopy(model.state_dict())
    with o2nc.averaged(*opts, model=model):
        for opt in opts:
            assert all(torch.equal(p, ours_of(opt, p)["average"]) for p in params_of(opt))
            with pytest.raises(RuntimeError, match="inside averaged"):
                opt.step()
    identical(dict(model.state_dict()), dict(before))
    with pytest.warns(
        UserWarning, match=r"2 trainable parameters of the model are in none of the optimizers.*0.weight"
    ):
        block = opts[1].averaged(nn.Sequential(model[0], model[1], model[2]))
    with block:
        pass
    with pytest.raises(TypeError, match="at least one optimizer"):
        o2nc.averaged()
    with pytest.raises(TypeError, match="one of o2nc's with averages"):
        o2nc.averaged(torch.optim.SGD(model.parameters()))
    with pytest.raises(ValueError, match="keeps no averages"):
        o2nc.averaged(o2nc.SGD(model.parameters()))


def test_one_failing_optimizer_restores_all():
    model = network()
    first, second = OURS["SGD"](model[0].parameters()), OURS["AdamW"](model[2].parameters())
    before = copy.deepcopy(model.state_dict())
    set_gradients(list(model[0].parameters()), 1)
    first.step()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="before the first step"), o2nc.averaged(first, second):
        pytest.fail("the block was entered")
    identical(dict(model.state_dict()), dict(before))


def test_two_optimizers_of_the_same_parameters_take_turns():
    """As a second window of the same run: inside one's block the other's x̄ would be lost."""
    params = parameters(torch.float32)
    opt, still = OURS["AdamW"](params), o2nc.extend(torch.optim.SGD(params, lr=0.0), average=o2nc.Polynomial(0))
    for t in range(1, 6):
        set_gradients(params, t)
        still.step()
        opt.step()
    with opt.averaged(), pytest.raises(RuntimeError, match="another optimizer's x̄"), still.averaged():
        pytest.fail("the block was entered")
    with still.averaged(), pytest.raises(RuntimeError, match="inside averaged"):
        opt.step()


def test_statistics_of_batchnorm_are_those_of_the_average():
    model, batches = network(), [torch.randn(8, 4, generator=torch.Generator().manual_seed(t)) for t in range(3)]
    opt = OURS["AdamW"](model.parameters())
    fit(model, opt)
    before = copy.deepcopy(model.state_dict())
    with opt.averaged(), o2nc.recalibrated(model, batches):
        expected = copy.deepcopy(model.state_dict())
    for block in (opt.averaged(model, batches=batches), o2nc.averaged(opt, model=model, batches=batches)):
        with block:
            identical(dict(model.state_dict()), dict(expected))
        identical(dict(model.state_dict()), dict(before))
    with (
        o2nc.recalibrated(model, batches),
        pytest.warns(UserWarning, match="the BatchNorm statistics are those of x"),
        opt.averaged(),
    ):
        pass


# --- when there is nothing to read


@every_optimizer
def test_averages_are_asked_for_too_early(name):
    opt = OURS[name](parameters())
    asks = [opt.certificate, lambda: opt.averaged().__enter__(), lambda: opt.averaged_state_dict(nn.Linear(1, 1))]
    for ask in (*asks, *([opt.output, lambda: opt.progress] if hasattr(type(opt), "output") else [])):
        with pytest.raises(RuntimeError, match="before the first step"):
            ask()
    assert not hasattr(opt, "progress")  # hasattr and inspect look at everything
    assert "progress" not in dict(inspect.getmembers(opt))


def test_averages_are_not_kept():
    for make, advice in (
        (lambda ps: o2nc.SGD(ps), "average=None: pass average=o2nc.Polynomial"),
        (
            lambda ps: o2nc.random_scaling(torch.optim.SGD(ps)),
            "average=None: pass average=o2nc.Polynomial.*extend it",
        ),
        (
            lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(0.1), average=False),
            "average=False: leave that at True",
        ),
    ):
        opt = make(parameters())
        asks = [opt.certificate, lambda opt=opt: opt.averaged().__enter__()]
        asks += [opt.output, lambda opt=opt: opt.progress] if hasattr(type(opt), "output") else []
        for ask in asks:
            with pytest.raises(RuntimeError, match=advice):
                ask()
    opt = trained("AdamW", certificate=False)
    with pytest.raises(RuntimeError, match="pass certificate=True"):
        opt.certificate()


@pytest.mark.parametrize("c", [0, -1.0, float("nan"), float("inf"), "1", True])
def test_bad_c(c):
    with pytest.raises((ValueError, TypeError), match="c must be"):
        trained("AdamW", 1).certificate(c)


def test_names_that_repeat():
    modules = [nn.Linear(2, 2) for _ in range(2)]
    opt = o2nc.ScaledSGDM([{"params": list(m.named_parameters())} for m in modules], average=0.9)
    for p in params_of(opt):
        p.grad = torch.ones_like(p)
    opt.step()
    parts = opt.certificate().by_parameter
    assert list(parts) == ["weight", "bias", 2, 3]
    assert sum(part.gradient**2 for part in parts.values()) == pytest.approx(12)
