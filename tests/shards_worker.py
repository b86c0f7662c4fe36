"""What every process of test_shards.py does (``torchrun … shards_worker.py FOLDER NAMES TASK…``), and the whole run.

A task is a function that returns what it found with the optimizers of these names, separated by ``|``; the process
writes that to ``TASK-PROCESSES-RANK.pt``.
"""

import copy
import os
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn, optim
from torch.distributed.checkpoint import state_dict as by_name
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import o2nc
from o2nc import learners
from o2nc.logger import CertificateLogger
from problem import noise
from registry import LEARNERS, OURS, VARIANTS, claims, descend, ours_of, params_of

STEPS, LATER = 6, 4
EVERY_4 = o2nc.Polynomial(3, every=4)  # iterates 1, 5 and 9 count: a checkpoint after 6 is between two of them

# torch's own Rprop does not step DTensors, and its NAdam loads a number of its state in another precision
OPTIMIZERS = {name: make for name, make in VARIANTS.items() if "Rprop" not in name and "NAdam" not in name} | {
    "AdamW every=4": lambda ps: OURS["AdamW"](ps, average=EVERY_4),
    "BallOGD": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.BallOGD(lr=0.1, radius=0.05), beta=0.9),
    "BallAdaGrad": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.BallAdaGrad(lr=0.02), beta=0.9),
    "ScaleFree joint": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.ScaleFree(lr=0.1, diagonal=False), beta=0.9),
}
if hasattr(optim, "Muon"):

    class Muon(optim.Muon):
        """torch's, of the matrices among its parameters; in float64: another order of a sum shows in bfloat16."""

        def __init__(self, params, **options):
            super().__init__([p for p in params if p.dim() == 2], **options)

        @torch.no_grad()
        def step(self, closure=None):
            with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
                step = optim.Muon.step
                getattr(step, "__wrapped__", step)(self, closure)  # with super() hooks would run twice

    OPTIMIZERS["extend(Muon)"] = lambda ps: o2nc.extend(Muon(ps, lr=0.01), o2nc.Polynomial(12), certificate=True)


