"""``lr="auto"``: a learning rate from the shapes of the parameters, and a warm-up to it.

    lr = 0.7/n,   n the median fan-in of the parameters with two or more dimensions

A step of Adam moves each weight by about lr, and so an output of a layer by up to lr·n times the size of its inputs:
lr·n says how far a step changes what the layers compute. At the best constant learning rate it was 0.5 to 0.8 for
GPTs of widths 128 to 1,024. Nothing is measured, so the rule assumes what those models have in common: inputs of
every layer of size about 1, batches of some thousand tokens or a hundred images, training from the start.
docs/no-learning-rate.md says how far from the best it is, and where it fails.
"""

from collections.abc import Iterable
from statistics import median
from typing import Any

from torch.nn.parameter import is_lazy

from o2nc.persist.compiling import is_capturing
from o2nc.persist.plain import KEY

AUTO = "auto"  # the argument, and the entry of the settings until lr is a plain number
SCALE, WARMUP = 0.7, 100  # lr·n, and steps in which lr rises
UNKNOWN = 1e-6  # lr while the optimizer is constructed


def lr_of(params: Iterable[Any]) -> float:
    """Return the learning rate for AdamW on these parameters, whose first dimension is that of the outputs."""
    params = list(params)
    if any(map(is_lazy, params)):
        raise ValueError('lr="auto" needs parameters with shapes: run the model once before you make the optimizer')
    fans = [p.numel() / p.shape[0] for p in params if p.dim() > 1 and p.numel() > 0]
    if not fans:
        raise ValueError('lr="auto" needs a parameter with two or more dimensions: pass lr as a number')
    return SCALE / median(fans)


def begin(optimizer: Any) -> None:
    """Set lr, and have the first steps warm up to it."""
    for group in optimizer.param_groups:
        if group["lr"] != UNKNOWN:
            raise ValueError(f'lr="auto" is one for all parameter groups, got lr={group["lr"]!r} in a group')
    lr = lr_of(optimizer._known_params)
    _show(optimizer, lr)
    optimizer.param_groups[0][KEY][AUTO] = {"lr": lr, "shown": lr}


def warm_up(optimizer: Any) -> None:
    """Set the lr of this step of the warm-up; end it where somebody else sets lr."""
    settings, groups = optimizer.param_groups[0][KEY], optimizer.param_groups
    auto, t = settings[AUTO], optimizer._steps_done() + 1
    if any("initial_lr" in group or group["lr"] != auto["shown"] for group in groups):  # a scheduler's, or the user's
        del settings[AUTO]
        return
    if is_capturing():
        raise RuntimeError(
            f'lr="auto" is warming up, and a CUDA graph would repeat one lr: capture after {WARMUP} steps'
        )
    lr = auto["lr"] * min(1.0, t / WARMUP)
    _show(optimizer, lr)
    settings[AUTO] = auto | {"shown": lr}
    if t >= WARMUP:
        del settings[AUTO]


def _show(optimizer: Any, lr: float) -> None:
    for group in (*optimizer.param_groups, optimizer.defaults):  # groups that are added take the default
        group["lr"] = lr
