"""Parameters as they come: without gradients, frozen, late, of mixed dtypes and odd layouts, with odd gradients.

Their averages against sums that are written out are in test_sums.py.
"""

import math

import numpy as np
import pytest
import torch

import fused_device as rig
import o2nc
from o2nc import learners
from problem import delta_of, parameters, set_gradients
from registry import INF, LEARNERS, OURS, PAPER, advance, build, claims, ours_of, params_of, step, trained

every_optimizer = pytest.mark.parametrize("name", OURS)


def is_finite(opt):
    """Whether all that an optimizer says of its run is finite."""
    found = claims(opt)
    numbers = [found["certificate"].value, found["certificate"].ess, found.get("progress", 0.0)]
    return np.isfinite(numbers).all() and all(t.isfinite().all() for key in ("x", "average") for t in found[key])


def zeros(*shape, dtype=torch.float32):
    return torch.nn.Parameter(torch.zeros(*shape, dtype=dtype))


@every_optimizer
def test_frozen_gradless_and_late_parameters(name):
    """A parameter without a gradient stays where it is; one that was frozen, or in a late group, joins."""
    a, b, c, frozen, late = parameters(shapes=[(3,), (4,), (2, 2), (5,), (3,)])
    frozen.requires_grad_(False)
    opt, start = OURS[name]([a, b, c, frozen]), frozen.clone()
    for t in range(1, 13):
        if t == 6:
            opt.add_param_group({"params": [late], "lr": 0.01})
        set_gradients([a, b, c, late] if t >= 6 else [a, b, c], t)
        b.grad = None if t in (4, 5, 9) else b.grad
        c.grad = None if t < 4 else c.grad
        before = [p.detach().clone() for p in (b, c)]
        opt.step()
        for p, x in zip((b, c), before, strict=True):
            assert p.grad is not None or torch.equal(p, x)
    assert is_finite(opt)
    assert torch.equal(frozen, start)
    assert frozen not in opt.state
    assert int(ours_of(opt)["step"]) == 12
    assert [("o2nc" in group, group["lr"]) for group in opt.param_groups][1] == (False, 0.01)
    assert set(opt.certificate().by_parameter) == {0, 1, 2, 4}
    if name in PAPER:
        assert torch.equal(opt.output()[3], frozen)


def test_late_parameters_of_algorithm_1_have_fewer_samples():
    """The first iterate of a parameter stands for those that it missed, in its first block only."""
    a, b = zeros(2), zeros(2)
    opt = o2nc.OriginalO2NC([a, b], learners.OGD(0.1), period=10)
    for t in range(1, 21):
        step(opt, 1.0, 1.0 if t >= 9 else None)
        if t == 10:
            by = opt.certificate().by_parameter
            assert [by[i].ess for i in (0, 1)] == pytest.approx([10, 1 / (0.9**2 + 0.1**2)])
    assert opt.certificate().by_parameter[1].ess == pytest.approx(10)


def test_absent_gradients_are_zeros_to_a_joint_learner():
    """Otherwise the joint sums lose their shares, and coin betting its promise Reg_n(0) <= ε."""
    params = [zeros(1, dtype=torch.float64) for _ in range(12)]
    opt = o2nc.OriginalO2NC(params, learners.CoinBetting(wealth=1.0), period=10**6)
    for p in params:
        for _ in range(11):
            opt.zero_grad()
            delta = delta_of(opt, p).item() if opt.state.get(p) else 0.0
            p.grad = torch.full_like(p, 1.0 if delta > 0 else -1.0)
            opt.step()
    assert opt.progress <= 1.0


@every_optimizer
def test_state_that_is_reset_by_hand_begins_again(name):
    opt = trained(name, 3)
    del opt.state[params_of(opt)[1]]
    advance(opt, range(4, 8))
    assert is_finite(opt)
    assert opt.certificate().by_parameter[1].spread > 0


@every_optimizer
def test_mixed_dtypes(name):
    """x̄ is float32 at least; some tensors are empty."""
    dtypes, shapes = (torch.float32, torch.bfloat16, torch.float64), [(3, 2), (), (0,), (3, 0, 2)]
    params = [p for dtype in dtypes for p in parameters(dtype, shapes=shapes)]
    opt = trained(name, params=params)
    assert is_finite(opt)
    assert [ours_of(opt, p)["average"].dtype for p in params] == [torch.float32] * 8 + [torch.float64] * 4
    assert [p.dtype for p in params[::4]] == [*dtypes]


@every_optimizer
def test_averages_follow_the_dtype_of_their_parameters(name, fused, device):
    """Issue: after model.double() x̄ stayed float32."""
    params = rig.begin(device, torch.float32)
    opt = rig.advance(build(name, params, fused), range(1, 4))
    for dtype in (torch.float64, torch.float32):
        for p in params:
            p.grad, p.data = None, p.data.to(dtype)
        opt.load_state_dict(opt.state_dict())  # torch's own state does not follow by itself
        rig.advance(opt, range(4, 7))  # the end of a block of Algorithm 1
        assert {ours_of(opt, p)[key].dtype for p in params for key in ("average", "gradient")} == {dtype}
        assert math.isfinite(opt.certificate().value)
        with opt.averaged():
            kept = [ours_of(opt, p) for p in params]
            assert all(torch.equal(p, k["average"]) or "last_average" in k for p, k in zip(params, kept, strict=True))


