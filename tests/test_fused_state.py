"""What the fused step leaves behind: under a GradScaler, in copies and checkpoints."""

import copy
import io
import pickle

import pytest
import torch

import fused_device as rig
import o2nc

# ---- a GradScaler ----


@pytest.mark.some(8)
@rig.cases
@pytest.mark.parametrize("first", [1, 3])
def test_a_step_called_off_changes_nothing(device, make, first):
    """Not parameters, state, counters or certificate; and afterwards the run goes on as if nothing had been."""
    params, others = rig.begin(device), rig.begin(device)
    opt, plain = make(params), make(others)
    rig.advance(opt, params, range(1, first))
    before, said = rig.saved(opt), rig.facts(opt)
    for t in (7, 8):
        rig.call_off(opt, params, t)
    rig.identical(rig.saved(opt), before)
    rig.agree(rig.facts(opt), said, tolerance=0)
    rig.advance(opt, params, range(first, 4))
    rig.advance(plain, others, range(1, 4))
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


@pytest.mark.some(4)
@rig.cases
def test_a_parameter_that_joins_in_a_step_called_off(device, make):
    """It has not joined: not in the certificate, not in the checkpoint; later it joins as any other."""
    params, others = rig.begin(device), rig.begin(device)
    opt, plain = make(params), make(others)
    for run, ps in ((opt, params), (plain, others)):
        for t in (1, 2):
            rig.set_noise(ps, t, missing=[0])
            run.step()
    before, said = rig.saved(opt), rig.facts(opt)
    rig.call_off(opt, params, 9)
    rig.identical(rig.saved(opt), before)
    rig.agree(rig.facts(opt), said, tolerance=0)
    for t, missing in enumerate(([0], [], [1]), 3):
        for run, ps in ((opt, params), (plain, others)):
            run.param_groups[0]["lr"] = 0.1 / t
            rig.set_noise(ps, t, missing)
            run.step()
        rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


def test_momentum_that_begins_after_a_step_called_off(device):
    runs = []
    for overflow in (True, False):
        params = rig.begin(device)
        opt = rig.sgdm(params, average=0.9)
        rig.set_noise(params, 1, missing=[0])
        opt.step()
        if overflow:
            rig.call_off(opt, params, 9)
        opt.param_groups[0]["momentum"] = 0.8
        runs.append(rig.facts(rig.advance(opt, params, [2, 3])))
    rig.agree(*runs, tolerance=0)


@pytest.mark.some(4)
@rig.cases
def test_a_scaled_step_is_the_unscaled_one(device, make):
    """To the bit, for a scale that is a power of two; with grad_scale None the gradients are unscaled already."""
    runs = []
    for scale in (None, 1024.0):
        params = rig.begin(device)
        opt = make(params)
        for t in (1, 2, 3):
            rig.set_noise(params, t, scale=scale or 1.0)
            given = [p.grad.clone() for p in params]
            opt.found_inf = torch.zeros((), device=device)
            opt.grad_scale = None if scale is None else torch.tensor(scale, device=device)
            opt.step()
            assert all(torch.equal(p.grad, g) for p, g in zip(params, given, strict=True))
        runs.append(rig.facts(opt))
    params = rig.begin(device)
    runs.append(rig.facts(rig.advance(make(params), params, (1, 2, 3))))
    for run in runs[1:]:
        rig.agree(run, runs[0], tolerance=0)


@rig.some("shared buffer", "nesterov", "adam", "coin")
def test_a_checkpoint_after_only_overflows(device, make):
    """Loads, and continues as a run from the start."""
    params, others = rig.begin(device), rig.begin(device)
    opt = make(params)
    rig.call_off(opt, params, 1)
    resumed, plain = make(params), make(others)
    resumed.load_state_dict(opt.state_dict())
    rig.advance(resumed, params, (1, 2))
    rig.advance(plain, others, (1, 2))
    rig.agree(rig.facts(resumed), rig.facts(plain), tolerance=0)


