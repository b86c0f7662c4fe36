"""The tables of the fused step follow whatever is done to parameters, state, gradients and learning rates."""

import copy
from collections import defaultdict

import pytest
import torch

import fused_device as rig
import o2nc

# ---- the tables ----


def test_new_values_need_nothing_new(device, counted):
    """Gradients written in place: the tables stay, and nothing is uploaded."""
    params = rig.begin(device)
    opt = rig.CASES["momentum"](params)
    rig.set_noise(params, 1)
    for _ in range(4):
        for p in params:
            p.grad.mul_(0.5)
        opt.step()
    assert counted == {"layouts": 1, "uploads": 1}


@pytest.mark.parametrize("average", [None, 0.9, o2nc.Polynomial(12)], ids=["none", "discount", "power"])
def test_adamw_keeps_its_tables(device, counted, average):
    params = rig.begin(device)
    opt = o2nc.AdamW(params, fused=True, average=average)
    rig.set_noise(params, 1)
    for _ in range(4):
        opt.step()
    assert counted["layouts"] == 1


@rig.some("momentum", "no momentum", "coin")
def test_new_addresses_and_rates_are_uploaded(device, counted, make):
    """Gradients elsewhere, another lr, a parameter without a gradient: the tables stay."""
    params = rig.begin(device)
    opt = make(params)
    kept = []
    for t in (1, 2, 3):
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
    for key, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == old.shape:
            state[key] = torch.cat([value, torch.zeros_like(value[:grow])])
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


def reset_average(opt, params):
    for p in params:
        opt.state[p]["average"] = p.detach().clone()


def reset_gradient(opt, params):
    for p in params:
        opt.state[p]["gradient"] = torch.zeros_like(p)


def remove_parameter(opt, params):
    opt.param_groups[0]["params"].pop()


def narrow(opt, params):
    for p in params:
        p.grad = None
        p.data = p.data.float()


SURGERIES = [
    *(reset_buffers, forget_buffer, move_data, reorder_data, add_group, replace_parameter, grow_parameter),
    *(load_own, forget_state, forget_one, reset_average, reset_gradient, remove_parameter, narrow),
]


@pytest.mark.some(7)
@pytest.mark.parametrize("surgery", SURGERIES, ids=lambda f: f.__name__)
def test_surgery_between_steps(device, counted, surgery):
    """Whatever is done to parameters, groups and state by hand: laid out again, with the result of foreach."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.advance(rig.sgdm(params, fused, momentum=0.9, average=0.99), params, (1, 2))
        assert counted["layouts"] == 1
        surgery(opt, params)
        rig.advance(opt, params, (3, 4))
        if fused:
            assert rig.is_fused(opt)
            assert counted["layouts"] == 2
        runs.append(rig.facts(opt))
        counted["layouts"] = 1
    rig.agree(*runs, tolerance=1e-5 if surgery is narrow else 1e-12)


@pytest.mark.parametrize(
    ("case", "key"), [("adagrad", "delta"), ("adam", "momentum"), ("adam", "sum_squares"), ("adam", "output")]
)
def test_surgery_on_a_learners_state(device, counted, case, key):
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.advance(rig.CASES[case](params, fused), params, (1, 2))
        for p in params:
            opt.state[p][key] = torch.full_like(opt.state[p][key], 0.25)
        runs.append(rig.facts(rig.advance(opt, params, (3, 4))))
    rig.agree(*runs)


def test_surgery_where_only_some_have_a_buffer(device):
    """A momentum buffer reset by hand is seen also where the first parameter has none."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device, torch.float32, shapes=[(3,)]) + rig.begin(device, shapes=[(4,)])
        groups = [{"params": params[:1], "momentum": 0}, {"params": params[1:], "momentum": 0.9}]
        opt = rig.advance(rig.sgdm(groups, fused, average=0.99), params, (1, 2))
        reset_buffers(opt, params[1:])
        runs.append(rig.facts(rig.advance(opt, params, (3, 4))))
    rig.agree(*runs, tolerance=1e-6)


def truncate(opt, params):
    params[2].data = params[2].data[:1000]


def transpose(opt, params):
    params[0].data = params[0].data.t()


@pytest.mark.parametrize("surgery", [truncate, transpose])
def test_another_parameter_at_the_same_address(device, surgery):
    """The same memory in another shape or order is laid out again; state that does not fit it is refused."""
    params = rig.begin(device, shapes=[(6, 6), (), (1025,)])
    opt = rig.advance(rig.sgdm(params, momentum=0.9, average=0.99), params, (1, 2))
    whole = params[2].data
    surgery(opt, params)
    before = whole.clone()
    if surgery is truncate:
        rig.set_noise(params, 3)
        with pytest.raises(ValueError, match=r"'momentum_buffer' has shape \(1025,\), its parameter has \(1000,\)"):
            opt.step()
        assert torch.equal(whole, before)
        return
    others = rig.begin(device, shapes=[(6, 6), (), (1025,)])
    plain = rig.advance(rig.sgdm(others, False, momentum=0.9, average=0.99), others, (1, 2))
    surgery(plain, others)
    rig.agree(rig.facts(rig.advance(opt, params, (3, 4))), rig.facts(rig.advance(plain, others, (3, 4))))


