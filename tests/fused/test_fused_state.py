"""What the fused step leaves behind: checkpoints and shards."""

import copy

import pytest
import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

import fused_device as rig
import o2nc
from o2nc.fused import engine
from registry import OURS


@rig.cases
def test_a_checkpoint_has_the_entries_of_the_eager_step(device, make):
    """Of the same types and dtypes."""
    kinds = []
    for fused in (True, False):
        params = rig.begin(device, torch.float32)
        found = tree_flatten_with_path(rig.saved(rig.advance(make(params, fused), params, (1, 2, 3))))[0]
        kinds.append({keystr(path): (type(v), getattr(v, "dtype", None)) for path, v in found})
    assert kinds[0] == kinds[1]


@rig.cases
@pytest.mark.parametrize("fused", [True, False])
def test_checkpoints_go_between_the_two(device, make, fused):
    """Begun with kernels and continued without, or the other way round: how a step is taken is not loaded."""

    def work(straight):
        params = rig.begin(device)
        opt = rig.advance(make(params, fused and straight), params, (1, 2, 3))
        resumed = make(params, not fused and straight)
        wanted = resumed.param_groups[0].get("fused")
        resumed.load_state_dict(opt.state_dict())
        assert resumed.param_groups[0].get("fused") is wanted
        return rig.advance(resumed, params, (4, 5))

    ours = rig.facts(work(True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "DEVICES", ())
        rig.agree(ours, rig.facts(work(False)))


@pytest.mark.some(6)
@rig.some(*[name for name in rig.CASES if name in OURS and "extend" not in name and name != "SGD"])
def test_falling_back_in_the_middle_is_resuming(device, make):
    """From the same state on, to the bit; and back again."""
    params, others = rig.begin(device), rig.begin(device)
    opt = rig.advance(make(params), params, (1, 2, 3))
    rig.advance(make(others), others, (1, 2, 3))
    resumed = make(others, False)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))  # torch would share the momentum buffers
    for fused in (False, True):
        for run, ps in ((opt, params), (resumed, others)):
            for group in run.param_groups:
                group["fused"] = fused
            rig.advance(run, ps, (6, 7) if fused else (4, 5))
            assert rig.is_fused(run) == (fused or isinstance(run, o2nc.AdamW))
        rig.agree(rig.facts(opt), rig.facts(resumed), tolerance=0)


@pytest.mark.parametrize(
    ("before", "after"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
@rig.some("AdamW", "ScaledSGDM", "ScaleFree", "OGD", "extend(Lion)")
def test_a_checkpoint_of_another_dtype(device, make, before, after):
    """State of another width than the parameter's is read as what it is."""
    params = rig.begin(device, before)
    checkpoint = rig.advance(make(params), params, (1, 2)).state_dict()

    def work(fused):
        params = rig.begin(device, after)
        opt = make(params, fused)
        opt.load_state_dict(copy.deepcopy(checkpoint))
        return rig.advance(opt, params, (3, 4))

    rig.compare(work, tolerance=2e-5)


# ---- sharded parameters ----


@pytest.fixture
def mesh(device):
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    backend = "nccl" if rig.CUDA else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh(device, (1,))
    distributed.destroy_process_group()


@rig.some("SGD", "AdamW", "ScaledSGDM", "ScaledSGDM Nesterov", "OGD", "ScaleFree", "extend(Lion)")
def test_sharded_parameters(device, mesh, make):
    """One process has all of them, as DTensors: the bits of the run with whole ones, and DTensors in the state."""
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    runs = []
    for sharded in (True, False):
        params = rig.begin(device, shapes=[(6, 2), (5,)])
        if sharded:
            params = [torch.nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])) for p in params]
        opt = make(params, average=o2nc.Discount(0.9, every=2))
        for t in range(1, 6):
            whole = rig.begin(device, shapes=[(6, 2), (5,)])
            rig.set_noise(whole, t, missing=[1] if t in (1, 4) else [])
            for p, q in zip(params, whole, strict=True):
                g = q.grad
                p.grad = distribute_tensor(g, mesh, [Shard(0)]) if sharded and g is not None else g
            opt.step()
        assert rig.is_fused(opt)
        certificate = opt.certificate()
        found = {"gradient": certificate.gradient, "spread": certificate.spread}
        with opt.averaged():
            found |= {f"average {i}": p.detach().clone() for i, p in enumerate(params)}
        found |= {f"x {i}": p.detach().clone() for i, p in enumerate(params)}
        assert isinstance(opt.state[params[0]]["o2nc"]["average"], DTensor) == sharded
        whole = (v.full_tensor() if isinstance(v, DTensor) else torch.as_tensor(v) for v in found.values())
        runs.append(dict(zip(found, whole, strict=True)))
    rig.agree(*runs, tolerance=0)
