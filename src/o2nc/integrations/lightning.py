"""Lightning's Trainer: x̄ is what it validates and saves, and x is what it trains."""

from collections.abc import Iterable
from contextlib import ExitStack
from types import MethodType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from o2nc import checks
from o2nc.averages.reading import has_certificate, progress_of
from o2nc.integrations.averaging import Averaging, State, clone, copy_, trained
from o2nc.logger import scalars
from o2nc.optimizers.wrapped import averaged_optimizer

KEY = "o2nc_iterate"  # of a checkpoint: x and its BatchNorm statistics


class AveragingCallback(Callback):
    """Validates x̄ and saves it as the model; training goes on at x.

    The metrics of a validation are those of x̄ under their usual names, for ``ModelCheckpoint`` and ``EarlyStopping``
    to monitor. The ``state_dict`` of a checkpoint, whether whole or weights only, is the model that was validated. A
    whole checkpoint has x as well, and ``trainer.fit(…, ckpt_path=…)`` with this callback continues bitwise. After
    ``fit`` the module holds x̄.

    Before the window begins (``start``) there is no x̄: a warning says once that x is validated, and the monitors
    forget those scores at the first validation of x̄.

    Args:
        batches: inputs of the module, such as the training DataLoader, for BatchNorm statistics of x̄; read once per
            validation, as in `o2nc.recalibrated`.
        c: the price of spread, > 0, of the certificates that are logged as ``certificate/value`` and so on whenever
            Lightning logs; only of optimizers that have ``certificate=True``.

    Example::

        keep = ModelCheckpoint(monitor="val_loss")
        trainer = Trainer(callbacks=[AveragingCallback(batches=train_loader), keep])
        trainer.fit(module, train_loader, val_loader)
        trainer.test(module, test_loader, ckpt_path="best")  # x̄ of the best validation
    """

    def __init__(self, batches: Iterable[Any] | None = None, *, c: float = 1.0) -> None:
        checks.positive("c", c)
        self.c, self._averaging, self._swapped = c, Averaging(batches), ExitStack()
        self._has_scored_x = False  # whether the monitors know scores of x
        self._iterate: State | None = None  # x, when fit has left x̄ in the module

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the module's own hook save x̄, since Lightning asks no callback when it saves weights only."""
        if stage == "fit":
            self._iterate = None
            vars(pl_module)["on_save_checkpoint"] = MethodType(on_save_checkpoint, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse optimizers that have no averages."""
        self._averaging.begin(trainer.optimizers, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log certificates if Lightning logs after this batch; not while gradients accumulate."""
        accumulates = pl_module.automatic_optimization and trainer.fit_loop._should_accumulate()
        if accumulates or not trainer._logger_connector.should_update_logs:
            return
        optimizers = [averaged_optimizer(optimizer) for optimizer in trainer.optimizers]
        for k, optimizer in enumerate(optimizers):
            if has_certificate(optimizer):
                found = scalars(optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer))
                of_this = "" if len(optimizers) == 1 else f"/{k}"
                pl_module.log_dict({name + of_this: value for name, value in found.items()}, on_step=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put x̄ into the module, and BatchNorm statistics to match."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        what = "" if trainer.sanity_checking else "so the module is validated and saved"
        if self._averaging.is_there(trainer.optimizers, what):
            self._swap(trainer)
        elif what:
            self._has_scored_x = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """At the first validation of x̄ have the monitors of its metrics forget the scores of x."""
        if not (self._has_scored_x and self._averaging.is_there(trainer.optimizers, "")):
            return
        self._has_scored_x = False
        for callback in _callbacks(trainer):
            if getattr(callback, "monitor", None) in trainer._logger_connector.metrics["callback"]:
                worst = torch.tensor(torch.inf if callback.mode == "min" else -torch.inf)
                fresh: dict[str, Any] = {"best_k_models": {}, "best_model_path": "", "kth_best_model_path": ""}
                fresh |= {"kth_value": worst, "best_model_score": None, "best_score": worst, "wait_count": 0}
                vars(callback).update((name, value) for name, value in fresh.items() if hasattr(callback, name))

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """Put x back; `ModelCheckpoint` comes after all other callbacks."""
        self._swapped.close()

    on_exception = on_validation_end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compute the statistics of the last x̄ while the module is on its device."""
        if self._averaging.is_there(trainer.optimizers, "and so the module stays after fit"):
            self._swap(trainer)
            self._swapped.close()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave x̄ in the module."""
        if self._averaging.is_there(trainer.optimizers, ""):
            iterate = clone(trained(trainer.optimizers, pl_module))
            self._swap(trainer)
            average = clone(trained(trainer.optimizers, pl_module))
            self._swapped.close()
            copy_(trained(trainer.optimizers, pl_module), average)
            self._iterate = iterate

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run has to know; that it is there has Lightning ask for this callback then."""
        return {"has_scored_x": self._has_scored_x}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with the scores of the run that is resumed."""
        self._has_scored_x = state_dict["has_scored_x"]

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Put x into the module if a run is resumed; all else that loads the file wants x̄."""
        if trainer.state.fn == TrainerFn.FITTING and KEY in checkpoint:
            own = dict(pl_module.named_parameters()) | dict(pl_module.named_buffers())
            copy_({name: own[name] for name in checkpoint[KEY]}, checkpoint[KEY])

    def _swap(self, trainer: Trainer) -> None:
        precision, to_device = trainer.precision_plugin, trainer.strategy.batch_to_device
        module = trainer.lightning_module
        with precision.forward_context():
            swapped = self._averaging.swapped(
                trainer.optimizers, module, lambda batch: to_device(precision.convert_input(batch))
            )
            self._swapped.enter_context(swapped)

    def _save(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Put x̄ into a checkpoint as the model, and x beside it if a run can be resumed from it."""
        iterate = self._iterate
        if iterate is None and self._averaging.is_there(trainer.optimizers, ""):
            iterate = clone(trained(trainer.optimizers, trainer.lightning_module))
            self._swap(trainer)
            state = trainer.strategy.lightning_module_state_dict()
            checkpoint["state_dict"] = {
                name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()
            }
            self._swapped.close()
        if iterate is not None and "optimizer_states" in checkpoint:
            checkpoint[KEY] = iterate


def on_save_checkpoint(module: LightningModule, checkpoint: dict[str, Any]) -> None:
    """Put x̄ into a checkpoint, and call the hook of the module's class."""
    for callback in _callbacks(module.trainer):
        if isinstance(callback, AveragingCallback):
            callback._save(module.trainer, checkpoint)
    type(module).on_save_checkpoint(module, checkpoint)


def _callbacks(trainer: Any) -> list[Any]:
    return list(trainer.callbacks)