@every_optimizer
def test_complex_parameters(name):
    """A complex parameter is its real and imaginary parts side by side."""
    if name in ("extend(Lion)", "extend(NAdam)"):
        pytest.skip("it treats complex numbers in a way of its own, or not at all")
    (z,) = parameters(torch.complex128, shapes=[(3, 2)])
    x = torch.nn.Parameter(torch.view_as_real(z.detach()).clone())
    ours, twin = OURS[name]([z]), OURS[name]([x])
    for t in range(1, 7):
        set_gradients([z], t)
        x.grad = torch.view_as_real(z.grad).clone()
        if name == "SGD" or name in PAPER:  # others of torch do not take them
            z.grad = z.grad.conj().resolve_conj().conj()  # lazily conjugated, as autograd returns them
            assert z.grad.is_conj()
        ours.step()
        twin.step()
    ours, twin = claims(ours), claims(twin)
    for key in {"x", "average", "output"} & ours.keys():
        (value,) = ours[key]
        assert value.dtype == torch.complex128
        torch.testing.assert_close(torch.view_as_real(value), twin[key][0], rtol=1e-12, atol=1e-14)
    assert ours["certificate"].value == pytest.approx(twin["certificate"].value, rel=1e-11)
    assert ours.get("progress", 0) == pytest.approx(twin.get("progress", 0), rel=1e-10)


@pytest.mark.parametrize("name", ["SGD", "ScaledSGDM Nesterov", "OGD", "FTRL"])
def test_slices_do_not_matter(name):
    """One long vector or pieces of it, shorter and longer than a slice: the same averages."""
    sizes = [1, 140_000, 7, 300_000, 1000]
    whole = torch.nn.Parameter(torch.randn(sum(sizes), generator=torch.Generator().manual_seed(0)).double())
    pieces = [torch.nn.Parameter(t.clone()) for t in whole.detach().split(sizes)]
    a, b = OURS[name]([whole]), OURS[name](pieces)
    for t in range(3):
        g = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(t)).double()
        step(a, g)
        step(b, *g.clone().split(sizes))
    a, b = claims(a), claims(b)
    for key in {"x", "average", "output"} & a.keys():
        torch.testing.assert_close(torch.cat(b[key]), a[key][0], rtol=1e-13, atol=1e-15)
    for field in ("gradient", "spread"):
        assert getattr(a["certificate"], field) == pytest.approx(getattr(b["certificate"], field), rel=1e-12)
    assert a.get("progress", 0) == pytest.approx(b.get("progress", 0), rel=1e-10)


@every_optimizer
def test_integers_are_refused(name):
    p = torch.ones(3, dtype=torch.int64)
    p.grad = torch.ones(3, dtype=torch.int64)
    with pytest.raises(TypeError, match="int64"):
        OURS[name]([p]).step()
    assert p.tolist() == [1, 1, 1]


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("name", ["ScaledSGDM", "OGD"])
def test_gradients_of_another_dtype_are_not_cast(device, name):
    """A float32 gradient of a float16 parameter may be beyond float16's range."""
    found = []
    for fused in (None, False):
        p = torch.nn.Parameter(torch.ones(4, dtype=torch.float16, device=device))
        p.grad_dtype = torch.float32
        opt = OURS[name]([p], fused=fused)
        opt.param_groups[0]["lr"] = 1e-7
        for _ in range(3):
            p.grad = torch.full((4,), 1e5, device=device)
            opt.step()
        found.append((p.tolist(), opt.certificate().gradient))
    assert found[0] == found[1]
    assert found[0][1] == pytest.approx(2e5)


@pytest.mark.parametrize("learner", [LEARNERS[i] for i in (2, 5, 14, 15)], ids=str)
def test_gradients_whose_squares_overflow(learner):
    """Of a joint norm."""
    p = zeros(10)
    opt = o2nc.ExponentiatedO2NC([p], learner, scaling=None)
    for size in (0.1, 1e20, 0.1):
        step(opt, size)
    assert p.isfinite().all()
    assert (p < 0).all()


def test_a_block_that_restarts_forgets_infinities():
    """Of absent parameters, too."""
    a, b = zeros(2), zeros(2)
    opt = o2nc.OriginalO2NC([a, b], learners.BallOGD(0.1, 1.0), period=2, restart=True)
    for t in range(1, 5):
        step(opt, 1.0, {2: INF, 3: None}.get(t, 1.0))
        with torch.no_grad():
            b.nan_to_num_()
        if t == 2:
            assert not delta_of(opt, b).any()
    assert opt.certificate().by_parameter[1].gradient == pytest.approx(0.5 * 2**0.5)
