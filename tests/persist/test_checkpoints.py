"""Loading changes no run silently: it goes on bitwise (test_resume.py), is refused, or warns of both values."""

import copy
import weakref
from functools import partial

import pytest
import torch

import fused_device as rig
import o2nc
import registry
from o2nc import learners
from problem import parameters
from registry import OURS, TORCH, OwnFactor, advance, identical, ours_of, params_of

SGDM = {"lr": 0.02, "momentum": 0.9, "average": 0.9, "seed": 3}


trained = partial(registry.trained, n=5)


def extended(params, lr, momentum, **options):
    return o2nc.extend(TORCH["Adam"](params), **options)


def learned(params, lr, momentum, beta=0.9, diagonal=False, **options):
    return o2nc.ExponentiatedO2NC(params, learners.AdaGrad(lr, diagonal=diagonal), beta=beta, **options)


@pytest.fixture
def saved():
    """A checkpoint of ScaledSGDM, to be damaged."""
    return copy.deepcopy(trained(o2nc.ScaledSGDM, **SGDM).state_dict())


@pytest.mark.parametrize("name", OURS)
def test_it_is_plain_data_of_one_entry_beside_torchs(name):
    """One dictionary of ours in the first group and in every state: tensors, numbers, strings and dictionaries."""
    found = trained(OURS[name]).state_dict()
    assert not any("o2nc" in group for group in found["param_groups"][1:])
    settings = found["param_groups"][0]["o2nc"]
    assert settings["step"].dtype == torch.int64
    assert int(settings["step"]) == 5
    for entry in (settings, *(state["o2nc"] for state in found["state"].values())):
        assert all(type(v) in (torch.Tensor, float, int, bool, str, dict, type(None)) for v in entry.values())


@pytest.mark.parametrize("name", ["OGD", "AdamW", "OriginalO2NC"])
def test_loading_does_not_share_memory(name):
    found = trained(OURS[name]).state_dict()
    before = copy.deepcopy(found)
    other = OURS[name](parameters())
    other.load_state_dict(found)
    advance(other, [6])
    for state, kept in zip(found["state"].values(), before["state"].values(), strict=True):
        identical(state["o2nc"], kept["o2nc"])
    identical(found["param_groups"], before["param_groups"])


@pytest.mark.parametrize("fused", [True, False])
def test_the_old_state_is_let_go(device, fused):
    pytest.importorskip("torch.distributed.optim", reason="torch is built without processes")  # looked for then
    params = rig.begin(device)
    opt = rig.advance(rig.sgdm(params, fused, **SGDM), (1, 2, 3))
    found = copy.deepcopy(opt.state_dict())
    old = [weakref.ref(ours_of(opt, p)["average"]) for p in params]
    opt.load_state_dict(found)
    assert all(gone() is None for gone in old)