@pytest.mark.some(4)
@rig.cases
def test_grad_scaler(device, make):
    """torch's own GradScaler, with an overflow first, in the middle, and a growing scale."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device, torch.float32)
        opt = make(params, fused)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2)
        scaler.scale(torch.zeros((), device=device))  # makes the scale
        for t in range(1, 8):
            rig.set_noise(params, t, missing=[1] if t == 5 else [], scale=scaler.get_scale())
            if t in (1, 4):
                params[0].grad.view(-1)[2] = rig.INF
            scaler.step(opt)
            scaler.update()
        assert int(opt.param_groups[0]["step"]) == 5
        assert rig.is_fused(opt) == fused
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=1e-5)


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


@pytest.mark.some(10)
@pytest.mark.parametrize("survive", SURVIVALS.values(), ids=SURVIVALS)
@rig.cases
def test_a_copy_continues_to_the_bit(device, make, survive):
    params = rig.begin(device)
    opt = rig.advance(make(params), params, (1, 2))
    resumed, copies = survive(opt, params, make)
    rig.advance(opt, params, (3, 4))
    rig.advance(resumed, copies, (3, 4))
    assert rig.is_fused(resumed)
    rig.agree(rig.facts(resumed), rig.facts(opt), tolerance=0)
    rig.identical(rig.saved(resumed), rig.saved(opt))


@rig.cases
def test_a_checkpoint_holds_plain_numbers(device, make):
    """The same entries as without kernels, of the same types."""
    params, others = rig.begin(device), rig.begin(device)
    ours = rig.advance(make(params), params, (1, 2)).state_dict()
    theirs = rig.advance(make(others, False), others, (1, 2)).state_dict()
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


@rig.cases
@pytest.mark.parametrize("fused", [True, False])
def test_checkpoints_go_between_the_two(device, make, fused):
    """Begun with kernels and continued without, or the other way round: the run without."""
    params, others = rig.begin(device), rig.begin(device)
    opt = rig.advance(make(params, fused), params, (1, 2))
    resumed = make(params, not fused)
    resumed.load_state_dict(opt.state_dict())
    switch(resumed, not fused)
    plain = rig.advance(make(others, False), others, (1, 2, 3, 4))
    rig.agree(rig.facts(rig.advance(resumed, params, (3, 4))), rig.facts(plain))
    assert rig.is_fused(resumed) != fused


@pytest.mark.some(4)
@rig.cases
def test_falling_back_in_the_middle_is_resuming(device, make):
    """From the same state on, to the bit; and back again."""
    params, others = rig.begin(device), rig.begin(device)
    opt = rig.advance(make(params), params, (1, 2))
    rig.advance(make(others), others, (1, 2))
    resumed = make(others, False)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch would share the momentum buffers
    for fused in (False, True):
        for run, ps in ((opt, params), (resumed, others)):
            switch(run, fused)
            rig.advance(run, ps, (3, 4) if not fused else (5,))
            assert rig.is_fused(run) == fused
        rig.agree(rig.facts(opt), rig.facts(resumed), tolerance=0)


@pytest.mark.parametrize("fused", [None, True])
def test_a_checkpoint_that_never_heard_of_fused(device, fused):
    """One that was written before there was a fused step."""
    params = rig.begin(device)
    checkpoint = rig.advance(rig.algorithm_2(params, rig.LEARNERS[0], False), params, [1]).state_dict()
    for group in checkpoint["param_groups"]:
        del group["fused"]
    resumed = rig.algorithm_2(params, rig.LEARNERS[0], fused)
    resumed.load_state_dict(checkpoint)
    rig.advance(resumed, params, [2])
    assert int(resumed.param_groups[0]["step"]) == 2


@pytest.mark.parametrize(
    ("before", "after"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
@rig.some("momentum", "adam", "coin")
def test_a_checkpoint_of_another_dtype(device, make, before, after):
    """State of another width than the parameter's is read as what it is."""
    params = rig.begin(device, before)
    checkpoint = rig.advance(make(params), params, (1, 2)).state_dict()
    runs = []
    for fused in (True, False):
        params = rig.begin(device, after)
        opt = make(params)
        opt.load_state_dict(copy.deepcopy(checkpoint))
        switch(opt, fused)
        runs.append(rig.facts(rig.advance(opt, params, (3, 4))))
    rig.agree(*runs, tolerance=1e-5)


@rig.some("shared buffer", "adam")
def test_averaged_restores_to_the_bit(device, make):
    params = rig.begin(device, torch.float32)
    opt = rig.advance(make(params), params, (1, 2))
    before = [p.detach().clone() for p in params]
    with opt.averaged():
        assert all(torch.equal(p, opt.state[p]["average"]) for p in params)
        with pytest.raises(RuntimeError, match=r"inside averaged\(\)"):
            opt.step()
    assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))
    others = rig.begin(device, torch.float32)
    rig.agree(
        rig.facts(rig.advance(opt, params, [3])), rig.facts(rig.advance(make(others), others, (1, 2, 3))), tolerance=0
    )
