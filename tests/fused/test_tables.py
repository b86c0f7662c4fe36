"""The tables of the fused step follow whatever is done to parameters, state, gradients and learning rates."""

import copy
from collections import defaultdict

import pytest
import torch

import fused_device as rig
import o2nc

WINDOWS = [0.9, o2nc.Polynomial(12), o2nc.Polynomial(12, every=2)]
NAMES = ["AdamW", "ScaledSGDM", "OGD", "extend(Lion)"]


@pytest.mark.parametrize(
    ("name", "average"), [(name, w) for name in NAMES for w in WINDOWS] + [("AdamW", None), ("ScaledSGDM", None)]
)
def test_new_values_need_nothing_new(device, counted, name, average):
    """Gradients written in place: the tables stay, and nothing is uploaded."""
    params = rig.begin(device)
    opt = rig.CASES[name](params, average=average)
    rig.set_noise(params, 1)
    for _ in range(6):
        for p in params:
            p.grad.mul_(0.5)
        opt.step()
    assert counted == {"layouts": 1, "uploads": 1}


@rig.some("ScaledSGDM", "ScaledSGDM plain", "OGD")
def test_new_addresses_and_rates_are_uploaded(device, counted, make):
    """Gradients elsewhere, another lr, a parameter without a gradient: the tables stay."""
    params = rig.begin(device)
    opt = rig.advance(make(params), params, [1])
    kept = []
    for t in (2, 3, 4):
        rig.set_noise(params, t)
        kept += [p.grad for p in params]
        opt.step()
    assert counted == {"layouts": 1, "uploads": 3}
    for rate in (0.3, 0.2):
        opt.param_groups[0]["lr"] = rate
        opt.step()
    assert counted == {"layouts": 1, "uploads": 5}
    params[0].grad = None
    opt.step()
    assert counted == {"layouts": 1, "uploads": 6}


# ---- surgery ----


def reset_buffers(opt, params):
    for p in params:
        opt.state[p]["momentum_buffer"] = torch.zeros_like(p)


def forget_buffer(opt, params):
    opt.state[params[0]]["momentum_buffer"] = None


def move_data(opt, params):
    for p in params:
        p.data = p.data.clone()


def reorder_data(opt, params):
    params[0].data = params[0].data.t().contiguous().t()


def add_group(opt, params):
    params.append(rig.begin(params[0].device, shapes=[(7,)])[0])
    opt.add_param_group({"params": [params[-1]], "lr": 0.2})


def replace_parameter(opt, params, grow=0):
    """Put another parameter into the group and hand its state on, as splatting code does."""
    old = params[0]
    state = opt.state.pop(old)
    new = params[0] = torch.nn.Parameter(torch.cat([old.detach(), old.detach()[:grow] + 1]))
    for entries in (state, state["o2nc"]):
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.shape == old.shape:
                entries[key] = torch.cat([value, torch.zeros_like(value[:grow])])
    opt.state[new] = state
    opt.param_groups[0]["params"][0] = new


def grow_parameter(opt, params):
    replace_parameter(opt, params, grow=2)


def load_own(opt, params):
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))


def forget_state(opt, params):
    opt.state = defaultdict(dict)


def forget_one(opt, params):
    del opt.state[params[1]]


def replace_one(opt, params):
    """Another dictionary with other tensors in the place of a parameter's state."""
    opt.state[params[1]] = copy.deepcopy(opt.state[params[1]])
    opt.state[params[1]]["momentum_buffer"].fill_(0.25)


def replace_ours(opt, params):
    opt.state[params[1]]["o2nc"] = copy.deepcopy(opt.state[params[1]]["o2nc"])
    opt.state[params[1]]["o2nc"]["average"].fill_(0.25)


def remove_parameter(opt, params):
    opt.param_groups[0]["params"].pop()


def narrow(opt, params):
    for p in params:
        p.grad = None
        p.data = p.data.float()


SURGERIES = [
    *(reset_buffers, forget_buffer, move_data, reorder_data, add_group, replace_parameter, grow_parameter),
    *(load_own, forget_state, forget_one, replace_one, replace_ours, remove_parameter, narrow),
]


@pytest.mark.parametrize("surgery", SURGERIES, ids=lambda f: f.__name__)
def test_surgery_between_steps(device, counted, surgery):
    """Whatever is done to parameters, groups and state by hand: laid out again, with the result of the eager step."""

    def work(fused):
        params = rig.begin(device)
        opt = rig.advance(rig.sgdm(params, fused, momentum=0.9, average=0.99), params, (1, 2, 3))
        assert counted["layouts"] == 1 or not fused
        surgery(opt, params)
        return rig.advance(opt, params, (4, 5, 6))

    rig.compare(work, tolerance=1e-5 if surgery is narrow else 1e-12)
    assert counted["layouts"] == 2


KEPT = {
    "OGD": ["delta"],
    "ScaleFree": ["momentum", "lead"],
    "AdamW": ["exp_avg", "exp_avg_sq", "step"],
    "ScaledSGDM": ["average", "gradient", "output"],
}


