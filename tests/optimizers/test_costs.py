"""What a step, a certificate and a checkpoint cost: waits for the device and memory, counted and not timed."""

import re

import pytest
import torch
from torch import optim
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import o2nc
from fused_device import advance, begin, set_noise
from o2nc import learners
from pages import PAGES
from registry import OURS, PAPER, build, ours_of, step


class Watch(TorchDispatchMode):
    """Counts operations, reads of numbers off tensors, which make a host wait, and memory that is alive at once."""

    def __init__(self):
        super().__init__()
        self.waits, self.operations, self.alive, self.peak, self.largest = 0, 0, {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {storage.data_ptr() for storage in _storages(args)}
        result = function(*args, **(kwargs or {}))
        self.operations += 1
        if function is torch.ops.aten._local_scalar_dense.default:
            self.waits += 1
        for storage in _storages(result):
            if storage.data_ptr() not in given and storage.data_ptr() not in self.alive:
                reference = torch.multiprocessing.reductions.StorageWeakRef(storage)
                self.alive[storage.data_ptr()] = (reference, storage.nbytes())
                self.largest = max(self.largest, storage.nbytes())
        self.alive = {k: v for k, v in self.alive.items() if not v[0].expired()}
        self.peak = max(self.peak, sum(n for _, n in self.alive.values()))
        return result


def _storages(values):
    return [t.untyped_storage() for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", ["AdamW", "ScaledSGDM", "OriginalO2NC"])
def test_waits_do_not_grow_with_the_parameters(name, fused, device):
    """A few transfers for a certificate and the progress, none for a checkpoint, however many tensors there are."""
    waits = []
    for number in (3, 30):
        opt = advance(build(name, begin(device, shapes=[(4,)] * number), fused), range(1, 5))
        asks = [opt.certificate, opt.state_dict] + ([lambda: opt.progress] if name in PAPER else [])  # noqa: B023
        for ask in asks:
            with Watch() as watch:
                ask()
            waits.append(watch.waits)
    assert waits[: len(asks)] == waits[len(asks) :]
    assert max(waits) <= 3
    assert waits[1] == 0


@pytest.mark.parametrize("name", OURS)
def test_asking_copies_no_tensor(name):
    if name in ("SGD", "ScaledSGDM Nesterov"):
        pytest.skip("weight decay in the gradient: ḡ + λx̄ is computed")
    p = torch.nn.Parameter(torch.ones(50_000))
    opt = advance(OURS[name]([p]), range(1, 4))
    for ask in (opt.certificate, opt.state_dict):
        with Watch() as watch:
            ask()
        assert watch.largest < 1000


@pytest.mark.parametrize("name", ["SGD", "AdamW", "extend(NAdam)", "ScaledSGDM", "OGD"])
def test_an_iterate_that_does_not_count_costs_no_average(name):
    """every=k: at the other iterates the averages are neither read nor written, and no operation is for them."""
    params = [torch.nn.Parameter(torch.ones(5)) for _ in range(3)]
    keys, counts = ("average", "gradient", "spread"), []
    for average in (None, o2nc.Polynomial(3, every=4)):
        more = {} if name in PAPER else {"certificate": True}
        opt = advance(OURS[name](params, average=average, **more), [1, 2])
        kept = [value for p in params for key, value in opt.state[p].get("o2nc", {}).items() if key in keys]
        versions = [value._version for value in kept]
        set_noise(params, 3)
        with Watch() as watch:
            opt.step()
        counts.append(watch.operations)
        assert [value._version for value in kept] == versions
    assert len(kept) == 9
    if name not in PAPER:  # those add to the progress
        assert counts[0] == counts[1]


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
    monkeypatch.setattr("o2nc.optimizers.paper.CPU_SLICE", 1 << 14)
    params = [torch.nn.Parameter(torch.ones(1 << 14, dtype=torch.bfloat16)) for _ in range(20)]
    opt = o2nc.ExponentiatedO2NC(params, learner, average=False)
    step(opt, 1.0)
    with Watch() as watch:
        opt.step()
    assert 0 < watch.peak / (4 * 20 * (1 << 14)) < copies


def test_memory_of_averages_is_that_of_a_slice(monkeypatch):
    """Large tensors are averaged slice by slice."""
    monkeypatch.setattr("o2nc.averages.update.CPU_SLICE", 1 << 12)
    p = torch.nn.Parameter(torch.ones(1 << 16))
    opt = o2nc.SGD([p], lr=0.1, average=0.9, certificate=True)
    step(opt, 1.0)
    with Watch() as watch:
        opt.step()
    assert 0 < watch.peak <= 4 * 4 * (1 << 12)


PRICES = re.findall(r"^\| `(o2nc\..*)` \| (\d+) \| (\d+) \| (\d+) \|$", PAGES["docs/performance.md"], re.MULTILINE)


@pytest.mark.parametrize(("call", "single", "half", "host"), PRICES, ids=[call for call, *_ in PRICES])
def test_the_price_list_is_what_is_kept(call, single, half, host):
    """Bytes per parameter of the state that has the parameter's shape, on the device and in the host's memory."""
    for dtype, on_device in ((torch.float32, single), (torch.bfloat16, half)):
        (p,) = begin("cuda" if torch.cuda.is_available() else "cpu", dtype, shapes=[(40, 25)])
        names = {"o2nc": o2nc, "optim": optim, "learners": learners, "params": [p], "window": o2nc.Polynomial(12)}
        opt = advance(eval(call, names), range(1, 5))
        entry = opt.state[p].get("o2nc", {})
        on_host = {"output", *(("average", "gradient") if ours_of(opt)["offload"] else ())}
        kept = {k: v for k, v in (opt.state[p] | entry).items() if isinstance(v, torch.Tensor) and v.numel() > 1}
        sizes = {k: v.untyped_storage().nbytes() / p.numel() for k, v in kept.items()}
        assert {k: v.device.type for k, v in kept.items() if k in on_host} == {k: "cpu" for k in on_host if k in kept}
        assert sum(size for k, size in sizes.items() if k in on_host) == int(host)
        assert sum(size for k, size in sizes.items() if k not in on_host) == int(on_device), sizes


def test_everything_that_keeps_something_has_a_price():
    told = " ".join(call for call, *_ in PRICES)
    for name in ("SGD", "ScaledSGDM", "AdamW", "extend", "random_scaling", "ExponentiatedO2NC", "OriginalO2NC"):
        assert f"o2nc.{name}(" in told
    for name in set(learners.__all__) - {"Learner"}:
        assert f"learners.{name}(" in told, name
