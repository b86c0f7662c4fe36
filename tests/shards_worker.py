"""What every process of test_fsdp.py does: ``torchrun … fsdp_worker.py FOLDER TASK…``; else unsharded."""

import copy
import os
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import o2nc
from o2nc.learners import FTRL, OGD, AdaGrad, BallAdaGrad, BallOGD, CoinBetting, ScaleFree
from o2nc.torch_support.shards import resharded
from problem import EXTENDED

STEPS, LATER = 6, 4


def with_moved_momentum(ps):
    """Return an optimizer whose buffer tells ḡ until the momentum moves, for one step."""
    optimizer = o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9)
    group = optimizer.param_groups[0]
    optimizer.register_step_post_hook(lambda *_: group.update(momentum=0.85 if group["step"] == 2 else 0.9))
    return optimizer


OPTIMIZERS = {
    "sgdm": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.99, weight_decay=1e-2),
    "sgdm, average == momentum": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9),
    "sgdm, momentum moved": with_moved_momentum,
    "sgdm, nesterov": lambda ps: o2nc.ScaledSGDM(ps, 0.1, 0.9, 0, 0, True, average=0.99),
    "sgdm, no averages": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9),
    "ogd": lambda ps: o2nc.ExponentiatedO2NC(ps, OGD(lr=0.1, decay=1.0), beta=0.9),
    "ball": lambda ps: o2nc.ExponentiatedO2NC(ps, BallOGD(lr=0.1, radius=0.05), beta=0.9),
    "ftrl in a ball": lambda ps: o2nc.ExponentiatedO2NC(ps, FTRL(lr=0.1, radius=0.05), beta=0.9),
    "adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, AdaGrad(lr=0.1), beta=0.9, scaling=o2nc.Uniform()),
    "ball adagrad": lambda ps: o2nc.ExponentiatedO2NC(ps, BallAdaGrad(lr=0.02), beta=0.9),
    "scale-free": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.01), beta=0.9),
    "scale-free, joint": lambda ps: o2nc.ExponentiatedO2NC(ps, ScaleFree(lr=0.1, diagonal=False), beta=0.9),
    "coin betting": lambda ps: o2nc.ExponentiatedO2NC(ps, CoinBetting(), beta=0.9),
    "original": lambda ps: o2nc.OriginalO2NC(ps, BallOGD(lr=0.1, radius=0.05), period=3),
    "AdamW, scaled": lambda ps: o2nc.random_scaling(torch.optim.AdamW(ps, lr=0.01)),
    "AdamW, ours": lambda ps: o2nc.AdamW(ps, lr=0.01, average=o2nc.Polynomial(3), scaling=o2nc.Uniform(0.5, 1.5)),
    "AdamW, offloaded": lambda ps: o2nc.AdamW(ps, lr=0.01, average=o2nc.Polynomial(3), offload=2),
    "RAdam, offloaded": lambda ps: o2nc.extend(torch.optim.RAdam(ps, lr=0.01), average=0.9, offload=4),
    "RAdam, extended": lambda ps: o2nc.extend(torch.optim.RAdam(ps, lr=0.01), average=o2nc.Polynomial(3, start=1)),
    **EXTENDED,
}


def make(name, mesh=None, width=7, nested=True):
    """Return a model, sharded if there is a mesh, and its optimizer; rows of weights do not divide evenly."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)).double()
    dims = () if mesh is None else mesh.mesh_dim_names or ("data",)
    if "tensor" in dims:  # each half of a layer in shards
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["data"] if "data" in dims else mesh
    if "data" in dims:
        for module in (model[0], model[2], model) if nested else (model,):
            fully_shard(module, mesh=mesh)
    return model, OPTIMIZERS[name](model.parameters())


def train(model, optimizer, begin, end, rank=0, size=1):
    """Take steps, each on a batch of its own, of which every process has a share."""
    for step in range(begin, end):
        x = torch.randn(8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x[rank::size]).abs().mean().backward()
        optimizer.step()


def whole(tensors):
    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for t in tensors]


def summary(model, optimizer):
    """Return all that a user can ask for, in plain tensors and numbers; all processes have to call it."""
    found = {"parameters": whole(model.parameters())}
    if not hasattr(optimizer, "certificate") or optimizer.param_groups[0].get("average", 1) is None:
        return found
    certificate = optimizer.certificate(c=2.0)
    with optimizer.averaged():
        found["averages"] = whole(model.parameters())
    return found | {
        "restored": whole(model.parameters()),
        "certificate": (certificate.gradient, certificate.spread, certificate.ess),
        "by parameter": [(c.gradient, c.spread) for c in certificate.by_parameter.values()],
        "progress": getattr(optimizer, "progress", 0.0),  # not with offload
        "output": whole(optimizer.output()),
    }


def shapes(model, optimizer):
    """Return the shapes of what a process keeps, by parameter."""
    return [
        (
            tuple(p.to_local().shape),
            {key: tuple(v.shape) for key, v in optimizer.state[p].items() if hasattr(v, "shape")},
        )
        for p in model.parameters()
    ]


class Wrapper:
    """Wraps an optimizer as Lightning does."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.__class__ = type("Wrapped", (Wrapper, type(optimizer)), {})

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


