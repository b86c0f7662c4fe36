"""BatchNorm's statistics for other weights, and back.

The running means and variances of BatchNorm belong to the weights that made them: to evaluate x̄ they have to be made
anew. `torch.optim.swa_utils.update_bn` does so for good; here the model goes on training as if nothing had been.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from o2nc.torch_support.private import BatchNorm


@contextmanager
def recalibrated(model: nn.Module, batches: Iterable[Any]) -> Iterator[None]:
    """Give BatchNorm the statistics of ``batches`` inside a ``with`` block, and restore the old ones on leaving it.

    The statistics are the means over the batches of their means and of their unbiased variances, as in
    `torch.optim.swa_utils.update_bn`. Every batch goes through the model once, without gradients, under the caller's
    autocast if any; BatchNorm layers are in training mode then, all else (dropout, say) in evaluation mode.

    Inside the block the training flags are those from before it: call ``model.eval()``. On leaving it, after an error
    too, the statistics, momenta and training flags are bitwise as before, in the same tensors.

    Args:
        model: all BatchNorm layers with running statistics take part, those in evaluation mode too; a layer that no
            batch reaches keeps its statistics. If there is none, ``batches`` is not touched.
        batches: inputs of the model, on its device: tensors, or tuples or lists that start with one (the rest, such
            as labels, is ignored), or dictionaries of keyword arguments. Under DistributedDataParallel all ranks need
            equally many, and without SyncBatchNorm each has the statistics of its own.

    Raises:
        ValueError: ``batches`` is empty, as a generator is when it is used a second time.

    Example:
        >>> import torch, o2nc
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        >>> opt = o2nc.ScaledSGDM(model.parameters(), lr=0.1, average=0.9)
        >>> batches = torch.randn(5, 8, 3)
        >>> model(batches[0]).square().mean().backward()
        >>> opt.step()
        >>> with opt.averaged(), o2nc.recalibrated(model, batches):  # in this order: x̄ first, then its statistics
        ...     loss = model.eval()(batches[0]).square().mean()
        >>> model.training
        True
    """
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    layers = [norm for norm in norms if norm.track_running_stats and norm.num_batches_tracked is not None]
    former = {layer: {name: b.clone() for name, b in layer.named_buffers(recurse=False)} for layer in layers}
    with _modes_restored(model), ExitStack() as restore:
        for layer, buffers in former.items():
            restore.callback(_write, layer, buffers)
        if layers:
            with _modes_restored(model):
                _calibrate(model, layers, batches)
            for layer, buffers in former.items():
                if not layer.num_batches_tracked:
                    _write(layer, buffers)
        yield


@contextmanager
def _modes_restored(model: nn.Module) -> Iterator[None]:
    with ExitStack() as restore:
        for module in model.modules():  # attributes, not train(): models override it, to freeze layers for example
            restore.callback(setattr, module, "training", module.training)
            if isinstance(module, BatchNorm):
                restore.callback(setattr, module, "momentum", module.momentum)
        yield


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
        if isinstance(inputs, Mapping):
            model(**inputs)
        else:
            model(inputs)
    if batch is None:
        raise ValueError("batches must not be empty: a generator can be used only once")


def _write(layer: BatchNorm, buffers: dict[str, Tensor]) -> None:
    for name, value in buffers.items():
        getattr(layer, name).copy_(value)  # in place: captured CUDA graphs know the address
