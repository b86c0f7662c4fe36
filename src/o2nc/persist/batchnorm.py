"""BatchNorm statistics for other weights, temporarily.

The running means and variances of BatchNorm belong to the weights that produced them: to evaluate x̄ they have to be
recomputed. `torch.optim.swa_utils.update_bn` overwrites them; here they are restored, and training goes on unchanged.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from o2nc.persist.private import BatchNorm, foreach_copy_

RECALIBRATED: set[int] = set()  # ids of the parameters of models inside a `recalibrated` block


def run_through(restore: Callable[[], Any]) -> None:
    """Call ``restore``, which must be idempotent, until it completes; re-raise a KeyboardInterrupt only then."""
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            restore()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def recalibrated(model: nn.Module, batches: Iterable[Any]) -> "Recalibrated":
    """Give BatchNorm the statistics of ``batches`` inside a ``with`` block, and restore the old ones on leaving it.

    The statistics are the means over the batches of their means and of their unbiased variances, as in
    `torch.optim.swa_utils.update_bn`. Every batch goes through the model once, without gradients, under the caller's
    autocast if any; BatchNorm layers are in training mode then, all else (dropout, say) in evaluation mode.

    The block does not change the training flags: call ``model.eval()`` inside. On leaving it, also after an error,
    statistics, momenta and training flags are bitwise as before, in the same tensors.

    Args:
        model: all BatchNorm layers with running statistics take part, those in evaluation mode too; a layer that no
            batch reaches keeps its statistics. If there is none, ``batches`` is not touched.
        batches: inputs of the model, on its device: tensors, or tuples or lists that start with one (the rest, such
            as labels, is ignored), or dictionaries of keyword arguments. Under DistributedDataParallel all ranks need
            equally many, and without SyncBatchNorm each has the statistics of its own.

    Raises:
        ValueError: ``batches`` is empty, as a generator is when it is used a second time.
        TypeError: the model has no ``forward``, as a LightningModule may have none.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        >>> opt = o2nc.AdamW(model.parameters(), average=0.9)
        >>> batches = torch.randn(5, 8, 3)
        >>> model(batches[0]).square().mean().backward()
        >>> opt.step()
        >>> with opt.averaged(), o2nc.recalibrated(model, batches):  # in this order: x̄ first, then its statistics
        ...     loss = model.eval()(batches[0]).square().mean()
        >>> model.training
        True
    """
    return Recalibrated(model, batches)


class Recalibrated:
    """The ``with`` block of `recalibrated`."""

    def __init__(self, model: nn.Module, batches: Iterable[Any]) -> None:
        self._model, self._batches, self._is_open = model, batches, False

    def __enter__(self) -> None:
        """Compute the statistics of the batches."""
        norms = [module for module in self._model.modules() if isinstance(module, BatchNorm)]
        layers = [norm for norm in norms if norm.track_running_stats and norm.num_batches_tracked is not None]
        self._former = [(b, b.clone()) for layer in layers for b in layer.buffers(recurse=False)]
        self._modes: list[tuple[Any, ...]] = [(m, "training", m.training) for m in self._model.modules()]
        self._modes += [(norm, "momentum", norm.momentum) for norm in norms]
        self._ids = {id(p) for p in self._model.parameters()} - RECALIBRATED
        self._is_open, self._has_autograd = True, torch.is_grad_enabled()
        try:
            RECALIBRATED.update(self._ids)
            if layers:
                kept = {layer: [b.clone() for b in layer.buffers(recurse=False)] for layer in layers}
                _calibrate(self._model, layers, self._batches)
                for layer, buffers in kept.items():
                    if not layer.num_batches_tracked:  # no batch has reached it
                        _copy_(list(layer.buffers(recurse=False)), buffers)
                run_through(self._restore_modes)
        except BaseException:
            run_through(self._give_up)
            raise

    def __exit__(self, *exception: Any) -> None:
        """Restore statistics, momenta and training flags."""
        run_through(self._restore)

    def _restore_modes(self) -> None:
        for module, name, value in self._modes:  # attributes, not train(): models override it, to freeze layers
            setattr(module, name, value)

    def _give_up(self) -> None:
        """Restore everything, and autograd's mode: an interrupt inside torch's no_grad would leave it off."""
        torch.set_grad_enabled(self._has_autograd)
        self._restore()

    def _restore(self) -> None:
        _copy_([b for b, _ in self._former], [former for _, former in self._former])
        self._restore_modes()
        RECALIBRATED.difference_update(self._ids)
        self._is_open = False

    def __del__(self) -> None:
        if self._is_open:  # an interrupt came just before the block could be left
            run_through(self._restore)


def _copy_(targets: list[Any], sources: list[Any]) -> None:
    """Copy all buffers in one call, in place: captured CUDA graphs know their addresses."""
    if targets:
        foreach_copy_(targets, sources)


@torch.no_grad()
def _calibrate(model: nn.Module, layers: list[BatchNorm], batches: Iterable[Any]) -> None:
    for module in model.modules():
        module.training = False
    for layer in layers:
        layer.training = True
        layer.momentum = None  # torch's word for the mean over all batches
        layer.reset_running_stats()
    batch = None
    for batch in batches:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        try:
            if isinstance(inputs, Mapping):
                model(**inputs)
            else:
                model(inputs)
        except NotImplementedError as error:
            if "forward" not in str(error):
                raise
            name = type(model).__name__
            raise TypeError(f"recalibrated() needs model(inputs), and {name} has no forward(): define one") from error
    if batch is None:
        raise ValueError("batches must not be empty: a generator can be used only once")
