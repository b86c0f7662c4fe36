"""averaged(): x̄ in the parameters inside the block, bitwise what was there after it (persist/test_resume.py)."""

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

import o2nc
from problem import parameters
from refusals import refusals
from registry import OURS, WINDOWED, advance, asks, identical, ours_of, params_of, snapshot, step, trained
from unchanged import unchanged


def network(tied=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 1))
    if tied:
        model[2].weight = model[0].weight
    model(torch.randn(8, 4))  # statistics of the past
    return model


def test_the_others_are_restored_when_one_cannot_be():
    opt = trained("AdamW")
    a, b, *_ = params_of(opt)
    before, shape = b.detach().clone(), a.shape
    with pytest.raises(RuntimeError, match="another shape inside averaged"), opt.averaged():
        a.data = torch.zeros(5)
    assert torch.equal(b, before)
    a.data = torch.zeros(shape)
    advance(opt, [8])


def test_parameters_that_are_converted_inside_are_restored():
    """As by ``model.half()``, to ship x̄: it replaces the memory that they had."""
    opt = trained("AdamW", params=(model := network()).parameters())
    before = [p.detach().clone() for p in model.parameters()]
    with opt.averaged():
        model.double()
    assert all(torch.equal(p, x.double()) for p, x in zip(model.parameters(), before, strict=True))


def test_blocks_that_are_used_wrongly():
    opt = trained("AdamW")
    with pytest.warns(UserWarning, match=r"write `with opt.averaged\(\)"):
        opt.averaged()
    with (block := opt.averaged()):
        pass
    with pytest.raises(RuntimeError, match="was entered before"), block:
        pass


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", WINDOWED)
def test_weights_to_ship(name, tied):
    """Keys, dtypes and values of the model's state_dict inside averaged(), and no memory of anybody's."""
    model = network(tied).bfloat16() if name == "AdamW" else network(tied)
    opt = trained(name, 5, [p for p in model.parameters() if p is not model[3].bias])
    with opt.averaged():
        expected = copy.deepcopy(model.state_dict())
    before = snapshot(opt), copy.deepcopy(model.state_dict())
    words = r"averaged_state_dict\(\): 1 trainable parameters .* stay as they are: 3.bias;"
    with pytest.warns(UserWarning, match=words):
        found = opt.averaged_state_dict(model)
    identical(dict(found), dict(expected))
    assert not torch.equal(found["0.weight"], model[0].weight)
    assert torch.equal(found["3.bias"], model[3].bias)  # not ours: as it stands
    assert found._metadata == model.state_dict()._metadata
    if tied:
        assert torch.equal(found["0.weight"], found["2.weight"])
    for value in found.values():
        value.zero_()
    identical((snapshot(opt), model.state_dict()), before)


def test_a_model_whose_state_dict_has_copies_is_refused():
    """They would be x."""
    opt = trained("AdamW", params=(model := network()).parameters())
    model.register_state_dict_post_hook(lambda _, found, *__: found.update({k: v.clone() for k, v in found.items()}))
    with pytest.raises(ValueError, match="has copies of its parameters"):
        opt.averaged_state_dict(model)


def test_several_optimizers_at_once():
    model = network()
    matrices, others = ([p for p in model.parameters() if (p.dim() == 2) is m] for m in (True, False))
    opts = trained("extend(Lion)", params=matrices), trained("AdamW", params=others)
    with unchanged(model), o2nc.averaged(*opts, model=model):
        for opt in opts:
            assert all(torch.equal(p, ours_of(opt, p)["average"]) for p in params_of(opt))
            identical(dict(opt.averaged_state_dict(model)), dict(model.state_dict()))  # all x̄: nothing to warn of
            with pytest.raises(RuntimeError, match="inside averaged"):
                opt.step(lambda: pytest.fail("the closure was called"))
    words = "2 trainable parameters of the model are in none of the optimizers.*0.weight"
    with pytest.warns(UserWarning, match=words):
        block = opts[1].averaged(nn.Sequential(model[0], model[1], model[2]))
    with block:
        pass


def test_one_failing_optimizer_restores_all():
    model = network()
    first, second = trained("SGD", 1, model[0].parameters()), OURS["AdamW"](model[2].parameters())
    words = "before the first step"
    with unchanged(model), pytest.raises(RuntimeError, match=words), o2nc.averaged(first, second):
        pytest.fail("the block was entered")


