"""What the fused step leaves behind: under a GradScaler, in copies and checkpoints."""

import copy
import io
import pickle

import pytest
import torch

import o2nc
from fused_device import (
    INF,
    LEARNERS,
    advance,
    agree,
    algorithm_2,
    begin,
    call_off,
    cases,
    facts,
    identical,
    ieee,
    is_fused,
    saved,
    set_noise,
    sgdm,
    some,
)

pytestmark = ieee


# ---- a GradScaler ----


@cases
@pytest.mark.parametrize("first", [1, 3])
def test_a_step_called_off_changes_nothing(device, make, first):
    """Not parameters, state, counters or certificate; and afterwards the run goes on as if nothing had been."""
    params, others = begin(device), begin(device)
    opt, plain = make(params), make(others)
    advance(opt, params, range(1, first))
    before, said = saved(opt), facts(opt)
    for t in (7, 8):
        call_off(opt, params, t)
    identical(saved(opt), before)
    agree(facts(opt), said, tolerance=0)
    advance(opt, params, range(first, 4))
    advance(plain, others, range(1, 4))
    agree(facts(opt), facts(plain), tolerance=0)


@cases
def test_a_parameter_that_joins_in_a_step_called_off(device, make):
    """It has not joined: not in the certificate, not in the checkpoint; later it joins as any other."""
    params, others = begin(device), begin(device)
    opt, plain = make(params), make(others)
    for run, ps in ((opt, params), (plain, others)):
        for t in (1, 2):
            set_noise(ps, t, missing=[0])
            run.step()
    before, said = saved(opt), facts(opt)
    call_off(opt, params, 9)
    identical(saved(opt), before)
    agree(facts(opt), said, tolerance=0)
    for t, missing in enumerate(([0], [], [1]), 3):
        for run, ps in ((opt, params), (plain, others)):
            run.param_groups[0]["lr"] = 0.1 / t
            set_noise(ps, t, missing)
            run.step()
        agree(facts(opt), facts(plain), tolerance=0)


def test_momentum_that_begins_after_a_step_called_off(device):
    runs = []
    for overflow in (True, False):
        params = begin(device)
        opt = sgdm(params, average=0.9)
        set_noise(params, 1, missing=[0])
        opt.step()
        if overflow:
            call_off(opt, params, 9)
        opt.param_groups[0]["momentum"] = 0.8
        runs.append(facts(advance(opt, params, [2, 3])))
    agree(*runs, tolerance=0)


@cases
def test_a_scaled_step_is_the_unscaled_one(device, make):
    """To the bit, for a scale that is a power of two; with grad_scale None the gradients are unscaled already."""
    runs = []
    for scale in (None, 1024.0):
        params = begin(device)
        opt = make(params)
        for t in (1, 2, 3):
            set_noise(params, t, scale=scale or 1.0)
            given = [p.grad.clone() for p in params]
            opt.found_inf = torch.zeros((), device=device)
            opt.grad_scale = None if scale is None else torch.tensor(scale, device=device)
            opt.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(params, given, strict=True))
        runs.append(facts(opt))
    params = begin(device)
    runs.append(facts(advance(make(params), params, (1, 2, 3))))
    for run in runs[1:]:
        agree(run, runs[0], tolerance=0)


@some("shared buffer", "nesterov", "adam", "coin")
def test_a_checkpoint_after_only_overflows(device, make):
    """Loads, and continues as a run from the start."""
    params, others = begin(device), begin(device)
    opt = make(params)
    call_off(opt, params, 1)
    resumed, plain = make(params), make(others)
    resumed.load_state_dict(opt.state_dict())
    advance(resumed, params, (1, 2))
    advance(plain, others, (1, 2))
    agree(facts(resumed), facts(plain), tolerance=0)


