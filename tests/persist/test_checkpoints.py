"""Loading a checkpoint changes no run without a word: it is refused, or a warning names both values."""

import copy
import warnings
import weakref

import pytest
import torch

import o2nc
from fused_device import begin, is_fused, set_noise
from o2nc import learners
from problem import parameters, set_gradients

SGDM = {"lr": 0.02, "momentum": 0.9}


def advance(opt, first, last):
    params = opt.param_groups[0]["params"]
    for t in range(first, last + 1):
        set_gradients(params, t)
        opt.step()
    return opt


def trained(make, n=5):
    return advance(make(parameters()), 1, n)


def test_the_same_arguments_load_without_a_word():
    for make in (
        lambda ps: o2nc.ScaledSGDM(ps, **SGDM, average=0.99, seed=3),
        lambda ps: o2nc.ScaledSGDM(ps, **SGDM),
        lambda ps: o2nc.ExponentiatedO2NC(ps, learners.ScaleFree(lr=0.1), scaling=o2nc.Gamma(2.5), seed=3),
        lambda ps: o2nc.OriginalO2NC(ps, learners.BallOGD(lr=0.1, radius=1.0), period=3),
        lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps), seed=3),
    ):
        saved = trained(make).state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make(parameters()).load_state_dict(saved)


def test_a_checkpoint_without_averages_does_not_switch_them_off():
    saved = trained(lambda ps: o2nc.ScaledSGDM(ps, **SGDM)).state_dict()
    opt = o2nc.ScaledSGDM(parameters(), **SGDM, average=0.99)
    with pytest.warns(UserWarning, match=r"no averages: those of average=0.99 begin with the next step") as said:
        opt.load_state_dict(saved)
    assert [warning.filename for warning in said] == [__file__]
    assert opt.param_groups[0]["average"] == 0.99
    advance(opt, 6, 6)
    x = [p.detach().clone() for p in opt.param_groups[0]["params"]]
    advance(opt, 7, 7)
    assert opt.certificate().ess == pytest.approx(1.99**2 / (1 + 0.99**2))  # of two iterates
    with opt.averaged():
        assert not torch.equal(opt.param_groups[0]["params"][0], x[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: o2nc.ScaledSGDM(ps, **SGDM, average=0.9),
        lambda ps: o2nc.extend(torch.optim.SGD(ps, lr=0.1), average=0.9),
    ],
    ids=["own", "extended"],
)
def test_a_checkpoint_saved_at_the_average_is_warned_of(make):
    opt = trained(make)
    with opt.averaged(), pytest.warns(UserWarning, match=r"inside averaged\(\): the model holds x̄ there") as said:
        opt.state_dict()
    assert [warning.filename for warning in said] == [__file__]
    opt.state_dict()


@pytest.mark.parametrize("make", [o2nc.AdamW, lambda ps, **kw: o2nc.extend(torch.optim.AdamW(ps), **kw)])
def test_averages_keep_their_dtype_where_none_were_asked_for(make):
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))]
    opt = make(params, average=0.9)
    for _ in range(2):
        params[0].grad = torch.ones_like(params[0])
        opt.step()
    other = make(params, average=None) if make is o2nc.AdamW else make(params, progress=False)
    with pytest.warns(UserWarning, match="the checkpoint changes"):
        other.load_state_dict(opt.state_dict())
    before, after = opt.state[params[0]], other.state[params[0]]
    for key in ("average", "gradient", "spread", "progress"):
        assert after[key].dtype == before[key].dtype
        assert torch.equal(after[key], before[key])


def test_the_state_is_that_of_the_checkpoints_learner():
    params = parameters()
    saved = trained(lambda ps: o2nc.ExponentiatedO2NC(ps, o2nc.learners.AdaGrad(0.1)))
    other = o2nc.ExponentiatedO2NC(params, o2nc.learners.AdaGrad(0.1, diagonal=True))
    with pytest.warns(UserWarning, match="goes on with learner="):
        other.load_state_dict(saved.state_dict())
    assert other.param_groups[0]["learner"] == o2nc.learners.AdaGrad(0.1)
    assert other.state[params[0]]["sum_squares"].shape == ()


