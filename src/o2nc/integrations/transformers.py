"""Hugging Face's Trainer: x̄ is what it evaluates and saves, and x is what it trains.

The Trainer calls no callback before it evaluates, none between writing the model and the optimizer, and none that
knows the folder it resumes from. So the callback wraps three of its methods.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback

from o2nc.integrations.averaging import Averaging, State

FILE = "o2nc_iterate.pt"  # of a checkpoint: x and its BatchNorm statistics


class AveragingCallback(TrainerCallback):
    """Evaluates x̄ and saves it as the model; training goes on at x.

    The model file of a checkpoint is the model that was evaluated; the checkpoint has x as well, to continue from.
    ``load_best_model_at_end`` loads x̄ of the best evaluation, and without it the model holds the last x̄ after
    ``train()``. docs/recipes-trainers.md has more.

    Before the window begins (``start``) there is no x̄: x is evaluated and saved, and a warning says so once. Of an
    optimizer with ``certificate=True`` the verdict and the certificate are logged after every training loss.

    Args:
        trainer: the Trainer that it is added to.
        batches: inputs of the model, as dictionaries, for BatchNorm statistics of x̄; read once per evaluation, as in
            ``opt.averaged(model, batches=…)``.

    Example::

        args = TrainingArguments("out", lr_scheduler_type="constant_with_warmup", warmup_steps=100)  # else it decays
        trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None))
        trainer.add_callback(AveragingCallback(trainer))
        trainer.train()
        trainer.save_model("model")  # x̄
    """

    def __init__(self, trainer: Any, batches: Iterable[Any] | None = None) -> None:
        self.trainer, self._averaging, self._is_training = trainer, Averaging(batches), False
        self._iterate: State = {}  # of the checkpoint that a run is resumed from
        self._has_finished = False  # whether train() has left x̄ in the model
        self._load_from_checkpoint = trainer._load_from_checkpoint
        trainer.evaluation_loop = partial(self._at_average, trainer.evaluation_loop, False)
        trainer.save_model = partial(self._at_average, trainer.save_model, True)
        trainer._load_from_checkpoint = self._load

    def _at_average(self, method: Callable[..., Any], saves: bool, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the Trainer at x̄ while it trains; a model that it saves gets x beside it."""
        settings = self.trainer.args
        if not self._is_training or not self._averaging.is_ready():
            return method(*args, **kwargs)
        iterate = self._averaging.copy() if saves else {}
        with self._averaging.swapped():
            result = method(*args, **kwargs)
        if saves and settings.should_save:
            folder = kwargs.get("output_dir", args[0] if args else None) or settings.output_dir
            torch.save(iterate, Path(folder) / FILE)
        return result

    def _load(self, folder: str, model: Any = None) -> None:
        """Load a checkpoint to go on from, and x, which `on_train_begin` puts into the model."""
        self._load_from_checkpoint(folder, model)
        path, self._has_finished = Path(folder) / FILE, False
        if path.exists():
            self._iterate = torch.load(path, map_location="cpu", weights_only=True)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise if the optimizer has no averages or would go on from x̄, and restore x if a run is resumed."""
        trainer = self.trainer
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ValueError("AveragingCallback saves whole models, and this Trainer shards them: FSDP or DeepSpeed")
        former = self._averaging.optimizers
        self._averaging.begin([trainer.optimizer], trainer.model, trainer._prepare_input)
        if self._has_finished and former == self._averaging.optimizers:
            raise RuntimeError("train() has left x̄ in the model: train(resume_from_checkpoint=True) goes on from x")
        self._averaging.load(self._iterate)
        self._is_training, self._iterate = True, {}

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log the certificate after the loss, in an entry of its own: reporters have seen that of the loss."""
        found = self._averaging.scalars() if "loss" in kwargs["logs"] else {}
        if found:
            self.trainer.log(found)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave x̄ in the model, unless it is that of the best evaluation already."""
        self._is_training = False
        self._has_finished = args.load_best_model_at_end and state.best_model_checkpoint is not None
        if not self._has_finished and self._averaging.is_ready():
            self._averaging.leave_average()
            self._has_finished = True
