"""The tables of the fused step follow whatever is done to parameters, state, gradients and learning rates.

And what kernels leave behind is what the eager step leaves: checkpoints go from one to the other.
"""

import copy
from collections import defaultdict
from itertools import product

import pytest
import torch
from torch.utils._pytree import tree_map

import fused_device as rig
import o2nc

AVERAGED = list(product(["AdamW", "ScaledSGDM", "OGD", "extend(Lion)"], [0.9, o2nc.Polynomial(12, every=2)]))


@pytest.mark.parametrize(("name", "average"), [*AVERAGED, ("AdamW", None), ("ScaledSGDM", None)])
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
    opt, kept = rig.advance(make(params), [1]), []
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


def convert(p, data):
    p.grad, p.data = None, data


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


def replace_entries(opt, p, key, ours=False):
    """Put another dictionary with other tensors in the place of a parameter's state, or of our part of it."""
    opt.state[p] = copy.deepcopy(opt.state[p]) if not ours else opt.state[p]
    opt.state[p]["o2nc"] = copy.deepcopy(opt.state[p]["o2nc"])
    (opt.state[p]["o2nc"] if ours else opt.state[p])[key].fill_(0.25)


SURGERIES = {
    "reset buffers": lambda opt, ps: [opt.state[p].update(momentum_buffer=torch.zeros_like(p)) for p in ps],
    "forget a buffer": lambda opt, params: opt.state[params[0]].update(momentum_buffer=None),
    "move data": lambda opt, params: [convert(p, p.data.clone()) for p in params],
    "reorder data": lambda opt, params: convert(params[0], params[0].data.t().contiguous().t()),
    "transpose data": lambda opt, params: convert(params[0], params[0].data.t()),  # the same memory
    "add a group": add_group,
    "replace a parameter": replace_parameter,
    "grow a parameter": lambda opt, params: replace_parameter(opt, params, grow=2),
    "load": lambda opt, params: opt.load_state_dict(copy.deepcopy(opt.state_dict())),
    "forget all state": lambda opt, params: setattr(opt, "state", defaultdict(dict)),
    "forget a state": lambda opt, params: opt.state.pop(params[1]),
    "replace a state": lambda opt, params: replace_entries(opt, params[1], "momentum_buffer"),
    "replace ours": lambda opt, params: replace_entries(opt, params[1], "average", ours=True),
    "remove a parameter": lambda opt, params: opt.param_groups[0]["params"].pop(),
    "narrow": lambda opt, params: [convert(p, p.data.float()) for p in params],
}


@pytest.mark.parametrize("surgery", SURGERIES)
def test_surgery_between_steps(device, counted, surgery):
    """Whatever is done to parameters, groups and state by hand: laid out again, with the result of the eager step."""

    def work(fused):
        params = rig.begin(device, shapes=[(3, 3), (4,)])
        opt = rig.advance(rig.sgdm(params, fused, momentum=0.9, average=0.99), (1, 2, 3))
        assert counted["layouts"] == 1 or not fused
        SURGERIES[surgery](opt, params)
        return rig.advance(opt, (4, 5, 6))

    rig.compare(work, tolerance=1e-5 if surgery == "narrow" else 1e-12)
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
        opt = rig.advance(rig.CASES[case](params, fused), (1, 2, 3))
        for p in params:
            entry = opt.state[p] if case == "AdamW" else opt.state[p]["o2nc"]
            entry[key] = torch.full_like(entry[key], 2.0 if case == "AdamW" else 0.25)
        return rig.advance(opt, (4, 5))

    rig.compare(work)
    assert counted["layouts"] == 2


@pytest.mark.parametrize("changed", [{"momentum": 0.0}, {"nesterov": True}], ids=str)
def test_options_that_change_for_one_step_and_back(device, changed):
    """That step is torch's, and stores what the tables from before it do not know."""

    def work(fused):
        opt = rig.advance(rig.sgdm(rig.begin(device), fused, momentum=0.9, average=0.9), (1, 2, 3))
        former = {name: opt.param_groups[0][name] for name in changed}
        opt.param_groups[0].update(changed)
        rig.advance(opt, (4,)).param_groups[0].update(former)
        return rig.advance(opt, (5, 6, 7))

    rig.compare(work)


