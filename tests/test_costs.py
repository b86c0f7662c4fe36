"""What a step, a certificate and a checkpoint cost: waits for the device and memory, counted and not timed."""

import math
import re

import pytest
import torch
from o2nc.backends.triton import engine
from torch import optim
from torch.utils._python_dispatch import TorchDispatchMode

import o2nc
from fused_device import begin, set_noise, sgdm
from o2nc import learners
from pages import PAGES


class Watch(TorchDispatchMode):
    """Counts reads of numbers off tensors, which make a host wait, and the memory that is alive at once."""

    def __init__(self):
        super().__init__()
        self.waits, self.alive, self.peak, self.largest = 0, {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {t.untyped_storage().data_ptr() for t in _tensors(args)}
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._local_scalar_dense.default:
            self.waits += 1
        for t in _tensors([result]):
            storage = t.untyped_storage()
            if storage.data_ptr() not in given and storage.data_ptr() not in self.alive:
                self.alive[storage.data_ptr()] = (
                    torch.multiprocessing.reductions.StorageWeakRef(storage),
                    storage.nbytes(),
                )
                self.largest = max(self.largest, storage.nbytes())
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(n for _, n in self.alive.values()))
        return result


def _tensors(values):
    for v in values:
        if isinstance(v, torch.Tensor):
            yield v
        elif isinstance(v, list | tuple):
            yield from _tensors(v)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("average", [0.9, 0.99])
def test_waits_do_not_grow_with_the_parameters(device, fused, average):
    """One transfer for a certificate, one for a checkpoint, however many tensors there are."""
    waits = []
    for number in (3, 30):
        params = begin(device, shapes=[(4,)] * number)
        opt = sgdm(params, fused, momentum=0.9, average=average)
        for t in (1, 2):
            set_noise(params, t)
            opt.step()
        for ask in (opt.certificate, opt.state_dict, lambda: opt.progress):  # noqa: B023
            with Watch() as watch:
                ask()
            waits.append(watch.waits)
    assert waits[:3] == waits[3:]
    assert max(waits) <= 3


@pytest.mark.parametrize("fused", [True, False])
def test_a_checkpoint_allocates_nothing_of_the_models_size(device, fused):
    """Also where ḡ is read off the momentum buffer."""
    params = begin(device, shapes=[(5000,)])
    opt = sgdm(params, fused, momentum=0.9, average=0.9)
    for t in (1, 2):
        set_noise(params, t)
        opt.step()
    with Watch() as watch:
        saved = opt.state_dict()
    assert watch.largest < 1000
    assert saved["state"][0]["gradient"].untyped_storage().nbytes() <= 8


def test_a_certificate_copies_no_tensor():
    p = torch.nn.Parameter(torch.ones(50_000))
    opt = o2nc.ScaledSGDM([p], lr=0.1, momentum=0.9, average=0.99)
    p.grad = torch.ones_like(p)
    opt.step()
    with Watch() as watch:
        opt.certificate()
    assert watch.largest < 1000


def test_one_engine_for_all_steps(device, monkeypatch):
    made = []
    monkeypatch.setattr(engine.Engine, "__init__", _counting(engine.Engine.__init__, made))
    params = begin(device)
    opt = sgdm(params, momentum=0.9)
    for t in (1, 2, 3):
        set_noise(params, t)
        opt.step()
    assert len(made) == 1


def _counting(function, calls):
    def counted(*args, **kwargs):
        calls.append(args)
        return function(*args, **kwargs)

    return counted


@pytest.mark.parametrize(
    ("learner", "copies"),
    [
        (learners.OGD(lr=0.01, decay=0.1), 0.3),
        (learners.FTRL(lr=0.01), 0.3),
        (learners.AdaGrad(lr=0.01, diagonal=True), 0.5),
        (learners.ScaleFree(lr=0.01), 0.3),
        (learners.BallOGD(lr=0.01, radius=1.0), 1.1),  # a joint norm wants all gradients at once
        (learners.ScaleFree(lr=0.01, diagonal=False), 1.1),
    ],
    ids=str,
)
def test_memory_of_a_step_in_bfloat16(learner, copies, monkeypatch):
    """In units of a float32 copy of the model, beside parameters, gradients and state."""
    monkeypatch.setattr("o2nc.optimizers.learned._SLICE", 1 << 14)
    params = [torch.nn.Parameter(torch.ones(1 << 14, dtype=torch.bfloat16)) for _ in range(20)]
    opt = o2nc.ExponentiatedO2NC(params, learner, average=False)
    for p in params:
        p.grad = torch.ones_like(p)
    opt.step()
    with Watch() as watch:
        opt.step()
    room = watch.peak / (4 * 20 * (1 << 14))
    assert room < copies
    assert math.isfinite(room)


PRICES = re.findall(r"^\| `(o2nc\..*)` \| (\d+) \| (\d+) \| (\d+) \|$", PAGES["docs/performance.md"], re.MULTILINE)


@pytest.mark.parametrize(("call", "single", "half", "host"), PRICES, ids=[call for call, *_ in PRICES])
def test_the_price_list_is_what_is_kept(call, single, half, host):
    """Bytes per parameter of the state that has the parameter's shape."""
    for dtype, on_device in ((torch.float32, single), (torch.bfloat16, half)):
        (p,) = begin("cuda" if torch.cuda.is_available() else "cpu", dtype, shapes=[(40, 25)])
        names = {"o2nc": o2nc, "optim": optim, "learners": learners, "params": [p], "window": o2nc.Polynomial(12)}
        opt = eval(call, names)
        for t in range(1, 5):
            set_noise([p], t)
            opt.step()
        found = [(k, v) for k, v in opt.state[p].items() if isinstance(v, torch.Tensor) and v.numel() > 1]
        kept = {k: v.untyped_storage().nbytes() / p.numel() for k, v in found}
        there = [k for k in kept if k in opt.fields and opt.fields[k].on_host]
        assert sum(kept.pop(k) for k in there) == int(host)
        assert sum(kept.values()) == int(on_device), kept


def test_everything_that_keeps_something_has_a_price():
    told = " ".join(call for call, *_ in PRICES)
    for name in ("ScaledSGDM", "AdamW", "extend", "random_scaling", "ExponentiatedO2NC", "OriginalO2NC"):
        assert f"o2nc.{name}(" in told
    for name in set(learners.__all__) - {"Learner"}:
        assert f"learners.{name}(" in told, name
