"""Parameters in shards (DTensor, as FSDP2 makes them): every process steps the part that it has.

Inside `local_parts` the optimizer's parameters are those parts, and all else is as without shards, kernels included.
x̄, ḡ, Δ and whatever has the parameter's shape are kept in parts of the same placement. Norms of R^d are sums over
the processes: a learner that needs one waits for them at every step; V and the progress are kept as this process's
part and added up only when asked for. In a checkpoint they are whole, to be read by any number of processes.
"""

import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, distributed

from o2nc import vector
from o2nc.state import Field, Fields, Kind

_UNKNOWN = Field(Kind.NUMBER)
_CURRENT: ContextVar["Shards | None"] = ContextVar("shards", default=None)


def is_sharded(p: Tensor) -> bool:
    """Say whether a tensor is a DTensor."""
    return hasattr(p, "to_local") and hasattr(p, "placements")


def local(p: Any) -> Tensor:
    """Return the part of a tensor that this process has."""
    return p.detach().to_local() if is_sharded(p) else p


def distributed_runs() -> bool:
    """Say whether this is one of several processes that know of each other."""
    return distributed.is_available() and distributed.is_initialized()


def is_first_process() -> bool:
    """Say whether this process writes for all; before they know of each other, by what torchrun has told it."""
    return distributed.get_rank() == 0 if distributed_runs() else os.environ.get("RANK", "0") == "0"


def why_partial(params: Sequence[Tensor]) -> str | None:
    """Return why these parameters are only this process's part, with no way to the other parts; None if they are not.

    FSDP1 marks what it has flattened. ZeroRedundancyOptimizer marks nothing: it is known by being there when the
    optimizer of its part is made.
    """
    if any(getattr(p, "_fsdp_flattened", False) for p in params):
        return "FullyShardedDataParallel (FSDP1) flattens them; torch.distributed.fsdp.fully_shard (FSDP2) is fine"
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe() if zero is not None else None
    while zero is not None and frame is not None:
        if isinstance(frame.f_locals.get("self"), zero.ZeroRedundancyOptimizer):
            return "ZeroRedundancyOptimizer deals them out; torch.distributed.fsdp.fully_shard (FSDP2) is fine"
        frame = frame.f_back
    return None


class Shards:
    """The local parts of an optimizer's parameters; those that are not sharded stand for themselves.

    Args:
        params: all of them.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self.parts = {p: self._part(p) for p in params}
        self.owners = {part: p for p, part in self.parts.items()}
        self.state: dict[Tensor, Any] = defaultdict(dict)  # by part; the same objects as the optimizer's by parameter

    @staticmethod
    def _part(p: Any) -> Tensor:
        if is_sharded(p) and p.is_complex():
            raise TypeError("parameters in shards must be real: complex ones can only be whole")
        return torch.nn.Parameter(local(p), p.requires_grad) if is_sharded(p) else p

    def refresh(self) -> None:
        """Bring the parts' memory and gradients up to date."""
        for p, part in self.parts.items():
            if part is p:
                continue
            here = local(p)
            if here.data_ptr() != part.data_ptr() or here.shape != part.shape:
                part.data = here
            grad: Any = p.grad
            if grad is not None and grad.placements != p.placements:  # type: ignore[attr-defined]
                grad = grad.redistribute(p.device_mesh, p.placements)  # type: ignore[attr-defined]
            part.grad = None if grad is None else grad.to_local()

    def total(self, values: Tensor, parts: Sequence[Tensor]) -> Tensor:
        """Return the sums over the processes of one number per parameter."""
        kinds: dict[Any, list[int]] = {}
        for i, part in enumerate(parts):
            p: Any = self.owners[part]
            if p is not part:
                for dim, placement in enumerate(p.placements):
                    if not placement.is_replicate():  # is_shard() is False of the shards of shards of TP
                        kinds.setdefault((p.device_mesh, dim), []).append(i)
        if kinds:  # where the processes can add them up
            values = values.to(parts[0].device, copy=True)
        for (mesh, dim), at in kinds.items():
            some = values[at]
            distributed.all_reduce(some, group=mesh.get_group(dim))
            values[at] = some
        return values


