"""Lightning's Trainer: certificates where it logs, and validation at x̄."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from o2nc import checks
from o2nc.batchnorm import recalibrated
from o2nc.certified import Certified, certified, has_averages
from o2nc.logger import scalars


@contextmanager
def averaged(trainer: Trainer) -> Iterator[None]:
    """Put x̄ into the model inside a ``with`` block, to validate, test or save it; restored on leaving it.

    Args:
        trainer: a Lightning Trainer that has fitted.

    Example::

        with averaged(trainer):
            trainer.save_checkpoint("averaged.ckpt", weights_only=True)
    """
    with ExitStack() as swapped:
        for optimizer in _optimizers(trainer):
            swapped.enter_context(optimizer.averaged())
        yield


class CertificateCallback(Callback):
    """Logs the certificate, its gradient and spread, and the progress every ``log_every_n_steps`` steps.

    They are logged in the module's name, so that all loggers have them, and callbacks can monitor
    ``certificate/value``. Checkpoints need nothing from this callback: all is in the optimizer's state.

    Args:
        c: the price of spread, > 0.
        averaged: validate at x̄, and go on training at x.
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
        self.c, self.averaged, self.batches = c, averaged, batches
        self._logged = 0
        self._swapped = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse optimizers that have no certificates."""
        _optimizers(trainer)
        self._logged = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log if Lightning does so after this batch; not twice while gradients accumulate."""
        step = trainer.global_step
        if step == self._logged or step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        self._logged = step
        optimizers = _optimizers(trainer)
        for k, optimizer in enumerate(optimizers):
            if has_averages(optimizer):
                found = scalars(optimizer.certificate(self.c), optimizer.progress)
                of_this = "" if len(optimizers) == 1 else f"/{k}"
                pl_module.log_dict({name + of_this: value for name, value in found.items()}, on_step=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put x̄ into the model, and BatchNorm statistics to match."""
        optimizers = _optimizers(trainer)  # none where nothing was fitted
        if self.averaged and optimizers and all(map(has_averages, optimizers)):
            with ExitStack() as swapped:
                swapped.enter_context(averaged(trainer))
                if self.batches is not None:
                    with torch.random.fork_rng(devices=[]):
                        batches = (trainer.strategy.batch_to_device(batch) for batch in self.batches)
                        swapped.enter_context(recalibrated(pl_module, batches))
                self._swapped = swapped.pop_all()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put x back."""
        self._swapped.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Put x back."""
        self._swapped.close()


def _optimizers(trainer: Trainer) -> list[Certified]:
    return [certified(optimizer) for optimizer in trainer.optimizers]