def test_a_checkpoint_in_another_order(device):
    params = rig.begin(device, shapes=[(8,), (4000,)])
    saved_state = rig.advance(rig.sgdm(params, momentum=0.9), params, (1, 2)).state_dict()
    params.reverse()
    opt = rig.sgdm(params, momentum=0.9)
    opt.load_state_dict(saved_state)
    rig.set_noise(params, 3)
    with pytest.raises(ValueError, match="are they in another order"):
        opt.step()


@pytest.mark.parametrize("key", ["weight_sum", "step"])
def test_counters_set_by_hand(device, key):
    runs = []
    for fused in (True, False):
        params = rig.begin(device)
        opt = rig.advance(rig.CASES["momentum"](params, fused), params, (1, 2))
        for group in opt.param_groups:
            group[key] = 0 if key == "step" else 0.5
        runs.append(rig.facts(rig.advance(opt, params, (3, 4))))
    rig.agree(*runs)


@pytest.mark.parametrize("learner", rig.LEARNERS, ids=str)
def test_a_nan_is_not_hidden(device, learner):
    """A joint norm that is not a number spoils every tensor, as it does by foreach."""
    runs = []
    for fused in (True, False):
        params = rig.begin(device, shapes=[(3,), (4,)])
        opt = rig.algorithm_2(params, learner, fused, average=False)
        for t in (1, 2, 3):
            rig.set_noise(params, t)
            if t == 2:
                params[1].grad.fill_(float("nan"))
            opt.step()
        runs.append([p.detach().isfinite() for p in params])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


# ---- gradients and learning rates ----


@rig.cases
def test_gradients_are_read_only(device, make):
    params = rig.begin(device)
    opt = make(params)
    for t in (1, 2, 3):
        rig.set_noise(params, t)
        given = [(p.grad, p.grad.clone(), p.grad._version) for p in params]
        opt.step()
        for p, (g, value, version) in zip(params, given, strict=True):
            assert p.grad is g
            assert torch.equal(g, value)
            assert g._version == version


@pytest.mark.some(3)
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("on", ["cpu", *(["cuda"] if rig.CUDA else [])])
@rig.some("shared buffer", "no momentum", "adam")
def test_lr_as_a_tensor(device, make, on, shape):
    """It is read at every step."""
    params, others = rig.begin(device), rig.begin(device)
    opt, plain = make(params), make(others)
    lr = torch.zeros(shape, dtype=torch.float64, device=on)
    opt.param_groups[0]["lr"] = lr
    for t, rate in enumerate((0.3, 0.2, 0.2, 0.0, 0.1), 1):
        lr.fill_(rate)
        plain.param_groups[0]["lr"] = rate
        for run, ps in ((opt, params), (plain, others)):
            rig.set_noise(ps, t)
            run.step()
    assert rig.is_fused(opt)
    rig.agree(rig.facts(opt), rig.facts(plain), tolerance=0)


def test_a_tensor_rate_replaced_by_zero(device):
    """Zero is a number like any other: what the tensor held before is not left in its place."""
    (p,) = rig.begin(device, shapes=[(5,)])
    opt = rig.sgdm([p], lr=torch.tensor(0.1, device=device), momentum=0.9)
    p.grad = torch.ones_like(p)
    opt.step()
    opt.param_groups[0]["lr"] = 0.0
    before = p.detach().clone()
    opt.step()
    assert torch.equal(p, before)


@pytest.mark.some(4)
@rig.cases
def test_a_run_repeats_to_the_bit(device, make):
    runs = []
    for _ in range(2):
        params = rig.begin(device, torch.float32, shapes=[(2049,), (3,)])
        runs.append(rig.facts(rig.advance(make(params), params, (1, 2, 3))))
    rig.agree(*runs, tolerance=0)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "count", [129, pytest.param(5_000, marks=rig.needs_cuda), pytest.param(20_000, marks=rig.needs_cuda)]
)
@rig.some("shared buffer", "coin")
def test_many_tensors(device, count, make):
    """More than are settled at a time."""
    runs = []
    for fused in (True, False):
        params = [torch.nn.Parameter(v.clone()) for v in torch.ones(count, 3, dtype=torch.float64, device=device)]
        opt = make(params, fused)
        for t in (1, 2) if rig.CUDA else (1,):
            noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(t), dtype=torch.float64).to(device)
            for p, g in zip(params, noise, strict=True):
                p.grad = g.clone()
            opt.step()
        certificate = opt.certificate()
        found = {"x": torch.stack([p.detach() for p in params]), "progress": torch.tensor(opt.progress)}
        found |= {k: torch.tensor(getattr(certificate, k)) for k in ("gradient", "spread", "ess")}
        runs.append(found)
    rig.agree(*runs)
