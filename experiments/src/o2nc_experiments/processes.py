"""The processes that train one model together, each with an equal part of every batch.

Started by ``torchrun``; without it there is one, and nothing here communicates. Since the scalar s is a pure
function of the seed and the step, all processes draw the same one and never talk about it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from o2nc_experiments import record

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Which process this is, and of how many."""

    rank: int = 0
    size: int = 1

    def share(self, batch: int) -> tuple[int, int]:
        """Return where this process's part of a batch begins, and how many images it has."""
        part = batch // self.size
        return self.rank * part, part

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the model with its gradients averaged over the processes."""
        return model if self.size == 1 else DistributedDataParallel(model)

    def sum_(self, numbers: Tensor) -> Tensor:
        """Add up all processes' numbers, in place."""
        if self.size > 1:
            distributed.all_reduce(numbers)
        return numbers

    def broadcast(self, value: Any) -> Any:
        """Return the first process's value."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values, src=0)
        return values[0]

    def on_first(self, work: Callable[[], T]) -> T:
        """Have the first process do it, and return what it found in all; on an OSError the others end silently."""
        found: T | OSError | None = None
        if self.rank == 0:
            try:
                found = work()
            except OSError as error:
                found = error
        result = self.broadcast(found)
        if isinstance(result, OSError):
            raise result if self.rank == 0 else SystemExit(1)
        return result

    @property
    def batch_norm(self) -> type[nn.BatchNorm2d]:
        """BatchNorm over the whole batch, whoever has it."""
        return nn.BatchNorm2d if self.size == 1 else JointBatchNorm2d


def find_world() -> World:
    """Return which process ``torchrun`` says that this is; OSError if that cannot be."""
    try:
        rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        named = ", ".join(f"{name}={os.environ.get(name, '')!r}" for name in ("RANK", "WORLD_SIZE"))
        raise OSError(f"the environment has {named}, which torchrun never sets: unset them, or use torchrun")
    return World(rank, size)


def find_device(name: str | None, world: World) -> torch.device:
    """Return the device of this name, or the best there is; of several GPUs the one that is this process's."""
    device = record.find_device(name)
    if world.size > 1 and device.type == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


@contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """Join the processes that ``torchrun`` has started, if it has, and leave them at the end; OSError if it fails."""
    world = find_world()
    if world.size == 1:
        yield world
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        # long enough for the first process to fetch the data; that one has died torchrun notices sooner
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(hours=1))
    except (RuntimeError, ValueError) as error:
        raise OSError(f"the {world.size} processes of WORLD_SIZE cannot meet: {str(error).splitlines()[0]}") from None
    try:
        yield world
    finally:
        distributed.destroy_process_group()


class _Total(torch.autograd.Function):
    """The sum over all processes; what each has contributed enters everybody's loss, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.contiguous().clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Total.forward(ctx, gradient)


class JointBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose statistics in training are those of the whole batch, on any device.

    ``torch.nn.SyncBatchNorm`` knows no CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the mean and variance over all processes' images."""
        if not self.training:
            return super().forward(x)
        size = distributed.get_world_size()
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        mean = _Total.apply(wide.mean(dim=(0, 2, 3))) / size
        centred = wide - mean.reshape(-1, 1, 1)
        variance = _Total.apply(centred.square().mean(dim=(0, 2, 3))) / size
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            # momentum None: the plain mean over all batches
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            count = size * x.numel() // x.shape[1]
            self.running_mean.lerp_(mean, momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale.reshape(-1, 1, 1) + self.bias.reshape(-1, 1, 1)).to(x.dtype)