def test_state_that_does_not_fit_is_refused(device):
    """A shorter parameter at the same address, as a checkpoint in another order has it: nothing is written."""
    params = rig.begin(device, shapes=[(6, 6), (), (1025,)])
    opt = rig.advance(rig.sgdm(params, momentum=0.9, average=0.99), (1, 2, 3))
    whole = params[2].data
    params[2].data = params[2].data[:1000]
    before = whole.clone()
    words = r"'momentum_buffer' has shape \(1025,\), its parameter has \(1000,\).* are they in another order"
    with pytest.raises(ValueError, match=words):
        rig.advance(opt, [4])
    assert torch.equal(whole, before)


@rig.some("AdamW", "ScaledSGDM", "extend(Lion)")
@pytest.mark.parametrize("in_place", [True, False])
def test_the_counter_set_by_hand(device, make, in_place):
    """Written to or replaced, the host notices that it does not know it: which iterates count depends on it."""

    def work(fused):
        opt = rig.advance(make(rig.begin(device), fused, average=o2nc.Polynomial(3, every=3)), range(1, 6))
        settings = opt.param_groups[0]["o2nc"]
        settings["step"] = settings["step"].fill_(2) if in_place else torch.tensor(2)
        return rig.advance(opt, range(6, 12))

    rig.compare(work)


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


@rig.cases
@pytest.mark.parametrize("fused", [True, False])
def test_checkpoints_go_between_the_two(device, make, fused):
    """Begun with kernels and continued without, or the other way round: how a step is taken is not loaded."""
    found = []

    def work(with_kernels):
        params = rig.begin(device)
        opt = rig.advance(make(params, fused and with_kernels), (1, 2, 3))
        found.append(tree_map(lambda v: (type(v), getattr(v, "dtype", None)), rig.saved(opt)))
        resumed = make(params, not fused and with_kernels)
        wanted = resumed.param_groups[0].get("fused")
        resumed.load_state_dict(opt.state_dict())
        assert resumed.param_groups[0].get("fused") is wanted
        return rig.advance(resumed, (4, 5))

    ours = rig.facts(work(True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rig.engine, "DEVICES", ())
        rig.agree(ours, rig.facts(work(False)))
    assert found[0] == found[1]


@pytest.mark.parametrize("before", [torch.float32, torch.float64], ids=str)
@rig.some("AdamW", "ScaledSGDM", "ScaleFree", "OGD", "extend(Lion)")
def test_a_checkpoint_of_another_dtype(device, make, before):
    """State of another width than the parameter's is read as what it is."""
    after = torch.float64 if before == torch.float32 else torch.float32
    checkpoint = rig.advance(make(rig.begin(device, before)), (1, 2)).state_dict()

    def work(fused):
        opt = make(rig.begin(device, after), fused)
        opt.load_state_dict(copy.deepcopy(checkpoint))
        return rig.advance(opt, (3, 4))

    rig.compare(work, tolerance=2e-5)


@pytest.fixture
def mesh(device):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    backend = "nccl" if rig.CUDA else "gloo"
    if rig.CUDA:
        torch.cuda.set_device(0)  # else a mesh warns
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh(device, (1,))
    distributed.destroy_process_group()


@rig.some("AdamW", "ScaledSGDM", "ScaledSGDM Nesterov", "OGD", "ScaleFree", "extend(Lion)")  # torch's SGD: not fused
def test_sharded_parameters(device, mesh, make):
    """One process has all of them, as DTensors: the bits of the run with whole ones."""
    from torch.distributed.tensor import Shard, distribute_tensor

    runs = []
    for sharded in (True, False):
        put = (lambda x: distribute_tensor(x, mesh, [Shard(0)])) if sharded else torch.Tensor.clone
        whole = rig.begin(device, shapes=[(6, 2), (5,)])
        params = [torch.nn.Parameter(put(p.detach())) for p in whole]
        opt = make(params, average=o2nc.Discount(0.9, every=2))
        for t in range(1, 6):
            rig.set_noise(whole, t, missing=[1] if t in (1, 4) else [])
            for p, q in zip(params, whole, strict=True):
                p.grad = None if q.grad is None else put(q.grad)
            opt.step()
        assert rig.is_fused(opt)
        runs.append(rig.facts(opt))
    rig.agree(*runs, tolerance=0)
