"""What another optimizer's step adds to the parameters, multiplied by s.

Most of torch's optimizers move by lr times something that lr does not enter, so it is enough to multiply lr by s for
the duration of a step: no memory, and the same bits as if lr·s had been set by hand. Any other optimizer's
parameters are remembered before the step, and the displacement is scaled after it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import optim
from torch.optim import Optimizer

# Linear in lr, with a state that lr does not enter. Not so: ASGD, Adafactor, LBFGS, Rprop.
LINEAR_IN_LR: frozenset[type[Optimizer]] = frozenset(
    getattr(optim, name)
    for name in (
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "SGD",
        "SparseAdam",
    )
    if hasattr(optim, name)
)


@contextmanager
def multiplied_lr(optimizer: Optimizer, s: float) -> Iterator[None]:
    """Multiply the learning rates by s within a ``with`` block."""
    lrs = [group["lr"] for group in optimizer.param_groups]
    try:
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr * s
        yield
    finally:
        for group, lr in zip(optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr


@contextmanager
def multiplied_displacement(optimizer: Optimizer, s: float) -> Iterator[None]:
    """Multiply by s what was added to the parameters within a ``with`` block."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    before = [(p, p.detach().clone()) for p in params if p.requires_grad or p.grad is not None]
    yield
    with torch.no_grad():
        for p, x in before:
            p.copy_(torch.where(p == x, p, torch.lerp(x, p, s)))  # infinities that stood still go on doing so
