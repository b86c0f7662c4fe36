"""Averages that begin anew, and what is said of a certificate that is not finite."""

import copy

import pytest
import torch

import fused_device as rig
import o2nc
from problem import parameters
from refusals import refusals
from registry import JOINT, OURS, WINDOWED, build, claims, identical, ours_of, params_of, step

BROKEN = r"an iterate or a gradient of b was not finite after step 3 .* restart_averages\(\) starts"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", WINDOWED)
def test_what_came_before_is_forgotten(name, every, fused, device):
    """A run that is restarted after k steps has the averages of a window with start=k."""
    runs = []
    for restarts in (True, False):
        params = rig.begin(device, torch.float32)
        window = o2nc.Polynomial(3, start=0 if restarts else 4, every=every)
        opt = rig.advance(build(name, params, fused, average=window), params, range(1, 5))
        if restarts:
            opt.restart_averages()
            with pytest.raises(RuntimeError, match="averages begin after 4 steps, and 4 were taken"):
                opt.averaged().__enter__()
            opt = copy.deepcopy(opt)
            params = params_of(opt)
        rig.advance(opt, params, range(5, 10))
        assert rig.is_fused(opt) == (fused and name not in JOINT)
        runs.append(claims(opt))
        runs[-1].pop("progress", None)  # one of the steps since
    identical(*runs)


def test_a_gradient_that_is_not_finite(fused, device):
    """Issue: the certificate was nan for ever and did not say why, although x had recovered."""
    params = dict(zip("ab", rig.begin(device, torch.float32), strict=True))
    opt = build("SGD", params.items(), fused, momentum=0.0, weight_decay=0.0)
    rig.advance(opt, params.values(), range(1, 4))
    assert opt.certificate().value > 0
    for t in (4, 5, 6):
        rig.set_noise(params.values(), t)
        before = params["b"].detach().clone()
        if t == 5:
            params["b"].grad[1] = torch.nan
        opt.step()
        params["b"].data.copy_(before)
    for _ in range(2):  # the same words, so that Python shows them once
        with pytest.warns(UserWarning, match=BROKEN) as caught:
            found = opt.certificate()
        assert caught[0].filename == __file__
    assert found.by_parameter["a"].value < float("inf")
    opt.restart_averages()
    rig.advance(opt, params.values(), range(7, 10))
    assert 0 < opt.certificate().value < 100
    assert ours_of(opt)["average"]["start"] == 6


BLOCKS = r"needs a window that has start, got average=Blocks\(period=3\)"
test_what_cannot_begin_anew = refusals(
    (o2nc.SGD(parameters(), lr=0.1).restart_averages, RuntimeError, "made with average=None"),
    (OURS["OriginalO2NC"](parameters()).restart_averages, RuntimeError, BLOCKS),
)


def test_a_restart_after_a_step_that_failed_forgets_it():
    p = torch.nn.Parameter(torch.ones(2))
    opt = o2nc.AdamW([p], average=o2nc.Polynomial(2), certificate=True)
    step(opt, 1.0)
    betas, opt.param_groups[0]["betas"] = opt.param_groups[0]["betas"], "no numbers"
    with pytest.raises((TypeError, ValueError)):
        step(opt, torch.nan)
    opt.param_groups[0]["betas"] = betas
    opt.restart_averages()
    step(opt, 1.0)
    assert opt.certificate().gradient == pytest.approx(2**0.5)