def test_a_scaled_run_does_not_begin_anew_under_other_names():
    """Seed and counter have other names in an optimizer that was extended: s would begin anew, without a word."""
    makes = [o2nc.ScaledSGDM, lambda ps, **kw: o2nc.random_scaling(torch.optim.SGD(ps, lr=0.1), **kw)]
    for make, other in (makes, makes[::-1]):
        saved = trained(lambda ps, make=make: make(ps, seed=5)).state_dict()
        with pytest.raises(ValueError, match="its run is scaled"):
            other(parameters()).load_state_dict(saved)


def test_hooks_see_what_goes_into_the_file():
    opt = trained(lambda ps: o2nc.ScaledSGDM(ps, lr=0.1))
    seen = []

    def wrap(optimizer, state_dict):
        seen.append(state_dict["param_groups"][0]["scaling"])
        return {"inner": state_dict}

    handle = opt.register_state_dict_post_hook(wrap)
    assert opt.state_dict().keys() == {"inner"}
    assert seen == [{"__name__": "Exponential", "rate": 1.0}]
    handle.remove()
    assert "param_groups" in opt.state_dict()


def test_a_copy_made_at_the_average_is_warned_of():
    opt = trained(lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, average=0.9))
    with opt.averaged(), pytest.warns(UserWarning, match="a copy of the optimizer inside averaged"):
        copy.deepcopy(opt)


def test_one_of_sgd_begins_the_averages_quietly():
    """The way from torch.optim.SGD to averages: it knows nothing of them."""
    saved = trained(lambda ps: torch.optim.SGD(ps, **SGDM)).state_dict()
    opt = o2nc.ScaledSGDM(parameters(), **SGDM, average=0.99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.load_state_dict(saved)
    assert opt.param_groups[0]["average"] == 0.99
    assert advance(opt, 6, 7).certificate().value > 0


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"seed": 4}, r"seed=3 \(made with 4\)"),
        ({"average": 0.9}, r"average=0.99 \(made with 0.9\)"),
        ({"average": None}, r"average=0.99 \(made with None\)"),
        ({"scaling": o2nc.Uniform()}, r"scaling=Exponential\(rate=1.0\) \(made with Uniform"),
        ({"scaling": None}, r"scaling=Exponential\(rate=1.0\) \(made with None\)"),
    ],
)
def test_what_it_changes_is_said(other, word):
    make = {"average": 0.99, "seed": 3}
    saved = trained(lambda ps: o2nc.ScaledSGDM(ps, **SGDM, **make)).state_dict()
    opt = o2nc.ScaledSGDM(parameters(), **SGDM, **(make | other))
    with pytest.warns(UserWarning, match=word) as said:
        opt.load_state_dict(saved)
    assert [warning.filename for warning in said] == [__file__]  # where it is called, not inside
    assert [opt.param_groups[0][k] for k in ("seed", "average", "scaling")] == [3, 0.99, o2nc.Exponential()]


def test_what_it_changes_of_algorithm_2_and_of_a_scaled_optimizer_is_said():
    saved = trained(lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1), beta=0.9)).state_dict()
    opt = o2nc.ExponentiatedO2NC(parameters(), learners.OGD(lr=0.2), beta=0.95)
    with pytest.warns(UserWarning, match=r"learner=OGD\(lr=0.1.*made with OGD\(lr=0.2.*beta=0.9 \(made with 0.95\)"):
        opt.load_state_dict(saved)
    saved = trained(lambda ps: o2nc.random_scaling(torch.optim.Adam(ps), seed=7)).state_dict()
    scaled = o2nc.random_scaling(torch.optim.Adam(parameters()))
    with pytest.warns(UserWarning, match=r"scaling_seed=7 \(made with 0\)"):
        scaled.load_state_dict(saved)


ALGORITHMS = {
    "exponentiated": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1)),
    "original": lambda ps: o2nc.OriginalO2NC(ps, learners.OGD(lr=0.1), period=2),
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, **SGDM),
    "SGD": lambda ps: torch.optim.SGD(ps, **SGDM, nesterov=True, weight_decay=0.1),
    "AdamW": lambda ps: torch.optim.AdamW(ps),
}