@contextmanager
def local_parts(optimizer: Any) -> Iterator[None]:
    """Put the parts that this process has in the places of the parameters, and their state with them."""
    shards: Shards = optimizer._shards
    shards.refresh()
    whole, params = optimizer.state, [group["params"] for group in optimizer.param_groups]
    is_wrapper = "state" not in vars(optimizer)  # such as Lightning's, which looks up what it does not have itself
    _exchange(whole, shards.state, shards.parts)
    for group, owners in zip(optimizer.param_groups, params, strict=True):
        group["params"] = [shards.parts[p] for p in owners]
    optimizer.state = shards.state
    token = _CURRENT.set(shards)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        optimizer.state = whole
        if is_wrapper:
            del optimizer.state
        for group, owners in zip(optimizer.param_groups, params, strict=True):
            group["params"] = owners
        _exchange(shards.state, whole, shards.owners)


def _exchange(source: dict[Tensor, Any], target: dict[Tensor, Any], names: dict[Tensor, Tensor]) -> None:
    """Make the target hold the source's state under other names, with as little writing as possible."""
    kept = {names[p] for p in source}
    for gone in [p for p in target if p not in kept]:
        del target[gone]
    for p, state in source.items():
        if target.get(names[p]) is not state:
            target[names[p]] = state


@contextmanager
def joint_norms(parts: Sequence[Tensor]) -> Iterator[None]:
    """Make norms over vectors with one tensor for each of these parameters sums over the processes, too."""
    shards = _CURRENT.get()
    if shards is None:
        yield
        return
    with vector.completed(lambda values: shards.total(values, parts)):
        yield


@contextmanager
def resharded(model: torch.nn.Module) -> Iterator[None]:
    """Have FSDP2 forget, before and after a ``with`` block, which weights it has gathered.

    It keeps the root's after an evaluation, for a backward pass, and would not notice that others take their place.
    """
    roots: list[Any] = []
    if distributed.is_available():
        from torch.distributed.fsdp import FSDPModule

        roots = [module for module in model.modules() if isinstance(module, FSDPModule)]
    try:
        for module in roots:
            module.reshard()
        yield
    finally:
        for module in roots:
            module.reshard()


def assemble(p: Any, part: Tensor) -> Tensor:
    """Return the tensor of which every process has such a part, placed like the parameter."""
    from torch.distributed.tensor import DTensor

    if part.storage_offset():  # deepcopy of a DTensor takes parts that begin where their memory does (torch 2.13)
        part = part.clone()
    return DTensor.from_local(part, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def to_whole(p: Any, state: dict[str, Any], shards: Shards, fields: Fields, guest: bool = False) -> dict[str, Any]:
    """Return a sharded parameter's state as a checkpoint has it; of a guest's state, what is declared."""
    part = shards.parts[p]
    whole = {}
    for key, value in state.items():
        kind = fields.get(key, _UNKNOWN).kind
        if guest and key not in fields:
            pass
        elif isinstance(value, Tensor) and value.dim() and value.shape == part.shape:
            value = assemble(p, value.to(part.device))
        elif kind is Kind.SUM:
            value = shards.total(value.reshape(1), [part]).reshape(())
        whole[key] = value
    return whole


def to_part(p: Any, state: dict[str, Any], fields: Fields, guest: bool = False) -> dict[str, Any]:
    """Undo `to_whole`: a sum over the processes is given to the first of them."""
    coordinate = p.device_mesh.get_coordinate()
    first = all(c == 0 for c, placement in zip(coordinate, p.placements, strict=True) if not placement.is_replicate())
    part = {}
    for key, value in state.items():
        if guest and key not in fields:
            pass
        elif is_sharded(value):
            value = value.redistribute(p.device_mesh, p.placements).to_local()
        elif fields.get(key, _UNKNOWN).kind is Kind.SUM and not first:
            value = torch.zeros_like(value)
        part[key] = value
    return part
