"""x̄ in the model of a trainer while it scores or saves: what the callbacks for Lightning and transformers share."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from o2nc.averages.reading import has_averages
from o2nc.optimizers.wrapped import averaged, averaged_optimizer
from o2nc.persist.batchnorm import recalibrated
from o2nc.persist.plain import KEY
from o2nc.persist.private import BatchNorm
from o2nc.persist.shards import is_sharded

State = dict[str, Tensor]


class Averaging:
    """Puts x̄ of a trainer's optimizers into its model, with BatchNorm statistics that are computed once per step.

    Args:
        batches: inputs of the model for `o2nc.recalibrated`, which can be read again and again; None leaves the
            statistics as they are.
    """

    def __init__(self, batches: Iterable[Any] | None) -> None:
        if isinstance(batches, Iterator):
            raise ValueError(f"batches must be there for every evaluation, as a list or a DataLoader is: {batches!r}")
        self.batches, self._has_warned = batches, False
        self._step: list[int] = []
        self._statistics: State = {}

    def begin(self, optimizers: Sequence[Any], model: nn.Module) -> None:
        """Refuse optimizers without averages and sharded models; name the parameters after the model's."""
        for optimizer in map(averaged_optimizer, optimizers):
            optimizer._model = ref(model)
        self._step = []
        if any(map(is_sharded, model.parameters())):
            raise ValueError("AveragingCallback saves whole models, and the parameters of this one are sharded")

    def is_there(self, optimizers: Sequence[Any], what: str) -> bool:
        """Return whether all optimizers have averages; if not, warn once that ``what`` happens at x."""
        found = all(has_averages(averaged_optimizer(optimizer)) for optimizer in optimizers)
        if not found and what and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"AveragingCallback: nothing is averaged yet, {what} at x and not at x̄", stacklevel=3)
        return found

    @contextmanager
    def swapped(
        self, optimizers: Sequence[Any], model: nn.Module, prepare: Callable[[Any], Any] = lambda batch: batch
    ) -> Iterator[None]:
        """Put x̄ and its BatchNorm statistics into the model inside a ``with`` block, and restore it on leaving.

        Args:
            optimizers: the trainer's.
            model: the trainer's.
            prepare: moves a batch to the model's device.
        """
        with averaged(*optimizers, model=model):
            if self.batches is None:
                yield
                return
            step = [int(averaged_optimizer(optimizer).param_groups[0][KEY]["step"]) for optimizer in optimizers]
            if step != self._step:  # loaders draw from torch's generator: the run must not notice
                with torch.random.fork_rng(devices=[]), recalibrated(model, map(prepare, self.batches)):
                    self._statistics = clone(statistics(model))
                self._step = step
            former = clone(statistics(model))
            try:
                copy_(statistics(model), self._statistics)
                yield
            finally:
                copy_(statistics(model), former)


def statistics(model: nn.Module) -> State:
    """Return the running statistics of the BatchNorm layers, by their names in the model's state dict."""
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, BatchNorm)]
    return {f"{name}.{key}".lstrip("."): b for name, norm in norms for key, b in norm.named_buffers(recurse=False)}


def trained(optimizers: Sequence[Any], model: nn.Module) -> State:
    """Return what differs between x and x̄: the optimizers' parameters and the BatchNorm statistics, by name."""
    groups = (group for optimizer in optimizers for group in averaged_optimizer(optimizer).param_groups)
    known = {id(p) for group in groups for p in group["params"]}
    return {name: p for name, p in model.named_parameters() if id(p) in known} | statistics(model)


def clone(state: State) -> State:
    """Return copies that share no memory with the model."""
    return {name: value.detach().clone() for name, value in state.items()}


@torch.no_grad()
def copy_(targets: State, sources: State) -> None:
    """Copy tensors into those of the same names."""
    for name, target in targets.items():
        target.copy_(sources[name])