@pytest.mark.parametrize("name", ["exponentiated", "original", "sgdm"])
@pytest.mark.parametrize("other", ALGORITHMS)
def test_another_kind_is_refused(name, other):
    if {name, other} <= {"sgdm", "SGD"} or name == other:
        return
    opt = ALGORITHMS[name](parameters())
    with pytest.raises(ValueError, match="the checkpoint is not one of"):
        opt.load_state_dict(trained(ALGORITHMS[other]).state_dict())
    assert not opt.state


@pytest.mark.parametrize(
    ("name", "key"),
    [(name, key) for name in ("exponentiated", "original") for key in ("nesterov", "momentum")]
    + [("original", "weight_decay"), ("exponentiated", "betas")],
)
def test_a_number_that_would_be_ignored_is_refused(name, key):
    opt = trained(ALGORITHMS[name])
    opt.param_groups[0][key] = 0.1
    before = [p.detach().clone() for p in opt.param_groups[0]["params"]]
    with pytest.raises(ValueError, match=f"has no {key}, got 0.1"):
        advance(opt, 6, 6)
    assert all(torch.equal(p, q) for p, q in zip(opt.param_groups[0]["params"], before, strict=True))
    del opt.param_groups[0][key]
    advance(opt, 6, 6)


@pytest.mark.parametrize("saved_fused", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_fused_is_the_constructors(device, fused, saved_fused):
    """A GradScaler asks the constructor whether the step unscales: so it is the constructor's word that holds."""
    runs = []
    for scale in (1.0, 1024.0):
        params = begin(device, torch.float32)
        opt = o2nc.ExponentiatedO2NC(params, learners.OGD(lr=0.1), fused=saved_fused)
        for t in (1, 2):
            set_noise(params, t)
            opt.step()
        resumed = o2nc.ExponentiatedO2NC(params, learners.OGD(lr=0.1), fused=fused)
        resumed.load_state_dict(opt.state_dict())
        assert resumed.param_groups[0]["fused"] is fused
        assert resumed._step_supports_amp_scaling is fused
        scaler = torch.amp.GradScaler(device, init_scale=scale)
        scaler.scale(torch.zeros((), device=device))
        for t in (3, 4, 5):
            set_noise(params, t, scale=scaler.get_scale())
            if t == 4 and scale != 1:
                params[0].grad.view(-1)[0] = float("inf")
            if t != 4 or scale != 1:
                scaler.step(resumed)
                scaler.update()
        assert is_fused(resumed) == fused
        runs.append([p.detach().clone() for p in params] + [torch.tensor(resumed.certificate().value)])
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype))


@pytest.mark.parametrize("make", [*ALGORITHMS.values()][:3], ids=["exponentiated", "original", "sgdm"])
def test_scaled_gradients_and_overflows_off_the_fused_path(make):
    """grad_scale and found_inf, as a GradScaler leaves them on an optimizer that unscales by itself."""
    opt, plain = trained(make), trained(make)
    for t in (6, 7, 8):
        for o, scale in ((opt, 1024.0), (plain, 1.0)):
            set_gradients(o.param_groups[0]["params"], t)
            for p in o.param_groups[0]["params"]:
                p.grad.mul_(scale)
        if t == 7:
            opt.grad_scale, opt.found_inf = torch.tensor(1024.0), torch.tensor(1.0)
            opt.step()
        else:
            opt.grad_scale, opt.found_inf = torch.tensor(1024.0), torch.tensor(0.0)
            opt.step()
            plain.step()
        del opt.grad_scale, opt.found_inf
    for p, q in zip(opt.param_groups[0]["params"], plain.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q)
    assert opt.param_groups[0]["step"] == plain.param_groups[0]["step"] == 7


@pytest.mark.parametrize("fused", [True, False])
def test_the_old_state_is_let_go(device, fused):
    params = begin(device)
    opt = o2nc.ScaledSGDM(params, **SGDM, average=0.99, **({"fused": True} if fused else {"foreach": True}))
    for t in (1, 2):
        set_noise(params, t)
        opt.step()
    saved = copy.deepcopy(opt.state_dict())
    old = [weakref.ref(opt.state[p]["average"]) for p in params]
    opt.load_state_dict(saved)
    assert all(gone() is None for gone in old)
