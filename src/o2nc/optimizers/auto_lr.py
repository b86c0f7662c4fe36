"""``lr="auto"``: a learning rate from the shapes of the parameters and the tokens of a step, and a warm-up to it.

    lr = 0.7/n · (tokens/24,000)^(1/3),   n the median fan-in of the parameters with two or more dimensions

A step of Adam moves each weight by about lr, and so an output of a layer by up to lr·n times the size of its inputs.
The rule measures nothing: it assumes inputs of every layer of size about 1, training from the start, and without
``tokens`` about 24,000 of them a step. docs/no-learning-rate.md says how far from the best it is, and where it fails.
"""

import warnings
from collections.abc import Iterable
from statistics import median
from typing import Any

from torch.nn.parameter import is_lazy

from o2nc import checks
from o2nc.persist.compiling import is_capturing
from o2nc.persist.plain import KEY

AUTO = "auto"  # the argument, and the entry of the settings until lr is a plain number
SCALE, WARMUP = 0.7, 100  # lr·n, and steps in which lr rises
USUAL = 24_000  # tokens of a step at which lr·n is SCALE
PLACEHOLDER = 1e-6  # lr while the optimizer is constructed


def lr_of(params: Iterable[Any], tokens: int | None = None) -> float:
    """Return the learning rate for AdamW on these parameters; those that require no gradient do not count."""
    if tokens is not None:
        checks.integer("tokens", tokens, 1)
    params = [p for p in params if p.requires_grad]
    if any(map(is_lazy, params)):
        raise ValueError('lr="auto" needs parameters with shapes: run the model once before you make the optimizer')
    fans = [p.numel() / p.shape[0] for p in params if p.dim() > 1 and p.numel() > 0]
    if not fans:
        raise ValueError('lr="auto" needs a trainable parameter with two or more dimensions: pass lr as a number')
    return float(SCALE / median(fans) * ((tokens or USUAL) / USUAL) ** (1 / 3))


def start_warm_up(optimizer: Any, tokens: int | None) -> None:
    """Set lr, which shows the whole of it until the first step, and have the first steps warm up to it."""
    for group in optimizer.param_groups:
        if group["lr"] is not PLACEHOLDER:  # one of the same value would be the user's
            raise ValueError(f'lr="auto" is one for all parameter groups, got lr={group["lr"]!r} in a group')
    lr = lr_of(optimizer._known_params, tokens)
    _set_lr(optimizer, PLACEHOLDER, lr)
    optimizer.param_groups[0][KEY][AUTO] = {"lr": lr, "last_set": lr}


def warm_up(optimizer: Any) -> None:
    """Set the lr of this step of the warm-up, in the groups whose lr nobody else has set since."""
    settings, groups = optimizer.param_groups[0][KEY], optimizer.param_groups
    auto, t = settings[AUTO], optimizer._steps_done() + 1
    if any("initial_lr" in group for group in groups):  # from now on a scheduler sets it
        del settings[AUTO]
        if auto["last_set"] < auto["lr"]:
            left = f"lr={auto['last_set']:.3g}, where the rule's is {auto['lr']:.3g}"
            warnings.warn(f'a scheduler ends the warm-up of lr="auto" in step {t}, at {left}', stacklevel=5)
        return
    if is_capturing():
        raise RuntimeError(f'lr="auto" warms up, and a CUDA graph would repeat one lr: capture after {WARMUP} steps')
    lr = auto["lr"] * min(1.0, t / WARMUP)
    _set_lr(optimizer, auto["last_set"], lr)
    settings[AUTO] = auto | {"last_set": lr}
    if t >= WARMUP or all(group["lr"] != lr for group in groups):
        del settings[AUTO]


def _set_lr(optimizer: Any, former: float, lr: float) -> None:
    for group in (*optimizer.param_groups, optimizer.defaults):  # groups that are added take the default
        if group["lr"] == former:
            group["lr"] = lr