def test_two_optimizers_of_the_same_parameters_take_turns():
    """As a second window of the same run: inside one's block the other's x̄ would be lost."""
    params = parameters(torch.float32)
    opt, still = OURS["AdamW"](params), o2nc.extend(torch.optim.SGD(params, lr=0.0), average=o2nc.Polynomial(0))
    for t in range(1, 6):
        advance(still, [t])
        opt.step()
    with opt.averaged(), pytest.raises(RuntimeError, match="another optimizer's x̄"), still.averaged():
        pytest.fail("the block was entered")
    with still.averaged(), pytest.raises(RuntimeError, match="inside averaged"):
        opt.step()


def test_statistics_of_batchnorm_are_those_of_the_average():
    model, batches = network(), [torch.randn(8, 4, generator=torch.Generator().manual_seed(t)) for t in range(3)]
    opt = trained("AdamW", params=model.parameters())
    expected = copy.deepcopy(model)
    expected.load_state_dict(opt.averaged_state_dict(model))
    update_bn(batches, expected)
    for block in (opt.averaged(model, batches=batches), o2nc.averaged(opt, model=model, batches=batches)):
        with unchanged(model), block:
            identical(dict(model.state_dict()), dict(expected.state_dict()))


@pytest.mark.parametrize("name", OURS)
def test_averages_are_asked_for_too_early(name):
    """Before the first step, and before the first iterate that counts; nothing is lost by asking."""
    opt = OURS[name](parameters())
    for ask in asks(opt):
        with pytest.raises(RuntimeError, match=r"before the first step\(\)"):
            ask()
    assert not opt.state
    assert not hasattr(opt, "progress")  # hasattr and inspect look at everything
    assert "progress" not in dict(inspect.getmembers(opt))
    if name in WINDOWED:
        opt = OURS[name](parameters(), average=o2nc.Polynomial(3, start=4, every=2))
        for t in range(1, 5):
            advance(opt, [t])
            for ask in asks(opt)[:4]:  # the progress has begun
                with pytest.raises(RuntimeError, match="begin after 4 steps"):
                    ask()
        assert advance(opt, [5]).certificate().ess == 1


NOT_KEPT = {
    "average=None: pass average=o2nc.Polynomial": o2nc.SGD,
    "average=None: .*extend it": lambda ps: o2nc.random_scaling(torch.optim.SGD(ps)),
    "average=False: leave that at True": lambda ps: OURS["OGD"](ps, average=False),
    "pass certificate=True": lambda ps: OURS["AdamW"](ps, certificate=False),
}


@pytest.mark.parametrize("advice", NOT_KEPT)
def test_averages_are_not_kept(advice):
    opt = trained(NOT_KEPT[advice], 1)
    for ask in asks(opt) if "average" in advice else asks(opt)[:1]:
        with pytest.raises(RuntimeError, match=advice):
            ask()


BAD_C = (0, -1.0, float("nan"), float("inf"), "1", True)
test_bad_arguments = refusals(
    *((lambda c=c: trained("AdamW", 1).certificate(c), (ValueError, TypeError), "c must be") for c in BAD_C),
    (lambda: trained("AdamW", 1).averaged(batches=[torch.ones(2, 4)]), ValueError, "pass model=… as well"),
    (lambda: o2nc.averaged(), TypeError, "at least one optimizer"),
    (lambda: o2nc.averaged(torch.optim.SGD(parameters())), TypeError, "one of o2nc's with averages"),
    (lambda: trained("AdamW", 1).averaged_state_dict(3), TypeError, "model must be a torch.nn.Module, got 3"),
    (lambda: o2nc.averaged(o2nc.SGD(parameters())), ValueError, "keeps no averages"),
)


def test_names_that_repeat():
    modules = [nn.Linear(2, 2) for _ in range(2)]
    opt = o2nc.ScaledSGDM([{"params": list(m.named_parameters())} for m in modules], average=0.9)
    step(opt, 1.0)
    parts = opt.certificate().by_parameter
    assert list(parts) == ["weight", "bias", 2, 3]
    assert sum(part.gradient**2 for part in parts.values()) == pytest.approx(12)
