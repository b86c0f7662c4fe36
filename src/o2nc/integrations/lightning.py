"""Lightning's Trainer: certificates where it logs, and validation at x̄."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from o2nc import checks
from o2nc.logger import scalars
from o2nc.optimizers.accessors import has_averages, has_certificate, progress_of
from o2nc.optimizers.base import Averaged
from o2nc.optimizers.wrapped import averaged_optimizer
from o2nc.persist.batchnorm import recalibrated
from o2nc.persist.shards import resharded


@contextmanager
def averaged(trainer: Trainer) -> Iterator[None]:
    """Put x̄ into the model inside a ``with`` block, to validate, test or save it; restored on leaving it.

    Args:
        trainer: a Lightning Trainer that has fitted.

    Example::

        with averaged(trainer):
            trainer.save_checkpoint("averaged.ckpt", weights_only=True)
    """
    with resharded(trainer.lightning_module), ExitStack() as swapped:
        for optimizer in _optimizers(trainer):
            swapped.enter_context(optimizer.averaged())
        yield


class CertificateCallback(Callback):
    """Logs what ``diagnose()`` says, the certificate and the progress whenever Lightning logs.

    They are logged in the module's name, so that all loggers have them, and callbacks can monitor
    ``certificate/value``. Checkpoints need nothing from this callback: all is in the optimizer's state.

    Args:
        c: the price of spread, > 0.
        averaged: validate at x̄ while fitting, and go on training at x. ``trainer.validate`` is left alone.
        batches: inputs for `o2nc.recalibrated`, read before each validation at x̄: a DataLoader, say, or a list.
            The run does not notice what is drawn from torch's generator for them.

    Example::

        trainer = Trainer(callbacks=[CertificateCallback(averaged=True)])
        trainer.fit(module, loader)
    """

    def __init__(self, c: float = 1.0, *, averaged: bool = False, batches: Iterable[Any] | None = None) -> None:
        checks.positive("c", c)
        checks.flag("averaged", averaged)
        if batches is not None and not averaged:
            raise ValueError("batches are for validation at x̄: pass averaged=True as well")
        if isinstance(batches, Iterator):
            raise ValueError(
                f"batches must be there for every validation, as a list or a DataLoader is, got {batches!r}"
            )
        self.c, self.averaged, self.batches = c, averaged, batches
        self._swapped = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse optimizers that have no certificates."""
        _optimizers(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log if Lightning does so after this batch; not while gradients accumulate."""
        accumulates = pl_module.automatic_optimization and trainer.fit_loop._should_accumulate()
        if accumulates or not trainer._logger_connector.should_update_logs:
            return
        optimizers = _optimizers(trainer)
        for k, optimizer in enumerate(optimizers):
            if has_certificate(optimizer):
                found = scalars(optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer))
                of_this = "" if len(optimizers) == 1 else f"/{k}"
                pl_module.log_dict({name + of_this: value for name, value in found.items()}, on_step=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put x̄ into the model, and BatchNorm statistics to match."""
        fits = trainer.state.fn == TrainerFn.FITTING
        if self.averaged and fits and all(map(has_averages, _optimizers(trainer))):
            with ExitStack() as swapped:
                swapped.enter_context(averaged(trainer))
                if self.batches is not None:
                    precision, to_device = trainer.precision_plugin, trainer.strategy.batch_to_device
                    with torch.random.fork_rng(devices=[]), precision.forward_context():
                        batches = (to_device(precision.convert_input(batch)) for batch in self.batches)
                        swapped.enter_context(recalibrated(pl_module, batches))
                self._swapped = swapped.pop_all()

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """Put x back."""
        self._swapped.close()

    on_exception = on_validation_end


def _optimizers(trainer: Trainer) -> list[Averaged]:
    return [averaged_optimizer(optimizer) for optimizer in trainer.optimizers]