@cases
def test_grad_scaler(device, make):
    """torch's own GradScaler, with an overflow first, in the middle, and a growing scale."""
    runs = []
    for fused in (True, False):
        params = begin(device, torch.float32)
        opt = make(params, fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scaler.scale(torch.zeros((), device=device))  # makes the scale
        for t in range(1, 8):
            set_noise(params, t, missing=[1] if t == 5 else [], scale=scaler.get_scale())
            if t in (1, 4):
                params[0].grad.view(-1)[2] = INF
            scaler.step(opt)
            scaler.update()
        assert int(opt.param_groups[0]["step"]) == 5
        assert is_fused(opt) == fused
        runs.append(facts(opt))
    agree(*runs, tolerance=1e-5)


# ---- what survives ----


def through_a_file(opt, params, make):
    """Parameters and optimizer anew, from a checkpoint written and read."""
    file = io.BytesIO()
    torch.save({"params": params, "opt": opt.state_dict()}, file)
    file.seek(0)
    checkpoint = torch.load(file, weights_only=True)
    params = [torch.nn.Parameter(p) for p in checkpoint["params"]]
    opt = make(params)
    opt.load_state_dict(checkpoint["opt"])
    return opt, params


SURVIVALS = {
    "checkpoint": through_a_file,
    "deepcopy": lambda opt, params, make: copy.deepcopy((opt, params)),
    "pickle": lambda opt, params, make: pickle.loads(pickle.dumps((opt, params))),
}


@pytest.mark.parametrize("survive", SURVIVALS.values(), ids=SURVIVALS)
@cases
def test_a_copy_continues_to_the_bit(device, make, survive):
    params = begin(device)
    opt = advance(make(params), params, (1, 2))
    resumed, copies = survive(opt, params, make)
    advance(opt, params, (3, 4))
    advance(resumed, copies, (3, 4))
    assert is_fused(resumed)
    agree(facts(resumed), facts(opt), tolerance=0)
    identical(saved(resumed), saved(opt))


@cases
def test_a_checkpoint_holds_plain_numbers(device, make):
    """The same entries as without kernels, of the same types."""
    params, others = begin(device), begin(device)
    ours = advance(make(params), params, (1, 2)).state_dict()
    theirs = advance(make(others, False), others, (1, 2)).state_dict()
    for a, b in zip(ours["param_groups"], theirs["param_groups"], strict=True):
        assert {k: type(v) for k, v in a.items() if k not in ("fused", "foreach")} == {
            k: type(v) for k, v in b.items() if k not in ("fused", "foreach")
        }
    for i, state in ours["state"].items():
        assert "fresh" not in state
        for key in state.keys() & theirs["state"][i].keys():
            assert type(state[key]) is type(theirs["state"][i][key]), key
    assert ours["param_groups"][0]["step"] == 2


def switch(opt, fused):
    """Choose for the steps to come."""
    for group in opt.param_groups:
        group["fused"] = fused
        if isinstance(opt, o2nc.ScaledSGDM):
            group["foreach"] = None if fused else True


@cases
@pytest.mark.parametrize("fused", [True, False])
def test_checkpoints_go_between_the_two(device, make, fused):
    """Begun with kernels and continued without, or the other way round: the run without."""
    params, others = begin(device), begin(device)
    opt = advance(make(params, fused), params, (1, 2))
    resumed = make(params, not fused)
    resumed.load_state_dict(opt.state_dict())
    switch(resumed, not fused)
    plain = advance(make(others, False), others, (1, 2, 3, 4))
    agree(facts(advance(resumed, params, (3, 4))), facts(plain))
    assert is_fused(resumed) != fused


@cases
def test_falling_back_in_the_middle_is_resuming(device, make):
    """From the same state on, to the bit; and back again."""
    params, others = begin(device), begin(device)
    opt = advance(make(params), params, (1, 2))
    advance(make(others), others, (1, 2))
    resumed = make(others, False)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch would share the momentum buffers
    for fused in (False, True):
        for run, ps in ((opt, params), (resumed, others)):
            switch(run, fused)
            advance(run, ps, (3, 4) if not fused else (5,))
            assert is_fused(run) == fused
        agree(facts(opt), facts(resumed), tolerance=0)


@pytest.mark.parametrize("fused", [None, True])
def test_a_checkpoint_that_never_heard_of_fused(device, fused):
    """One that was written before there was a fused step."""
    params = begin(device)
    checkpoint = advance(algorithm_2(params, LEARNERS[0], False), params, [1]).state_dict()
    for group in checkpoint["param_groups"]:
        del group["fused"]
    resumed = algorithm_2(params, LEARNERS[0], fused)
    resumed.load_state_dict(checkpoint)
    advance(resumed, params, [2])
    assert int(resumed.param_groups[0]["step"]) == 2


@pytest.mark.parametrize(
    ("before", "after"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
@some("momentum", "adam", "coin")
def test_a_checkpoint_of_another_dtype(device, make, before, after):
    """State of another width than the parameter's is read as what it is."""
    params = begin(device, before)
    checkpoint = advance(make(params), params, (1, 2)).state_dict()
    runs = []
    for fused in (True, False):
        params = begin(device, after)
        opt = make(params)
        opt.load_state_dict(copy.deepcopy(checkpoint))
        switch(opt, fused)
        runs.append(facts(advance(opt, params, (3, 4))))
    agree(*runs, tolerance=1e-5)


@some("shared buffer", "adam")
def test_averaged_restores_to_the_bit(device, make):
    params = begin(device, torch.float32)
    opt = advance(make(params), params, (1, 2))
    before = [p.detach().clone() for p in params]
    with opt.averaged():
        assert all(torch.equal(p, opt.state[p]["average"]) for p in params)
        with pytest.raises(RuntimeError, match=r"inside averaged\(\)"):
            opt.step()
    assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))
    others = begin(device, torch.float32)
    agree(facts(advance(opt, params, [3])), facts(advance(make(others), others, (1, 2, 3))), tolerance=0)