@pytest.mark.parametrize(
    ("make", "other", "word"),
    [
        (o2nc.ScaledSGDM, {"seed": 4}, r"seed=3 \(made with 4\)"),
        (o2nc.ScaledSGDM, {"average": 0.5}, r"average=Discount\(beta=0.9.*made with Discount\(beta=0.5"),
        (o2nc.ScaledSGDM, {"average": None}, r"average=Discount\(beta=0.9.*\(made with None\)"),
        (o2nc.ScaledSGDM, {"scaling": o2nc.Uniform()}, r"scaling=Exponential\(rate=1.0\) \(made with Uniform"),
        (o2nc.ScaledSGDM, {"output": "geometric"}, r"output='uniform' \(made with 'geometric'\)"),
        (o2nc.SGD, {"scaling": o2nc.Uniform()}, r"scaling=None \(made with Uniform"),
        (o2nc.SGD, {"certificate": True}, r"certificate=False \(made with True\)"),
        (o2nc.SGD, {"offload": True}, r"offload=False \(made with True\)"),
        (extended, {"seed": 7}, r"seed=3 \(made with 7\)"),
        (learned, {"diagonal": True}, r"learner=AdaGrad.*made with AdaGrad.*diagonal=True"),
        (learned, {"beta": 0.95, "average": 0.9}, r"beta=0.9 \(made with 0.95\)"),
    ],
)
def test_what_it_changes_is_said(make, other, word):
    found = trained(make, **SGDM).state_dict()
    opt = make(parameters(torch.float32), **SGDM | other)
    with pytest.warns(UserWarning, match=word) as said:
        opt.load_state_dict(found)
    assert [warning.filename for warning in said] == [__file__]  # where it is called, not inside
    identical(opt.state_dict(), found)
    advance(opt, [6])


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("make", [o2nc.SGD, partial(extended, lr=0, momentum=0)])
def test_one_without_averages_does_not_switch_them_off(make, offload):
    """They begin with the next step, wherever the run is."""
    found = trained(make, seed=3, average=None).state_dict()
    opt = make(parameters(), seed=3, average=o2nc.Discount(0.9, start=1), offload=offload)
    words = r"no averages: those of average=Discount\(beta=0.9.*begin with the next step"
    with pytest.warns(UserWarning, match=words) as said:
        opt.load_state_dict(found)
    assert [warning.filename for warning in said] == [__file__]
    assert (int(ours_of(opt)["step"]), ours_of(opt)["offload"]) == (5, offload)
    advance(opt, [6])
    with pytest.raises(RuntimeError, match="the averages begin after 6 steps, and 6 were taken"):
        opt.averaged().__enter__()
    xs = []
    for t in (7, 8):
        xs.append(params_of(opt)[0].detach().clone())
        advance(opt, [t])
    with opt.averaged():
        torch.testing.assert_close(params_of(opt)[0].detach(), (0.9 * xs[0] + xs[1]) / 1.9)


@pytest.mark.parametrize("name", ["SGD", "extend(NAdam)"])
def test_one_saved_at_the_average_is_warned_of(name):
    opt = trained(OURS[name])
    with opt.averaged():
        with pytest.warns(UserWarning, match=r"state_dict\(\) inside averaged\(\): the model holds x̄ there") as said:
            found = opt.state_dict()
        assert [warning.filename for warning in said] == [__file__]
        with pytest.warns(UserWarning, match="a copy of the optimizer inside averaged"):
            copy.deepcopy(opt)
        with pytest.raises(RuntimeError, match="inside averaged"):
            opt.load_state_dict(found)
    opt.state_dict()


KINDS = {
    "ExponentiatedO2NC": OURS["OGD"],
    "OriginalO2NC": OURS["OriginalO2NC"],
    "ScaledSGDM": OURS["ScaledSGDM"],
    "AdamW": OURS["AdamW"],
    "random_scaling(SGD)": lambda ps: o2nc.random_scaling(TORCH["SGD"](ps)),
    "torch's SGD": TORCH["SGD"],
    "torch's AdamW": TORCH["AdamW"],
    "torch's NAdam": torch.optim.NAdam,
    "torch's Adamax": torch.optim.Adamax,
}
FITTING = {("ScaledSGDM", "torch's SGD"), ("AdamW", "torch's AdamW"), ("random_scaling(SGD)", "torch's SGD")}


@pytest.mark.parametrize("name", [kind for kind in KINDS if not kind.startswith("torch")])
@pytest.mark.parametrize("other", KINDS)
def test_another_kind_is_refused(name, other):
    """The state of one would be read as another's, and s would begin from scratch."""
    if name == other or (name, other) in FITTING:
        return
    opt = KINDS[name](parameters())
    with pytest.raises(ValueError, match="the checkpoint is not one of"):
        opt.load_state_dict(trained(KINDS[other]).state_dict())
    assert not opt.state


def settings_of(saved):
    return saved["param_groups"][0]["o2nc"]


