"""BatchNorm statistics for other weights, temporarily.

The running means and variances of BatchNorm belong to the weights that produced them: to evaluate x̄ they have to be
recomputed. `torch.optim.swa_utils.update_bn` overwrites them; here they are restored, and training goes on unchanged.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from o2nc.persist.private import BatchNorm, foreach_copy_


class Statistics:
    """A model's BatchNorm statistics, momenta and training flags, to recompute and to restore bitwise.

    Args:
        model: all BatchNorm layers with running statistics take part, those in evaluation mode too.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self._model = model
        self._layers = [norm for norm in norms if norm.track_running_stats and norm.num_batches_tracked is not None]
        self._former = {layer: [(b, b.clone()) for b in layer.buffers(recurse=False)] for layer in self._layers}
        self._modes: list[tuple[Any, ...]] = [(m, "training", m.training) for m in model.modules()]
        self._modes += [(norm, "momentum", norm.momentum) for norm in norms]

    def recompute(self, batches: Iterable[Any]) -> None:
        """Give the layers the statistics of ``batches``, as `torch.optim.swa_utils.update_bn` computes them.

        Every batch goes through the model once, without gradients, under the caller's autocast if any; BatchNorm
        layers are in training mode then, all else (dropout, say) in evaluation mode. Afterwards all modes are as
        before. A layer that no batch reaches keeps its statistics.

        Args:
            batches: as in `o2nc.averaged`; not touched if there is no layer with running statistics. Under
                DistributedDataParallel all ranks need equally many, and without SyncBatchNorm each has the statistics
                of its own.

        Raises:
            ValueError: ``batches`` is empty, as a generator is when it is used a second time.
            TypeError: the model has no ``forward``, as a LightningModule may have none.
        """
        if not self._layers:
            return
        for module in self._model.modules():
            module.training = False  # an attribute, not train(): models override it, to freeze layers
        for layer in self._layers:
            layer.training, layer.momentum = True, None  # torch's word for the mean over all batches
            layer.reset_running_stats()
        self._run(batches)
        self._copy_back([layer for layer in self._layers if not layer.num_batches_tracked])
        self._restore_modes()

    @torch.no_grad()
    def _run(self, batches: Iterable[Any]) -> None:
        batch = None
        for batch in batches:
            inputs = batch[0] if isinstance(batch, tuple | list) else batch
            try:
                self._model(**inputs) if isinstance(inputs, Mapping) else self._model(inputs)
            except NotImplementedError as error:
                if "forward" not in str(error):
                    raise
                name = type(self._model).__name__
                raise TypeError(f"batches need model(inputs), and {name} has no forward(): define one") from error
        if batch is None:
            raise ValueError("batches must not be empty: a generator can be used only once")

    def restore(self) -> None:
        """Restore statistics, momenta and training flags; calling it again changes nothing."""
        self._copy_back(self._layers)
        self._restore_modes()

    def _restore_modes(self) -> None:
        for module, name, value in self._modes:
            setattr(module, name, value)

    def _copy_back(self, layers: list[Any]) -> None:
        """Copy all buffers in one call, in place: captured CUDA graphs know their addresses."""
        pairs = [pair for layer in layers for pair in self._former[layer]]
        if pairs:
            foreach_copy_([b for b, _ in pairs], [former for _, former in pairs])
