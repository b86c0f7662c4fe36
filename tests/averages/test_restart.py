"""Averages that restart, of a run that was not finite, too; and those that are kept in the host's memory."""

import copy

import pytest
import torch

import fused_device as rig
import o2nc
from o2nc.averages.update import host_copies
from problem import parameters
from refusals import refusals
from registry import JOINT, OURS, PAPER, WINDOWED, build, claims, identical, ours_of, params_of, step

BROKEN = r"an iterate or a gradient of b was not finite after step 3 .* restart_averages\(\) starts"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", WINDOWED)
def test_what_came_before_is_forgotten(name, every, fused, device):
    """A run that is restarted after k steps has the averages of a window with start=k."""
    runs = []
    for restarts in (True, False):
        window = o2nc.Polynomial(3, start=0 if restarts else 4, every=every)
        opt = rig.advance(build(name, rig.begin(device, torch.float32), fused, average=window), range(1, 5))
        if restarts:
            opt.restart_averages()
            with pytest.raises(RuntimeError, match="averages begin after 4 steps, and 4 were taken"):
                opt.averaged().__enter__()
            opt = copy.deepcopy(opt)
        rig.advance(opt, range(5, 10))
        assert rig.is_fused(opt) == (fused and name not in JOINT)
        runs.append(claims(opt))
        runs[-1].pop("progress", None)  # one of the steps since
    identical(*runs)


def test_a_gradient_that_is_not_finite(fused, device):
    """Issue: the certificate was nan for ever and did not say why, although x had recovered."""
    params = dict(zip("ab", rig.begin(device, torch.float32), strict=True))
    opt = build("SGD", params.items(), fused, momentum=0.0, weight_decay=0.0)
    rig.advance(opt, range(1, 4))
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
    rig.advance(opt, range(7, 10))
    assert 0 < opt.certificate().value < 100
    assert ours_of(opt)["average"]["start"] == 6


BLOCKS = r"needs a window that has start, got average=Blocks\(period=3\)"
test_what_cannot_begin_anew = refusals(
    (o2nc.SGD(parameters(), lr=0.1).restart_averages, RuntimeError, "made with average=None"),
    (OURS["OriginalO2NC"](parameters()).restart_averages, RuntimeError, BLOCKS),
)


def test_a_restart_before_the_window_begins_keeps_its_start():
    opt = rig.advance(OURS["AdamW"](parameters(), average=o2nc.Polynomial(3, start=8)), range(1, 5))
    opt.restart_averages()
    assert ours_of(opt)["average"]["start"] == 8


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


# --- offload=True: the averages are kept in the host's memory, and are the same

PLACES = ["cpu", pytest.param("cuda", marks=rig.needs_cuda)]
EVERY = pytest.mark.parametrize("name", [name for name in OURS if name not in PAPER])
KEPT = ("average", "gradient", "spread")


@pytest.fixture(params=["themselves", "copies"])
def taken(request, monkeypatch):
    """As parameters on a CPU are averaged, and as those of another device are: from copies."""
    if request.param == "copies":

        def copies(rows, certifies):
            pairs = [(row, row.g if row.g is None else row.g.clone()) for row in host_copies(rows, certifies)]
            return [row._replace(x=row.x.clone(), g=g) for row, g in pairs]

        monkeypatch.setattr("o2nc.optimizers.base.host_copies", copies)


def run(name, dtype=torch.float64, place="cpu", steps=range(1, 14), **options):
    """Train with a parameter that joins late, between two turns, and others that are absent now and then."""
    params = rig.begin(place, dtype, shapes=[(3, 2), (4,), (5,)])
    opt = OURS[name](params, average=o2nc.Polynomial(2, start=2, every=4), **options)
    for t in steps:
        rig.advance(opt, [t], [i for i, away in ((1, t % 3 == 0), (2, t < 6)) if away])
    return opt, params


@EVERY
@pytest.mark.parametrize("place", PLACES)
def test_the_host_alone_has_what_is_otherwise_beside_the_parameters(name, place, taken):
    opt, params = run(name, place=place, offload=True)
    if place == "cpu":
        identical(claims(opt), claims(run(name)[0]))
    for _ in range(2):
        assert {ours_of(opt, p)[key].device.type for p in params for key in KEPT} == {"cpu"}
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    opt.certificate()
    with opt.averaged():
        assert {p.device.type for p in params} == {place}


@rig.needs_cuda
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_on_a_gpu_they_are_those_beside_the_parameters(name):
    found = [
        claims(run(name, torch.bfloat16, "cuda", **options)[0]) for options in ({"offload": True}, {"fused": False})
    ]
    assert all(map(torch.equal, found[0]["x"], found[1]["x"]))
    assert found[0]["certificate"].value == pytest.approx(found[1]["certificate"].value, rel=1e-5)
    torch.testing.assert_close(found[0]["average"], found[1]["average"])


def test_parameters_that_are_exchanged_or_taken_out_leave_the_others_alone():
    opt, params = run("AdamW", offload=True)
    params[0] = opt.param_groups[0]["params"][0] = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
    rig.advance(opt, range(14, 20))
    assert len(opt.certificate().by_parameter) == 3
    del opt.param_groups[0]["params"][0]
    rig.advance(opt, range(20, 26))
    assert len(opt.certificate().by_parameter) == 2 == len(params_of(opt))
