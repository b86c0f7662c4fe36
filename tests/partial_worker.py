"""What every process of test_shards.py does with FSDP1 and ZeRO: ``torchrun … partial_worker.py FOLDER``.

For every way and optimizer it writes a file: "same" as in one process, "different", or the error that was raised.
"""

import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer

import o2nc
from registry import LEARNERS, OURS

OPTIMIZERS = {
    "averages": OURS["AdamW"],
    "extended": OURS["extend(Lion)"],
    "joint norm": lambda ps: o2nc.ExponentiatedO2NC(ps, LEARNERS[2], average=False),
    "OriginalO2NC": OURS["OriginalO2NC"],
    "by coordinate": lambda ps: OURS["OGD"](ps, average=False),
    "no averages": lambda ps: OURS["ScaledSGDM"](ps, average=None),
}


def model_and_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    return model, torch.randn(6, 4, dtype=torch.float64)


def steps(model, optimizer, batch):
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).abs().mean().backward()
        optimizer.step()


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params])


def alone(make):
    """The same run in one process, to compare with."""
    model, batch = model_and_batch()
    steps(model, make(model.parameters()), batch)
    return flat(model.parameters())


def fsdp1(make, after=False):
    """Make the optimizer after its parameters were flattened, or before."""
    model, batch = model_and_batch()
    early = make(model.parameters()) if after else None
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    steps(wrapped, early or make(wrapped.parameters()), batch)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return flat(wrapped.parameters())


def zero1(make):
    class Made(torch.optim.Optimizer):
        """ZeroRedundancyOptimizer wants a class to make its local optimizer of."""

        def __new__(cls, params, **_):
            return make(params)

    model, batch = model_and_batch()
    lr = make([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"]  # it gives its own to all groups
    steps(model, ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Made, lr=lr), batch)
    return flat(model.parameters())


WAYS = {"FSDP1": fsdp1, "FSDP1 after": lambda make: fsdp1(make, after=True), "ZeRO": zero1}

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # FSDP1 is on its way out, and says so
    distributed.init_process_group("gloo")
    for way, run in WAYS.items():
        for name, make in OPTIMIZERS.items():
            try:
                outcome = "same" if torch.allclose(run(make), alone(make), rtol=1e-12) else "different"
            except ValueError as error:
                outcome = str(error)
            Path(sys.argv[1], f"{way}, {name}, {distributed.get_rank()}").write_text(outcome)
            distributed.barrier()
    distributed.destroy_process_group()