@pytest.mark.parametrize(("case", "key"), [(case, key) for case, keys in KEPT.items() for key in keys])
def test_surgery_on_what_is_kept(device, counted, case, key):
    def work(fused):
        params = rig.begin(device)
        opt = rig.advance(rig.CASES[case](params, fused), params, (1, 2, 3))
        for p in params:
            entry = opt.state[p] if case == "AdamW" else opt.state[p]["o2nc"]
            entry[key] = torch.full_like(entry[key], 2.0 if case == "AdamW" else 0.25)
        return rig.advance(opt, params, (4, 5))

    rig.compare(work)
    assert counted["layouts"] == 2


def test_surgery_where_only_some_have_a_buffer(device):
    """A momentum buffer reset by hand is seen also where the first parameter has none."""

    def work(fused):
        params = rig.begin(device, torch.float32, shapes=[(3,)]) + rig.begin(device, shapes=[(4,)])
        groups = [{"params": params[:1], "momentum": 0}, {"params": params[1:], "momentum": 0.9}]
        opt = rig.advance(rig.sgdm(groups, fused, average=0.99), params, (1, 2, 3))
        reset_buffers(opt, params[1:])
        return rig.advance(opt, params, (4, 5))

    rig.compare(work, tolerance=1e-6)


def test_the_same_memory_in_another_order(device):
    def work(fused):
        params = rig.begin(device, shapes=[(6, 6), (), (1025,)])
        opt = rig.advance(rig.sgdm(params, fused, momentum=0.9, average=0.99), params, (1, 2, 3))
        params[0].data = params[0].data.t()
        return rig.advance(opt, params, (4, 5))

    rig.compare(work)


def test_state_that_does_not_fit_is_refused(device):
    """A shorter parameter at the same address: nothing is written."""
    params = rig.begin(device, shapes=[(6, 6), (), (1025,)])
    opt = rig.advance(rig.sgdm(params, momentum=0.9, average=0.99), params, (1, 2, 3))
    whole = params[2].data
    params[2].data = params[2].data[:1000]
    before = whole.clone()
    rig.set_noise(params, 4)
    with pytest.raises(ValueError, match=r"'momentum_buffer' has shape \(1025,\), its parameter has \(1000,\)"):
        opt.step()
    assert torch.equal(whole, before)


def test_a_checkpoint_in_another_order(device):
    params = rig.begin(device, shapes=[(8,), (4000,)])
    saved_state = rig.advance(rig.sgdm(params, momentum=0.9), params, (1, 2)).state_dict()
    params.reverse()
    opt = rig.sgdm(params, momentum=0.9)
    opt.load_state_dict(saved_state)
    rig.set_noise(params, 3)
    with pytest.raises(ValueError, match="are they in another order"):
        opt.step()


@rig.some("AdamW", "ScaledSGDM", "extend(Lion)")
@pytest.mark.parametrize("in_place", [True, False])
def test_the_counter_set_by_hand(device, make, in_place):
    """Written to or replaced, the host notices that it does not know it: which iterates count depends on it."""

    def work(fused):
        params = rig.begin(device)
        opt = make(params, fused, average=o2nc.Polynomial(3, every=3))
        rig.advance(opt, params, range(1, 6))
        settings = opt.param_groups[0]["o2nc"]
        if in_place:
            settings["step"].fill_(2)
        else:
            settings["step"] = torch.tensor(2)
        return rig.advance(opt, params, range(6, 12))

    rig.compare(work)


def test_a_late_parameter_that_rests_at_once(device):
    """It joins by an eager step between two that count, and has no gradient at the next one: it is taken in."""

    def work(fused):
        params = rig.begin(device, shapes=[(3,), (2,)])
        opt = rig.CASES["OGD"](params, fused, average=o2nc.Discount(0.8, every=3))
        for t in range(1, 12):
            rig.set_noise(params, t, missing=[0] if t in (1, 2, 3, 4, 7) else [])
            opt.step()
        return opt

    rig.compare(work)


# ---- learning rates ----


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("on", ["cpu", *(["cuda"] if rig.CUDA else [])])
@rig.some("AdamW", "ScaledSGDM", "ScaledSGDM plain", "ScaleFree")
def test_lr_as_a_tensor(device, make, on, shape):
    """It is read at every step, and zero that takes its place is a number like any other."""
    params, others = rig.begin(device), rig.begin(device)
    opt, plain = make(params), make(others)
    lr = torch.zeros(shape, dtype=torch.float64, device=on)
    opt.param_groups[0]["lr"] = lr
    for t, rate in enumerate((0.3, 0.2, 0.2, 0.0, 0.1, 0.0, 0.1), 1):
        if t < 6:
            lr.fill_(rate)
        else:
            opt.param_groups[0]["lr"] = rate
        plain.param_groups[0]["lr"] = rate
        for run, ps in ((opt, params), (plain, others)):
            rig.set_noise(ps, t)
            run.step()
    assert rig.is_fused(opt)
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)
