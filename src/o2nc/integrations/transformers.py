"""Hugging Face's Trainer: certificates where it logs, and x̄ to evaluate and to save.

The Trainer shows a log to its reporters (TensorBoard and the like) before it shows it to any callback of the user's.
So nothing can be added to it, and the callback logs for itself, through the Trainer's own ``log``: every training
entry of ``log_history`` is followed by one with the certificate of the same step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState
from transformers.training_args import TrainingArguments

from o2nc import checks
from o2nc.logger import scalars
from o2nc.optimizers.accessors import has_averages, has_certificate, progress_of
from o2nc.optimizers.wrapped import averaged_optimizer
from o2nc.persist.shards import resharded

FOLDER = "averaged"  # of a checkpoint
PREFIX = "eval_averaged"  # of metrics


@contextmanager
def averaged(trainer: Any) -> Iterator[None]:
    """Put x̄ into the model inside a ``with`` block, to evaluate, predict, save or push it; restored on leaving it.

    Args:
        trainer: a `transformers.Trainer` that has trained.

    Example::

        with averaged(trainer):
            trainer.evaluate(metric_key_prefix="eval_averaged")
            trainer.save_model("model")  # from_pretrained("model") reads it
    """
    with resharded(trainer.model), averaged_optimizer(trainer.optimizer).averaged():
        yield


class CertificateCallback(TrainerCallback):
    """Logs what ``diagnose()`` says, the certificate and the progress whenever the Trainer logs the loss.

    The optimizer is one of o2nc's that keeps averages, given to the Trainer as ``optimizers=(opt, schedule)`` or
    ``optimizer_cls_and_kwargs=(o2nc.ScaledSGDM, {"lr": …, "average": 0.999})``. Checkpoints need nothing from this
    callback: all is in the optimizer's state.

    Args:
        trainer: the Trainer that it is added to.
        c: the price of spread, > 0.
        evaluate: before each evaluation during the training make one at x̄, logged as ``eval_averaged_loss`` etc. The
            best model (``metric_for_best_model``) is that of the Trainer's own evaluations, which are at x.
        save: put the averaged model into every checkpoint, as its folder ``averaged``.

    Example::

        trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None))
        trainer.add_callback(CertificateCallback(trainer))
        trainer.train()
    """

    def __init__(self, trainer: Any, c: float = 1.0, *, evaluate: bool = False, save: bool = False) -> None:
        checks.positive("c", c)
        checks.flag("evaluate", evaluate)
        checks.flag("save", save)
        self.trainer, self.c, self.evaluate, self.save = trainer, c, evaluate, save

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Refuse an optimizer that has no certificates."""
        averaged_optimizer(self.trainer.optimizer)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the certificate after the loss."""
        optimizer = averaged_optimizer(self.trainer.optimizer)
        if "loss" in kwargs["logs"] and has_certificate(optimizer):
            self.trainer.log(scalars(optimizer.diagnose(), optimizer.certificate(self.c), progress_of(optimizer)))

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Evaluate x̄ if the Trainer is about to evaluate."""
        if self.evaluate and control.should_evaluate and has_averages(averaged_optimizer(self.trainer.optimizer)):
            should_log = control.should_log
            with averaged(self.trainer), torch.random.fork_rng(devices=[]):  # loaders draw: the run must not notice
                self.trainer.evaluate(metric_key_prefix=PREFIX)
            control.should_evaluate, control.should_log = True, should_log  # which that evaluation has answered
        return control

    on_epoch_end = on_step_end

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save the averaged model into the checkpoint."""
        if self.save and has_averages(averaged_optimizer(self.trainer.optimizer)):
            run = self.trainer._get_output_dir(
                trial=getattr(self.trainer, "_trial", None)
            )  # one of a search, perhaps
            with averaged(self.trainer):
                folder = Path(run) / f"checkpoint-{state.global_step}" / FOLDER
                self.trainer.save_model(str(folder), _internal_call=True)
