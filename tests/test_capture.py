"""A CUDA graph repeats what it was captured with: a step that draws s on the host is refused there."""

import pytest
import torch

import o2nc
from o2nc import learners
from problem import parameters, set_gradients

REFUSED = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, foreach=True),
    "sgdm, averages alone": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=None, average=0.9),
    "gamma": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=o2nc.Gamma(0.5)),
    "exponentiated": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1), fused=False),
    "original": lambda ps: o2nc.OriginalO2NC(ps, learners.OGD(lr=0.1), period=2),
    "random_scaling": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.1, capturable=False)),
    "random_scaling, by displacement": lambda ps: o2nc.random_scaling(torch.optim.Rprop(ps, lr=0.1)),
}
ALLOWED = {
    "plain": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, scaling=None),
    "no law": lambda ps: o2nc.random_scaling(torch.optim.SGD(ps, lr=0.1), scaling=None),
}


@pytest.fixture
def capturing(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_refused(make, capturing):
    params = parameters()
    opt = make(params)
    set_gradients(params, 1)
    before = [p.detach().clone() for p in params]
    with pytest.raises(RuntimeError, match="cannot be captured in a CUDA graph"):
        opt.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert opt.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("make", ALLOWED.values(), ids=ALLOWED)
def test_allowed_where_nothing_is_drawn(make, capturing):
    params = parameters()
    opt = make(params)
    set_gradients(params, 1)
    opt.step()
