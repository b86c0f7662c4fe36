"""Sharded parameters (DTensor, as FSDP2 makes them): every process steps its local shard.

Our state of a parameter, x̄, ḡ, Δ and the rest, is that of the local shard, in plain tensors. A learner that needs a
joint norm all-reduces it at every step. V and the progress are this process's share, and summed when they are read.
Checkpoints hold DTensors, placed like the parameter, and the sums, so that any number of processes can load them.
"""

import os
import sys
from collections.abc import Sequence
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, distributed

SUMS = frozenset(("spread", "progress", "last_spread"))  # entries that are sums over coordinates


def assemble(p: Any, shard: Tensor) -> Tensor:
    """Return the DTensor whose local shard this is, placed like the parameter."""
    from torch.distributed.tensor import DTensor

    if shard.storage_offset():  # deepcopy of a DTensor needs shards that begin where their memory does (torch 2.13)
        shard = shard.clone()
    return DTensor.from_local(shard, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def is_first_share(p: Any) -> bool:
    """Return whether this process loads the sums of a checkpoint; the other shards of ``p`` start at zero."""
    coordinates = zip(p.device_mesh.get_coordinate(), p.placements, strict=True)
    return all(c == 0 for c, placement in coordinates if not placement.is_replicate())


def is_first_process() -> bool:
    """Return whether this process has rank 0, of the process group or, before it is there, as torchrun has set it."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"


def why_partial(params: Sequence[Tensor]) -> str | None:
    """Return why this process has only a part of the parameters and cannot reach the rest; None if it has all.

    FSDP1 marks the parameters that it has flattened. ZeroRedundancyOptimizer does not: it is found on the call stack
    while it constructs the optimizer of its part.
    """
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        return "FullyShardedDataParallel (FSDP1) flattens them; torch.distributed.fsdp.fully_shard (FSDP2) is fine"
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    # not by f_locals, nor from this frame on: frames would keep what they refer to until the garbage collector runs
    callers = (frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe(1)))
    if zero is not None and str(zero.__file__) in callers:
        return "ZeroRedundancyOptimizer deals them out; torch.distributed.fsdp.fully_shard (FSDP2) is fine"
    return None


def reshard(model: torch.nn.Module) -> None:
    """Make FSDP2 free its gathered weights, before and after x̄ is in the parameters.

    It keeps those of the root module after an evaluation, and would not notice that the parameters were replaced.
    """
    if distributed.is_available():
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
