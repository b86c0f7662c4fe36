"""Hugging Face's Trainer: x̄ is what it evaluates and saves, and x is what it trains.

The Trainer calls no callback before it evaluates, none between writing the model and the optimizer, and none that
knows the folder it resumes from. So the callback wraps three of its methods.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from o2nc import checks
from o2nc.averages.reading import has_certificate, progress_of
from o2nc.integrations.averaging import Averaging, clone, copy_, trained
from o2nc.logger import scalars
from o2nc.optimizers.wrapped import averaged_optimizer

FILE = "o2nc_iterate.pt"  # of a checkpoint: x and its BatchNorm statistics


class AveragingCallback(TrainerCallback):
    """Evaluates x̄ and saves it as the model; training goes on at x.

    The metrics of an evaluation are those of x̄ under their usual names, for ``metric_for_best_model`` and early
    stopping. The model file of a checkpoint is the model that was evaluated, ``load_best_model_at_end`` loads x̄ of
    the best evaluation, and without it the model holds the last x̄ after ``train()``: ``save_model()`` and
    ``push_to_hub()`` ship x̄. A checkpoint has x as well, and ``train(resume_from_checkpoint=…)`` with this callback
    continues bitwise. The optimizer is one of o2nc's with averages, given as ``optimizers=(opt, schedule)`` or
    ``optimizer_cls_and_kwargs=(o2nc.AdamW, {"lr": …, "average": o2nc.Polynomial(12)})``.

    Before the window begins (``start``) there is no x̄: a warning says once that x is evaluated, and the first
    evaluation of x̄ replaces the best of those scores.

    Args:
        trainer: the Trainer that it is added to.
        batches: inputs of the model, as dictionaries, for BatchNorm statistics of x̄; read once per evaluation, as in
            `o2nc.recalibrated`.
        c: the price of spread, > 0, of the certificates that are logged as ``certificate/value`` and so on after
            every training loss; only of an optimizer that has ``certificate=True``.

    Example::

        trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None))
        trainer.add_callback(AveragingCallback(trainer))
        trainer.train()
        trainer.save_model("model")  # x̄
    """

    def __init__(self, trainer: Any, batches: Iterable[Any] | None = None, *, c: float = 1.0) -> None:
        checks.positive("c", c)
        self.trainer, self.c, self._averaging = trainer, c, Averaging(batches)
        self._is_training, self._has_scored_x = False, False
        self._finished: Any = None  # the optimizer whose x̄ train() has left in the model
        self._load = trainer._load_from_checkpoint
        trainer.evaluation_loop = self._at_average(trainer.evaluation_loop)
        trainer.save_model = self._at_average(trainer.save_model)
        trainer._load_from_checkpoint = self._load_from_checkpoint

    def _at_average(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the Trainer that runs at x̄ while it trains."""

        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            trainer, is_saving = self.trainer, method.__name__ == "save_model"
            if not self._is_training:
                return method(*args, **kwargs)
            if not self._averaging.is_there([trainer.optimizer], "so the model is evaluated and saved"):
                self._has_scored_x |= not is_saving
                return method(*args, **kwargs)
            iterate = clone(trained([trainer.optimizer], trainer.model)) if is_saving else {}
            if not is_saving and self._has_scored_x:
                state, self._has_scored_x = trainer.state, False
                state.best_metric = state.best_global_step = state.best_model_checkpoint = None
            with self._swapped():
                result = method(*args, **kwargs)
            if is_saving and trainer.args.should_save:
                folder = kwargs.get("output_dir", args[0] if args else None) or trainer.args.output_dir
                torch.save(iterate, Path(folder) / FILE)
            return result

        return run

    def _swapped(self) -> Any:
        trainer = self.trainer
        return self._averaging.swapped([trainer.optimizer], trainer.model, trainer._prepare_input)

    def _load_from_checkpoint(self, folder: str, model: Any = None) -> None:
        """Load a checkpoint to go on from, with x in place of x̄."""
        self._load(folder, model)
        path, self._finished = Path(folder) / FILE, None
        if path.exists():
            iterate = torch.load(path, map_location="cpu", weights_only=True)
            own = dict(self.trainer.model.named_parameters()) | dict(self.trainer.model.named_buffers())
            copy_({name: own[name] for name in iterate}, iterate)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse an optimizer that has no averages, and to go on from x̄."""
        trainer = self.trainer
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            raise ValueError("AveragingCallback saves whole models, and this Trainer shards them: FSDP or DeepSpeed")
        self._averaging.begin([trainer.optimizer], trainer.model)
        optimizer = averaged_optimizer(trainer.optimizer)
        if self._finished is optimizer:
            raise RuntimeError("train() has left x̄ in the model: train(resume_from_checkpoint=True) goes on from x")
        start, best = optimizer._window.start if optimizer._window else 0, state.best_global_step
        self._is_training, self._has_scored_x = True, best is not None and best <= start

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the certificate after the loss, in an entry of its own: reporters have seen that of the loss."""
        if "loss" in kwargs["logs"] and has_certificate(averaged_optimizer(self.trainer.optimizer)):
            optimizer = averaged_optimizer(self.trainer.optimizer)
            self.trainer.log(scalars(optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer)))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave x̄ in the model, unless it is that of the best evaluation already."""
        self._is_training, self._finished = False, averaged_optimizer(self.trainer.optimizer)
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            return
        if self._averaging.is_there([self.trainer.optimizer], "and so the model stays after train()"):
            with self._swapped():
                average = clone(trained([self.trainer.optimizer], self.trainer.model))
            copy_(trained([self.trainer.optimizer], self.trainer.model), average)
        else:
            self._finished = None
