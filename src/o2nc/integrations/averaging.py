"""x̄ in the model of a trainer while it scores or saves: what the callbacks for Lightning and transformers share."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from o2nc.averages.reading import has_averages, has_certificate
from o2nc.logger import measure
from o2nc.optimizers.wrapped import averaged, averaged_optimizer
from o2nc.persist.batchnorm import Statistics
from o2nc.persist.private import BatchNorm
from o2nc.vector import is_sharded

State = dict[str, Tensor]


class Averaging:
    """Puts x̄ of a trainer's optimizers into its model, with BatchNorm statistics that are computed once per step.

    Args:
        batches: inputs of the model as in ``opt.averaged(model, batches=…)``, which can be read again and again;
            None leaves the statistics as they are.
    """

    def __init__(self, batches: Iterable[Any] | None) -> None:
        if isinstance(batches, Iterator):
            raise ValueError(f"batches must be there for every evaluation, as a list or a DataLoader is: {batches!r}")
        self.batches, self._has_warned = batches, False
        self.optimizers: list[Any] = []

    def begin(
        self, optimizers: Sequence[Any], model: nn.Module, prepare: Callable[[Any], Any], context: Any = nullcontext
    ) -> None:
        """Take a trainer's optimizers and model, and name the optimizers' parameters after the model's.

        ``prepare`` moves a batch to the model's device; ``context`` returns the context in which to call the model,
        such as autocast.
        """
        self.optimizers, self.model = [averaged_optimizer(optimizer) for optimizer in optimizers], model
        if any(map(is_sharded, model.parameters())):
            raise ValueError("AveragingCallback saves whole models, and the parameters of this one are sharded")
        for optimizer in self.optimizers:
            optimizer._model = ref(model)
        self._prepare, self._context = prepare, context
        self._of_average, self._recalibrated_at = State(), list[int]()  # BatchNorm statistics, and at which steps

    def is_ready(self) -> bool:
        """Return whether all optimizers have averages; if not, warn once."""
        found = bool(self.optimizers) and all(map(has_averages, self.optimizers))
        if not found and not self._has_warned:
            self._has_warned = True
            warnings.warn("nothing is averaged yet: AveragingCallback leaves the model at x, not x̄", stacklevel=3)
        return found

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Put x̄ and its BatchNorm statistics into the model inside a ``with`` block, and restore it on leaving."""
        with averaged(*self.optimizers, model=self.model):
            former, steps = _clone(self._statistics()), [optimizer._steps_done() for optimizer in self.optimizers]
            try:
                if self.batches is not None and steps != self._recalibrated_at:
                    self._of_average, self._recalibrated_at = self._recalibrate(self.batches), steps
                self.load(self._of_average)
                yield
            finally:
                self.load(former)

    @torch.random.fork_rng(devices=[])  # what a loader draws does not change the run
    def _recalibrate(self, batches: Iterable[Any]) -> State:
        """Return BatchNorm statistics of the model as it is."""
        found = Statistics(self.model)
        try:
            with self._context():
                found.recompute(map(self._prepare, batches))
            return _clone(self._statistics())
        finally:
            found.restore()

    def leave_average(self) -> State:
        """Put x̄ and its BatchNorm statistics into the model for good; return what was there, x."""
        iterate = self.copy()
        with self.swapped():
            average = self.copy()
        self.load(average)
        return iterate

    def copy(self) -> State:
        """Return copies of all that differs between x and x̄: the optimizers' parameters, BatchNorm statistics."""
        known = {p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}
        params = {name: p for name, p in self.model.named_parameters() if p in known}
        return _clone(params | self._statistics())

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Copy tensors into the model's of the same names."""
        own = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        for name, value in state.items():
            own[name].copy_(value)

    def scalars(self) -> dict[str, float]:
        """Return the numbers to log of the optimizers that have a certificate; of several, each by its index."""
        found: dict[str, float] = {}
        for k, optimizer in enumerate(self.optimizers):
            suffix = "" if len(self.optimizers) == 1 else f"/{k}"
            if has_certificate(optimizer):
                row, _ = measure(optimizer)
                found |= {name + suffix: value for name, value in row.scalars().items()}
        return found

    def _statistics(self) -> State:
        """Return the running statistics of the BatchNorm layers, by their names in the model."""
        norms = {name for name, module in self.model.named_modules() if isinstance(module, BatchNorm)}
        return {name: b for name, b in self.model.named_buffers() if name.rpartition(".")[0] in norms}


def _clone(state: State) -> State:
    return {name: value.detach().clone() for name, value in state.items()}
