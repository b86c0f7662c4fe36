"""What the parts of a training step cost: model, clipping, optimizer, averages, certificate."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch.nn.utils import clip_grad_norm_

from o2nc_experiments.gpt.arms import parse
from o2nc_experiments.gpt.optimizers import Means, make
from o2nc_experiments.gpt.training import Trainer

REPEATS = {"cuda": 30, "cpu": 3}
WARM = 3


def measure(trainer: Trainer) -> dict[str, float]:
    """Return milliseconds of every part of a step with AdamW, the optimizer's on gradients that stay as they are."""
    trainer.model.begin_(0)
    batch = trainer.read(torch.arange(trainer.settings.rows, device=trainer.device))
    params = list(trainer.model.parameters())
    found = {"whole_backward": _time(trainer, lambda: trainer.backward(batch))}
    found["clipping"] = _time(trainer, lambda: clip_grad_norm_(params, trainer.settings.clip))
    found["model"] = found.pop("whole_backward") - found["clipping"]
    arm = parse("adamw(lr=1e-9):constant")
    ways = {"adamw": (None, False), "adamw_mean": ("t^12", False), "adamw_mean_certificate": ("t^12", True)}
    for name, (window, certificate) in ways.items():
        (optimizer,) = make(arm, trainer.model, window, 0, certificate=certificate)
        found[name] = _time(trainer, optimizer.step)
    found["further_mean"] = _time(trainer, Means(params, ["t^8"]).add_)
    found["evaluation"] = _time(trainer, trainer.evaluate)
    return found


def _time(trainer: Trainer, work: Callable[[], object]) -> float:
    """Return the milliseconds of a call, on average over some that follow each other."""
    for _ in range(WARM):
        work()
    _wait(trainer)
    begun, repeats = perf_counter(), REPEATS[trainer.device.type]
    for _ in range(repeats):
        work()
    _wait(trainer)
    return 1e3 * (perf_counter() - begun) / repeats


def _wait(trainer: Trainer) -> None:
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
