"""What tests/test_partial.py runs on two processes: optimizers that have only a part of the parameters."""

import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel

import o2nc
from o2nc import learners

OPTIMIZERS = {
    "averages": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, average=0.9),
    "joint norm": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.BallOGD(lr=0.1, radius=0.1), average=False),
    "original": lambda ps: o2nc.OriginalO2NC(ps, learners.OGD(lr=0.1), period=2),
    "by coordinate": lambda ps: o2nc.ExponentiatedO2NC(ps, learners.OGD(lr=0.1), average=False, seed=2),
    "plain": lambda ps: o2nc.ScaledSGDM(ps, lr=0.1, momentum=0.9, seed=2),
}


def model_and_batch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double()
    return model, torch.randn(6, 4, dtype=torch.float64)


def steps(model, opt, batch, n=3):
    for _ in range(n):
        opt.zero_grad()
        model(batch).abs().mean().backward()
        opt.step()


def flat(params):
    return torch.cat([p.detach().reshape(-1) for p in params])


def alone(name):
    """The same run in one process, to compare with."""
    model, batch = model_and_batch()
    steps(model, OPTIMIZERS[name](model.parameters()), batch)
    return flat(model.parameters())


def fsdp1(name):
    model, batch = model_and_batch()
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    opt = OPTIMIZERS[name](wrapped.parameters())
    steps(wrapped, opt, batch)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return flat(wrapped.parameters())


def fsdp1_after(name):
    """The optimizer is made first, of parameters that are flattened afterwards."""
    model, batch = model_and_batch()
    opt = OPTIMIZERS[name](model.parameters())
    wrapped = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    steps(wrapped, opt, batch)
    with FullyShardedDataParallel.summon_full_params(wrapped):
        return flat(wrapped.parameters())


def zero1(name):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def make(params, **_):
        return OPTIMIZERS[name](params)

    class Made(torch.optim.Optimizer):
        """ZeroRedundancyOptimizer wants a class to make its local optimizer of."""

        def __new__(cls, params, **_):
            return make(params)

    model, batch = model_and_batch()
    opt = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=Made, lr=0.1)
    steps(model, opt, batch)
    return flat(model.parameters())


WAYS = {"FSDP1": fsdp1, "FSDP1 after": fsdp1_after, "ZeRO": zero1}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # FSDP1 is on its way out, and says so
    distributed.init_process_group("gloo")
    for way, run in WAYS.items():
        for name in OPTIMIZERS:
            try:
                outcome = "same" if torch.allclose(run(name), alone(name), rtol=1e-12) else "different"
            except ValueError as error:
                outcome = str(error)
            Path(sys.argv[1], f"{way}, {name}, {distributed.get_rank()}").write_text(outcome)
            distributed.barrier()
    distributed.destroy_process_group()
