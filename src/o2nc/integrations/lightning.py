"""Lightning's Trainer: x̄ is what it validates and saves, and x is what it trains."""

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.trainer.states import TrainerFn

from o2nc.integrations.averaging import Averaging, State


class AveragingCallback(Callback):
    """Validates x̄ and saves it as the model; training goes on at x.

    The ``state_dict`` of a checkpoint, whole or weights only, is the model that was validated; a whole checkpoint has
    x as well, to continue from. After ``fit`` the module holds x̄. docs/recipes-trainers.md has more.

    Before the window begins (``start``) there is no x̄: x is validated and saved, and a warning says so once. Of
    optimizers with ``certificate=True`` the verdict and the certificate are logged whenever Lightning logs.

    Args:
        batches: inputs of the module, such as the training DataLoader, for BatchNorm statistics of x̄; read once per
            validation, as in ``opt.averaged(model, batches=…)``.

    Example::

        keep = ModelCheckpoint(monitor="val_loss")
        trainer = Trainer(callbacks=[AveragingCallback(batches=train_loader), keep])
        trainer.fit(module, train_loader, val_loader)
        trainer.test(module, test_loader, ckpt_path="best")  # x̄ of the best validation
    """

    def __init__(self, batches: Iterable[Any] | None = None) -> None:
        self._averaging, self._swapped = Averaging(batches), ExitStack()
        self._iterate = State()  # of a checkpoint that a run is resumed from; after training, x

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Have the strategy hand out x̄ where a checkpoint is made: Lightning has no hook for weights alone."""
        self._is_fitting = stage == "fit"
        if self._is_fitting:
            self._iterate = State()
            vars(trainer.strategy)["lightning_module_state_dict"] = partial(self._model_state, trainer.strategy)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise if an optimizer has no averages, and restore x if a run is resumed."""
        precision, to_device = trainer.precision_plugin, trainer.strategy.batch_to_device
        convert, context = precision.convert_input, precision.forward_context
        self._averaging.begin(trainer.optimizers, pl_module, lambda batch: to_device(convert(batch)), context)
        self._averaging.load(self._iterate)
        self._iterate = State()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        """Log verdict and certificate if Lightning logs after this batch."""
        accumulates = pl_module.automatic_optimization and trainer.fit_loop._should_accumulate()
        if trainer._logger_connector.should_update_logs and not accumulates:
            pl_module.log_dict(self._averaging.scalars(), on_step=True)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Put x̄ into the module, and BatchNorm statistics to match."""
        is_training = trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking
        if is_training and self._averaging.is_ready():
            self._swapped.enter_context(self._averaging.swapped())

    def on_validation_end(self, *_: Any, **__: Any) -> None:
        """Put x back; `ModelCheckpoint` comes after all other callbacks."""
        self._swapped.close()

    on_exception = on_validation_end

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave x̄ in the module."""
        if self._averaging.is_ready():
            self._iterate = self._averaging.leave_average()

    def state_dict(self) -> dict[str, Any]:
        """Return x, if the model in the checkpoint is x̄."""
        return {"iterate": self._iterate or (self._averaging.copy() if self._averaging.is_ready() else {})}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take x from a checkpoint if a run is resumed; all else that loads the file wants x̄."""
        if self._is_fitting:
            self._iterate = state_dict["iterate"]

    def _model_state(self, strategy: Strategy) -> dict[str, Any]:
        """Return the state dict of x̄, or of the module as it is if that is x̄ already or there is none."""
        if self._iterate or not self._averaging.is_ready():
            return type(strategy).lightning_module_state_dict(strategy)
        with self._averaging.swapped():
            return copy.deepcopy(type(strategy).lightning_module_state_dict(strategy))