def equal(mesh, rank, size):
    """Train every optimizer on shards."""
    found = {}
    for name in OPTIMIZERS:
        model, optimizer = make(name, mesh)
        train(model, optimizer, 0, STEPS, rank, size)
        found[name] = summary(model, optimizer) | {"shapes": shapes(model, optimizer)}
    model, optimizer = make("sgdm")
    fully_shard(model, mesh=mesh)
    optimizer.param_groups[0]["params"] = list(model.parameters())  # as accelerate does
    train(model, optimizer, 0, STEPS, rank, size)
    found["exchanged"] = summary(model, optimizer)
    model, optimizer = make("ball", mesh)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    train(model, optimizer, 0, STEPS, rank, size)
    found |= {"compiled": summary(model, optimizer), "wrapped": summary(model, Wrapper(optimizer))}
    model, optimizer = make("sgdm", mesh, nested=False)
    for begin in range(0, STEPS, 2):  # evaluate before, between and after
        train(model, optimizer, begin, begin + 2, rank, size)
        with torch.no_grad(), resharded(model), optimizer.averaged():
            found["loss at the average"] = model(torch.ones(1, 5).double()).sum().item()
    found["evaluated"] = summary(model, optimizer)
    try:
        OPTIMIZERS["sgdm"]([distribute_tensor(torch.zeros(4, 3, dtype=torch.complex64), mesh, [Shard(0)])])
    except TypeError as error:
        found["complex"] = str(error)
    return found


def trained_and_loaded(name, mesh, rank=0, size=1):
    """Train on shards by tensor, load that into another, and return what both say."""
    model, optimizer = make(name, mesh, width=8)
    train(model, optimizer, 0, STEPS, rank, size)
    twin, again = make(name, mesh, width=8)
    set_states(twin, again, dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)))
    return summary(model, optimizer), summary(twin, again)


def columns(mesh, rank, size):
    """Train every optimizer on shards by tensor."""
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tensor",))
    return {name: trained_and_loaded(name, mesh) for name in OPTIMIZERS}


def planes(mesh, rank, size):
    """Train on shards of shards: by tensor, and by data."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    rank = mesh["data"].get_local_rank()
    return {name: trained_and_loaded(name, mesh, rank, 2) for name in ("sgdm", "coin betting", "original")}


def save(mesh, rank, size):
    """Train, save, train on."""
    found = {}
    for name in OPTIMIZERS:
        model, optimizer = make(name, mesh)
        train(model, optimizer, 0, STEPS, rank, size)
        states = get_state_dict(model, optimizer)
        dcp.save(dict(zip(("model", "optimizer"), states, strict=True)), checkpoint_id=FOLDER / "saved" / name)
        at_once = summary(model, optimizer)
        copied = copy.deepcopy(optimizer.state_dict())  # as dcp.async_save does
        full = StateDictOptions(full_state_dict=True)
        by_name = get_optimizer_state_dict(model, optimizer, options=full)
        for way in ("copied", "full"):
            twin, again = make(name, mesh)
            twin.load_state_dict(states[0])
            if way == "copied":
                again.load_state_dict(copied)
            else:
                set_optimizer_state_dict(twin, again, by_name, options=full)
            found[f"{name}, {way}"] = summary(twin, again)
        train(model, optimizer, STEPS, STEPS + LATER, rank, size)
        found[name] = summary(model, optimizer) | {"at once": at_once}
    return found


def set_states(model, optimizer, states):
    set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])


def load(mesh, rank, size):
    """Load what other processes, perhaps more or fewer, have saved; save it again, and train on."""
    found = {}
    for name in OPTIMIZERS:
        model, optimizer = make(name, mesh)
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(states, checkpoint_id=FOLDER / "saved" / name)
        set_states(model, optimizer, states)
        at_once = summary(model, optimizer)
        again = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.save(again, checkpoint_id=FOLDER / "saved" / name)
        train(model, optimizer, STEPS, STEPS + LATER, rank, size)
        found[name] = summary(model, optimizer) | {"at once": at_once}
    return found


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for task in sys.argv[2:]:
        found = globals()[task](init_device_mesh("cpu", (size,)), rank, size)
        torch.save(found, FOLDER / f"{task}-{size}-{rank}.pt")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads may abort a process that ends in the ordinary way