def make(name, mesh=None, width=7, nested=True):
    """Return a model, sharded if there is a mesh, and its optimizer; rows of weights do not divide evenly."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3)).double()
    dims = () if mesh is None else mesh.mesh_dim_names or ("data",)
    if "tensor" in dims:
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["data"] if "data" in dims else mesh
    if "data" in dims:
        for module in (model[0], model[2], model) if nested else (model,):
            fully_shard(module, mesh=mesh)
    return model, OPTIMIZERS[name](model.parameters())


def train(model, optimizer, begin, end, rank=0, size=1):
    """Take steps, each on a batch of its own, of which every process has a share."""
    for step in range(begin, end):
        x = noise(step, 8, 5)
        descend(optimizer, lambda: model(x[rank::size]).abs().mean())  # noqa: B023


def whole(tensors):
    return [(t.full_tensor() if isinstance(t, DTensor) else t).detach().clone() for t in tensors]


def summary(model, optimizer):
    """Return all that a user can ask for, in plain tensors and numbers; all processes have to call it."""
    places = {p: i for i, p in enumerate(model.parameters())}
    found = claims(optimizer) | {"restored": model.parameters(), "at": [places[p] for p in params_of(optimizer)]}
    if certificate := found.pop("certificate", None):
        parts = certificate.by_parameter.values()
        found |= {"spreads": [part.spread for part in parts], "gradients": [part.gradient for part in parts]}
        found["ess"] = certificate.ess
    return found | {key: whole(found[key]) for key in ("x", "average", "output", "restored") if key in found}


def kept(optimizer):
    """Return what a process keeps of ours, by parameter: local shapes, and what a checkpoint has as DTensors."""
    found, saved = [], optimizer.state_dict()["state"]
    for i, p in enumerate(params_of(optimizer)):
        if "o2nc" not in optimizer.state.get(p, ()):
            continue
        tensors = {key: v for key, v in ours_of(optimizer, p).items() if isinstance(v, torch.Tensor)}
        in_checkpoint = {key: v for key, v in saved[i]["o2nc"].items() if isinstance(v, DTensor)}
        placed = {key for key, v in in_checkpoint.items() if v.placements == p.placements and v.shape == p.shape}
        shapes = {key: tuple(v.shape) for key, v in tensors.items()}
        found.append((tuple(p.to_local().shape), shapes, placed))
    return found


def diagnosed(mesh=None, rank=0, size=1):
    """Return what `diagnose` and `Ladder` have measured of 150 steps."""
    model, optimizer = make("AdamW", mesh)
    ladder = o2nc.Ladder(optimizer)
    for step in range(150):
        train(model, optimizer, step, step + 1, rank, size)
        ladder.step()
    found = optimizer.diagnose()
    numbers = [found.evidence["turnover"], *(part.evidence["displacement"] for part in found.by_parameter.values())]
    return {"verdict": found.verdict, "numbers": [found.evidence["displacement"], *numbers, ladder.displacement]}


def converted(mesh=None, rank=0, size=1):
    """Train, convert the model while the optimizer has it, which exchanges what is in its DTensors, and train on."""
    model, optimizer = make("SGD", mesh)
    for begin in range(0, STEPS, 2):
        train(model, optimizer, begin, begin + 2, rank, size)
        with optimizer.averaged(model):  # a block that was left keeps nothing
            pass
        model.float().double()
    return summary(model, optimizer)


def equal(mesh, rank, size):
    """Train every optimizer on shards."""
    found = {}
    for name in NAMES:
        model, optimizer = make(name, mesh)
        train(model, optimizer, 0, STEPS, rank, size)
        found[name], found[f"{name}, kept"] = summary(model, optimizer), kept(optimizer)
    model, optimizer = make("ScaledSGDM")
    fully_shard(model, mesh=mesh)
    optimizer.param_groups[0]["params"] = list(model.parameters())  # as accelerate does
    with CertificateLogger(optimizer, FOLDER / f"log of {rank}.csv", every=2):
        train(model, optimizer, 0, STEPS, rank, size)
    found["exchanged"] = summary(model, optimizer)
    train(*EARLY, 0, 4)
    full, optimizer = make("ScaledSGDM", mesh)
    with CertificateLogger(optimizer, FOLDER / "full disk.csv", every=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with patch("o2nc.logger.append", side_effect=OSError("no space left")):
            train(full, optimizer, 0, STEPS, rank, size)  # no process waits for the one that cannot write
    model, optimizer = make("BallOGD", mesh)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    train(model, optimizer, 0, STEPS, rank, size)
    found["compiled"] = summary(model, optimizer)
    model, optimizer = make("ScaledSGDM", mesh, nested=False)
    for begin in range(0, STEPS, 2):  # evaluate before, between and after
        train(model, optimizer, begin, begin + 2, rank, size)
        with torch.no_grad(), optimizer.averaged(model):
            found["loss at the average"] = model(torch.ones(1, 5).double()).sum().item()
            shipped = optimizer.averaged_state_dict(model)
    found["evaluated"], found["shipped"] = summary(model, optimizer), whole(shipped.values())
    found["converted"] = converted(mesh, rank, size)
    found["diagnosed"] = diagnosed(mesh, rank, size)
    try:
        OPTIMIZERS["SGD"]([distribute_tensor(torch.zeros(4, 3, dtype=torch.complex64), mesh, [Shard(0)])])
    except TypeError as error:
        found["complex"] = str(error)
    return found


def tensors(mesh, rank, size):
    """Train on shards by tensor, with four processes on shards of those by data; what is loaded says the same."""
    dims = ("tensor",) if size == 2 else ("data", "tensor")
    mesh = init_device_mesh("cpu", (2,) * len(dims), mesh_dim_names=dims)
    share = (mesh["data"].get_local_rank(), 2) if "data" in dims else (0, 1)
    found = {}
    for name in NAMES:
        model, optimizer = make(name, mesh, width=8)
        train(model, optimizer, 0, STEPS, *share)
        twin, again = make(name, mesh, width=8)
        set_states(twin, again, states(model, optimizer))
        found[name] = summary(model, optimizer), summary(twin, again)
    return found


def replicated(mesh, rank, size):
    """Train with DistributedDataParallel, every process on its share of a batch."""
    found = {}
    for name in NAMES:
        model, optimizer = make(name)
        train(DistributedDataParallel(model), optimizer, 0, STEPS, rank, size)
        found[name] = summary(model, optimizer)
    replica = DistributedDataParallel(make("SGD")[0])
    found["find_lr"] = learning_rate(replica, lambda x: x[rank::size])
    return found


def learning_rate(model, share):
    """Return what find_lr finds where every process has its share of the batches."""
    batches = [share(noise(step, 8, 5)) for step in range(30)]
    found = o2nc.find_lr(
        lambda lr: o2nc.SGD(model.parameters(), lr=lr, average=0.9),
        lambda x: model(x).square().mean(),
        batches,
        steps=20,
        probe=10,
    )
    return found.lr, found.losses


PARTIAL = {
    "averages": OURS["AdamW"],
    "extended": OURS["extend(Lion)"],
    "joint norm": lambda ps: o2nc.ExponentiatedO2NC(ps, LEARNERS[2], average=False),
    "OriginalO2NC": OURS["OriginalO2NC"],
    "by coordinate": lambda ps: OURS["OGD"](ps, average=False),
    "no averages": lambda ps: OURS["ScaledSGDM"](ps, average=None),
}


def fsdp1(make, model, after=False):
    """Train with FSDP1, the optimizer made after its parameters were flattened, or before."""
    early = make(model.parameters()) if after else None
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    train(wrapped, early or make(wrapped.parameters()), 0, 3)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return whole(wrapped.parameters())


def zero1(make, model):
    class Made(optim.Optimizer):
        """ZeroRedundancyOptimizer wants a class to make its local optimizer of."""

        def __new__(cls, params, **_):
            return make(params)

    lr = make([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"]  # it gives its own to all groups
    train(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Made, lr=lr), 0, 3)
    return whole(model.parameters())


def partial(mesh, rank, size):
    """Say of FSDP1 and ZeRO with every optimizer: "same" as in one process, "different", or the error."""
    warnings.simplefilter("ignore")  # FSDP1 is on its way out, and says so
    found = {}
    ways = {"FSDP1": fsdp1, "FSDP1 after": lambda *of: fsdp1(*of, after=True), "ZeRO": zero1}
    for way, run in ways.items():
        for name, optimizer_of in PARTIAL.items():
            model = make("SGD")[0]
            train(model, optimizer_of(model.parameters()), 0, 3)
            try:
                pairs = zip(run(optimizer_of, make("SGD")[0]), model.parameters(), strict=True)
                is_same = all(torch.allclose(a.view_as(b), b, rtol=1e-12) for a, b in pairs)
                found[f"{way}, {name}"] = "same" if is_same else "different"
            except ValueError as error:
                found[f"{way}, {name}"] = str(error)
            distributed.barrier()
    return found


FULL = by_name.StateDictOptions(full_state_dict=True)
# torch flattens nested dictionaries since 2.10
CAN_FLATTEN = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
FLAT = by_name.StateDictOptions(flatten_optimizer_state_dict=CAN_FLATTEN)


def states(model, optimizer, options=None):
    return dict(zip(("model", "optimizer"), by_name.get_state_dict(model, optimizer, options=options), strict=True))


def set_states(model, optimizer, found, options=None):
    both = {"model_state_dict": found["model"], "optim_state_dict": found["optimizer"]}
    by_name.set_state_dict(model, optimizer, **both, options=options)


def save(mesh, rank, size):
    """Train, save, train on."""
    found = {}
    for name in NAMES:
        model, optimizer = make(name, mesh)
        train(model, optimizer, 0, STEPS, rank, size)
        dcp.save(states(model, optimizer), checkpoint_id=FOLDER / "saved" / name)
        dcp.save(states(model, optimizer, FLAT), checkpoint_id=FOLDER / "flat" / name)
        at_once = summary(model, optimizer)
        copied = copy.deepcopy(optimizer.state_dict())  # as dcp.async_save does
        full = by_name.get_optimizer_state_dict(model, optimizer, options=FULL)
        for way in ("copied", "full"):
            twin, again = make(name, mesh)
            twin.load_state_dict(model.state_dict())
            if way == "copied":
                again.load_state_dict(copied)
            else:
                by_name.set_optimizer_state_dict(twin, again, full, options=FULL)
            found[f"{name}, {way}"] = summary(twin, again)
        train(model, optimizer, STEPS, STEPS + LATER, rank, size)
        found[name], found[f"{name}, at once"] = summary(model, optimizer), at_once
    return found


def load(mesh, rank, size):
    """Load what other processes, perhaps more or fewer, have saved; save it again, and train on."""
    found = {}
    for name in NAMES:
        for kind, options in (("flat", FLAT), ("saved", None)):
            model, optimizer = make(name, mesh)
            read = states(model, optimizer, options)
            dcp.load(read, checkpoint_id=FOLDER / kind / name)
            set_states(model, optimizer, read, options)
            found[f"{name}, {kind}"] = summary(model, optimizer)
        dcp.save(states(model, optimizer), checkpoint_id=FOLDER / "saved" / name)
        train(model, optimizer, STEPS, STEPS + LATER, rank, size)
        found[name] = summary(model, optimizer)
    return found


if __name__ == "__main__":
    FOLDER, NAMES = Path(sys.argv[1]), sys.argv[2].split("|")
    torch.set_num_threads(1)
    EARLY = make("ScaledSGDM")
    CertificateLogger(EARLY[1], FOLDER / "early.csv", every=2)  # by all, which do not know of each other yet
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    for task in sys.argv[3:]:
        found = globals()[task](init_device_mesh("cpu", (size,)), rank, size)
        torch.save(found, FOLDER / f"{task}-{size}-{rank}.pt")
    distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's threads may abort a process that ends in the ordinary way