DAMAGES = {
    "seed": lambda saved: settings_of(saved).update(seed=-1),
    "step": lambda saved: settings_of(saved)["step"].fill_(-1),
    "other entries": lambda saved: settings_of(saved).pop("step"),
    "lr": lambda saved: saved["param_groups"][0].update(lr=float("nan")),
    "scaling": lambda saved: settings_of(saved).update(scaling="exponential"),
    "'A' is not known: construct .* with it first": lambda saved: settings_of(saved).update(scaling={"class": "A"}),
    "Exponential cannot be built": lambda saved: settings_of(saved)["scaling"].update(b=1),
    "average": lambda saved: settings_of(saved).update(average=2.0),
    "certificate": lambda saved: settings_of(saved).update(certificate="yes"),
    "parameter 1 lacks .*spread": lambda saved: saved["state"][1]["o2nc"].pop("spread"),
    "parameter 1 lacks .*since": lambda saved: saved["state"][1]["o2nc"].pop("since"),
    "parameter 1 lacks .*average": lambda saved: saved["state"][1]["o2nc"].pop("average"),
    "average of parameter 0 must be a floating": lambda saved: saved["state"][0]["o2nc"].update(average=None),
    "gradient of parameter 0 must be a floating": lambda saved: saved["state"][0]["o2nc"].update(gradient=1.0),
    "spread .* without axes": lambda saved: saved["state"][0]["o2nc"].update(spread=torch.ones(3)),
    "since of parameter 0": lambda saved: saved["state"][0]["o2nc"].update(since=-5),
    "none of its groups": lambda saved: saved["state"].update({7: {}}),
    "size": lambda saved: saved["param_groups"][0]["params"].append(9),
    "another order": lambda saved: saved["state"].update({0: saved["state"][1], 1: saved["state"][0]}),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damaged_ones_are_refused(what, saved):
    DAMAGES[what](saved)
    opt = o2nc.ScaledSGDM(parameters(), **SGDM | {"lr": 0.5})
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises((ValueError, TypeError), match=what):
        opt.load_state_dict(saved)
    identical(opt.state_dict(), before)
    advance(opt, [1])


def test_one_without_state_begins_with_the_next_gradient(saved):
    """It counts steps and has no averages: averaged() was x, and certificate() an obscure error."""
    opt = o2nc.ScaledSGDM(parameters(), **SGDM)
    opt.load_state_dict(saved | {"state": {}})
    for ask in (opt.certificate, opt.averaged().__enter__):
        with pytest.raises(RuntimeError, match="no parameter has averages yet, which begin with its next gradient"):
            ask()
    advance(opt, [6])
    assert opt.certificate().spread == 0


def test_hooks_see_and_change_what_is_in_the_file():
    """Those of saving come after ours, those before loading before, those after loading after."""
    opt, other = (trained(o2nc.ScaledSGDM, n=n, **SGDM) for n in (2, 0))
    p, seen = params_of(other)[0], []
    wrap = opt.register_state_dict_post_hook(lambda _, found: {"inner": found})
    assert settings_of(opt.state_dict()["inner"])["scaling"] == {"class": "Exponential", "rate": 1.0}
    wrap.remove()

    def before(_, saved):
        seen.append(settings_of(saved)["scaling"])
        saved = copy.deepcopy(saved)
        saved["state"][0]["o2nc"]["average"].fill_(7)
        return saved

    other.register_load_state_dict_pre_hook(before)
    other.register_load_state_dict_post_hook(lambda opt: ours_of(opt, p)["spread"].fill_(3))
    for n in (1, 2):  # the hooks stay
        other.load_state_dict(opt.state_dict())
        assert seen == [{"class": "Exponential", "rate": 1.0}] * n
        assert (ours_of(other, p)["average"] == 7).all()
        assert ours_of(other, p)["spread"] == 3


def test_a_users_own_factors_and_notes_in_groups():
    factor = OwnFactor(learners.OGD(0.1, decay=0.5))
    groups = ([{"params": parameters(), "tag": tag}] for tag in ({"name": "encoder"}, None))
    opt, other = (o2nc.ExponentiatedO2NC(group, factor, scaling=factor) for group in groups)
    found = advance(opt, [1]).state_dict()
    for _ in range(2):  # also once torch has given it options that the checkpoint lacks
        other.load_state_dict(found)
    assert other._learner == other._law == factor
    assert other.param_groups[0]["tag"] == {"name": "encoder"}
